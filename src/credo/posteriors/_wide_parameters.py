"""Parameters and buffers of a posterior that keep their precision when the network is converted to fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from credo._devices import at_least_float32


class WideParameters(nn.Module):
    """Learned tensors by the names of a network's parameters, such as ρ.

    They have at least 32 bits, whatever the network has: a step of learning is lost in the rounding of fewer.
    """

    def add(self, name: str, value: Tensor) -> None:
        """Register a tensor.

        Args:
            name: of the network's parameter.
            value: its initial value.
        """
        wide = value.to(at_least_float32(value.dtype))
        self.register_parameter(as_key(name), nn.Parameter(wide))

    def get(self, name: str) -> Tensor:
        """The tensor of a parameter.

        Args:
            name: of the network's parameter.

        Returns:
            The learned parameter itself.
        """
        value = self._parameters[as_key(name)]
        assert value is not None
        return value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tensors, but never to fewer than 32 bits."""
        before = {key: value.detach() for key, value in self.named_parameters()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for key, value in self.named_parameters():
            if value.dtype != at_least_float32(value.dtype):
                value.data = before[key].to(value.device, at_least_float32(value.dtype))
        return self


class WideBuffers(nn.Module):
    """A module whose buffers never lose bits: of sums over data, a conversion to 16 bits leaves little."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers, and convert them to more bits only."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self.get_buffer(name)
            wide = torch.promote_types(old.dtype, new.dtype)
            if wide != new.dtype:
                path, _, key = name.rpartition(".")
                self.get_submodule(path)._buffers[key] = old.to(new.device, wide)
        return self


def as_key(name: str) -> str:
    """A parameter name as a registration key, which may not hold a dot."""
    return name.replace(".", "/")
