"""What every bundled network has in common: it can be rebuilt from a name and a few JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from credo.errors import InputError, unknown_name

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Architecture(nn.Module):
    """A network that knows its own constructor arguments.

    Subclasses leave their layers' initialization to torch, so that ``reset_parameters`` of each layer is a fresh
    start: that is how an ensemble makes its members differ.

    Attributes:
        config: the constructor arguments, in types that survive JSON; ``type(net)(**net.config)`` is the same
            network with fresh weights.
    """

    config: dict[str, Any]


def dropout_layers(p: float | None) -> list[nn.Module]:
    """``[nn.Dropout(p)]``, or nothing where ``p`` is ``None``; to be spliced in before a weight layer."""
    return [] if p is None else [nn.Dropout(p)]


def activation_layer(name: str) -> nn.Module:
    """A new activation module by its name."""
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def require_positive(**sizes: int) -> None:
    """Raise for the first named size that is not a integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {size!r}")


def require_shape(x: Tensor, shape: Sequence[int], what: str = "images") -> None:
    """Raise unless a row of ``x [N, ...]`` has that shape."""
    if x.shape[1:] != tuple(shape):
        expected, found = (", ".join(["N", *map(str, sizes)]) for sizes in (shape, x.shape[1:]))
        raise InputError(f"{what} must have shape [{expected}], got [{found}]")
