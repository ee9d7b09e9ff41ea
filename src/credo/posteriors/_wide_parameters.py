"""Parameters of a posterior, one per parameter of the network, that keep at least 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

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


def as_key(name: str) -> str:
    """A parameter name as a registration key, which may not hold a dot."""
    return name.replace(".", "/")
