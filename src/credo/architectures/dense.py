"""Fully connected encoders and decoders: images and tables to a vector and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from credo.architectures._base import Architecture, require_positive
from credo.architectures.mlp import MLP
from credo.errors import InputError


class DenseEncoder(Architecture):
    """Data of any shape to a vector: ``[B, *shape]`` to ``[B, out_features]``.

    Args:
        shape: of a datum.
        out_features: size of the vector; twice the latent size for a Gaussian posterior.
        hidden: widths of the hidden layers.
        activation: name of the nonlinearity.
    """

    def __init__(
        self, shape: Sequence[int], out_features: int, hidden: Sequence[int] = (200, 200), activation: str = "relu"
    ) -> None:
        super().__init__()
        self.shape = datum_shape(shape)
        self.config = {
            "shape": list(self.shape),
            "out_features": out_features,
            "hidden": list(hidden),
            "activation": activation,
        }
        self.layers = MLP(math.prod(self.shape), hidden, out_features, activation)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, *shape]`` to ``[B, out_features]``."""
        if x.shape[1:] != self.shape:
            raise InputError(f"data must have shape [N, {', '.join(map(str, self.shape))}], got {list(x.shape)}")
        out: Tensor = self.layers(x.flatten(1))
        return out


class DenseDecoder(Architecture):
    """A vector to data of any shape: ``[..., in_features]`` to ``[..., *shape]``; the output is linear.

    Args:
        in_features: size of the vector.
        shape: of a datum.
        hidden: widths of the hidden layers.
        activation: name of the nonlinearity.
    """

    def __init__(
        self, in_features: int, shape: Sequence[int], hidden: Sequence[int] = (200, 200), activation: str = "relu"
    ) -> None:
        super().__init__()
        self.shape = datum_shape(shape)
        self.config = {
            "in_features": in_features,
            "shape": list(self.shape),
            "hidden": list(hidden),
            "activation": activation,
        }
        self.layers = MLP(in_features, hidden, math.prod(self.shape), activation)

    def forward(self, z: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., *shape]``."""
        flat: Tensor = self.layers(z)
        return flat.view(*flat.shape[:-1], *self.shape)


def datum_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """``shape`` as a tuple of whole numbers of at least 1."""
    if not isinstance(shape, list | tuple) or not shape:
        raise InputError(f"shape must be that of one datum, such as (1, 28, 28), got {shape!r}")
    require_positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    return tuple(shape)
