"""Fully connected encoders, decoders and generators: images and tables to a vector and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from credo.architectures._base import Architecture, activation_layer, require_positive, require_shape
from credo.architectures.mlp import MLP
from credo.errors import InputError, unknown_name

_RANGES = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}


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
        require_shape(x, self.shape, "data")
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


class DenseGenerator(Architecture):
    """Noise ``[B, latent]`` to data ``[B, *shape]`` of a bounded range, for a game against a discriminator.

    Batch norm and a ReLU after every hidden layer: without batch norm the images hardly depend on the noise at first,
    and a generator whose images are all alike tends to stay so.

    Args:
        latent: the dimension of the noise.
        shape: of a datum.
        hidden: widths of the hidden layers.
        output: ``"sigmoid"`` for data between 0 and 1, ``"tanh"`` for data between −1 and 1.
    """

    def __init__(
        self, latent: int, shape: Sequence[int], hidden: Sequence[int] = (256, 256), output: str = "sigmoid"
    ) -> None:
        super().__init__()
        if output not in _RANGES:
            raise unknown_name("output", output, _RANGES)
        self.shape, self.output_range = datum_shape(shape), _RANGES[output]
        require_positive(latent=latent, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        self.config = {"latent": latent, "shape": list(self.shape), "hidden": list(hidden), "output": output}
        layers: list[nn.Module] = []
        for before, after in pairwise([latent, *hidden]):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        last = nn.Linear([latent, *hidden][-1], math.prod(self.shape))
        self.layers = nn.Sequential(*layers, last, nn.Unflatten(1, self.shape), activation_layer(output))

    def forward(self, z: Tensor) -> Tensor:
        """``[B, latent]`` to ``[B, *shape]``."""
        data: Tensor = self.layers(z)
        return data


def datum_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """``shape`` as a tuple of integer of at least 1."""
    if not isinstance(shape, list | tuple) or not shape:
        raise InputError(f"shape must be that of one datum, such as (1, 28, 28), got {shape!r}")
    require_positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    return tuple(shape)
