"""Fully connected networks: the multilayer perceptron, and encoders, decoders and generators built from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from credo._arguments import check_integer, check_option
from credo.architectures._base import Architecture, activation_layer, check_rows, check_sizes, dropout_layers
from credo.errors import InputError

_OUTPUT_RANGES = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}


class MLP(Architecture):
    """A multilayer perceptron on the last dimension of its input.

    Maps ``[..., in_features]`` to ``[..., out_features + constants]``; the output layer is linear.

    Args:
        in_features: size of the last input dimension.
        hidden: widths of the hidden layers; empty for a linear model.
        out_features: size of the last output dimension.
        activation: name of the activation between layers, such as ``"relu"``, ``"tanh"`` or ``"silu"``.
        dropout: drop rate of an ``nn.Dropout`` before each weight layer except the first (dropout of the inputs would
            drop whole features of a table); ``None`` for no dropout.
        skip: whether to add a linear layer from the input to the output, so that the hidden layers fit the residuals of
            a linear model.
        constants: number of additional outputs, after the ``out_features``, that are learned constants, the same for
            every row: such as the log variance of homoscedastic noise.

    Raises:
        InputError: if a size is not an integer of at least 1, or the activation is unknown.

    Example:
        >>> import torch
        >>> MLP(3, (50, 50), 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (50, 50),
        out_features: int = 1,
        activation: str = "relu",
        dropout: float | None = None,
        skip: bool = False,
        constants: int = 0,
    ) -> None:
        in_features = check_integer(in_features, "in_features", 1)
        out_features = check_integer(out_features, "out_features", 1)
        hidden = check_sizes(hidden, "hidden")
        constants = check_integer(constants, "constants", 0)
        super().__init__(
            in_features=in_features,
            hidden=hidden,
            out_features=out_features,
            activation=activation,
            dropout=dropout,
            skip=skip,
            constants=constants,
        )
        widths = [in_features, *hidden, out_features]
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for fan_in, fan_out in pairwise(widths[1:]):
            layers += [activation_layer(activation), *dropout_layers(dropout), nn.Linear(fan_in, fan_out)]
        self.layers = nn.Sequential(*layers)
        self.skip = nn.Linear(in_features, out_features, bias=False) if skip else None
        self.constants = Constants(constants) if constants else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network.

        Args:
            x: inputs ``[..., in_features]``.

        Returns:
            Outputs ``[..., out_features + constants]``.
        """
        out: Tensor = self.layers(x)
        if self.skip is not None:
            out = out + self.skip(x)
        if self.constants is not None:
            out = torch.cat([out, self.constants.weight.expand(*out.shape[:-1], -1)], -1)
        return out


class Constants(nn.Module):
    """Learned numbers, initially 0."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the numbers to 0."""
        nn.init.zeros_(self.weight)


class DenseEncoder(Architecture):
    """A fully connected encoder from data of any shape to a vector.

    Maps ``[B, *shape]`` to ``[B, out_features]``.

    Args:
        shape: shape of a datum, such as (1, 28, 28).
        out_features: size of the vector; twice the latent size for a Gaussian posterior.
        hidden: widths of the hidden layers.
        activation: name of the activation.

    Raises:
        InputError: if a size is not an integer of at least 1, or the activation is unknown.

    Example:
        >>> import torch
        >>> DenseEncoder((1, 8, 8), 4)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, shape: Sequence[int], out_features: int, hidden: Sequence[int] = (200, 200), activation: str = "relu"
    ) -> None:
        shape, hidden = datum_shape(shape), check_sizes(hidden, "hidden")
        out_features = check_integer(out_features, "out_features", 1)
        super().__init__(shape=shape, out_features=out_features, hidden=hidden, activation=activation)
        self.shape = shape
        self.layers = MLP(math.prod(shape), hidden, out_features, activation)

    def forward(self, x: Tensor) -> Tensor:
        """Encode data.

        Args:
            x: data ``[B, *shape]``.

        Returns:
            Vectors ``[B, out_features]``.

        Raises:
            InputError: if the shape of the data does not match.
        """
        check_rows(x, self.shape, "data")
        out: Tensor = self.layers(x.flatten(1))
        return out


class DenseDecoder(Architecture):
    """A fully connected decoder from a vector to data of any shape.

    Maps ``[..., in_features]`` to ``[..., *shape]``; the output layer is linear.

    Args:
        in_features: size of the vector.
        shape: shape of a datum, such as (1, 28, 28).
        hidden: widths of the hidden layers.
        activation: name of the activation.

    Raises:
        InputError: if a size is not an integer of at least 1, or the activation is unknown.

    Example:
        >>> import torch
        >>> DenseDecoder(2, (1, 8, 8))(torch.zeros(5, 2)).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self, in_features: int, shape: Sequence[int], hidden: Sequence[int] = (200, 200), activation: str = "relu"
    ) -> None:
        shape, hidden = datum_shape(shape), check_sizes(hidden, "hidden")
        in_features = check_integer(in_features, "in_features", 1)
        super().__init__(in_features=in_features, shape=shape, hidden=hidden, activation=activation)
        self.shape = shape
        self.layers = MLP(in_features, hidden, math.prod(shape), activation)

    def forward(self, z: Tensor) -> Tensor:
        """Decode vectors.

        Args:
            z: vectors ``[..., in_features]``.

        Returns:
            Data ``[..., *shape]``.
        """
        flat: Tensor = self.layers(z)
        return flat.view(*flat.shape[:-1], *self.shape)


class DenseGenerator(Architecture):
    """A fully connected generator for a GAN, from noise to data of a bounded range.

    Maps ``[B, latent]`` to ``[B, *shape]``, with batch norm and a ReLU after every hidden layer. Without batch norm the
    images hardly depend on the noise at first, and such a generator tends to collapse.

    Args:
        latent: dimension of the noise.
        shape: shape of a datum, such as (1, 28, 28).
        hidden: widths of the hidden layers.
        output: ``"sigmoid"`` for data between 0 and 1, ``"tanh"`` for data between −1 and 1.

    Raises:
        InputError: if a size is not an integer of at least 1, or the output is unknown.

    Example:
        >>> import torch
        >>> DenseGenerator(16, (1, 8, 8))(torch.randn(5, 16)).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self, latent: int, shape: Sequence[int], hidden: Sequence[int] = (256, 256), output: str = "sigmoid"
    ) -> None:
        check_option(output, "output", _OUTPUT_RANGES)
        latent = check_integer(latent, "latent", 1)
        shape, hidden = datum_shape(shape), check_sizes(hidden, "hidden")
        super().__init__(latent=latent, shape=shape, hidden=hidden, output=output)
        self.shape, self.output_range = shape, _OUTPUT_RANGES[output]
        layers: list[nn.Module] = []
        for before, after in pairwise([latent, *hidden]):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        last = nn.Linear([latent, *hidden][-1], math.prod(shape))
        self.layers = nn.Sequential(*layers, last, nn.Unflatten(1, shape), activation_layer(output))

    def forward(self, z: Tensor) -> Tensor:
        """Generate data.

        Args:
            z: noise ``[B, latent]``.

        Returns:
            Data ``[B, *shape]``.
        """
        data: Tensor = self.layers(z)
        return data


def datum_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of integers of at least 1."""
    if not isinstance(shape, list | tuple) or not shape:
        raise InputError(f"shape must be that of one datum, such as (1, 28, 28), got {shape!r}")
    return check_sizes(shape, "shape")
