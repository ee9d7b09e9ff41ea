"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from credo._arguments import check_integer
from credo.architectures._base import Architecture, activation_layer, dropout_layers, require_positive


class MLP(Architecture):
    """A multilayer perceptron on the last dimension of its input.

    Maps ``[..., in_features]`` to ``[..., out_features]``; the output is linear.

    Args:
        in_features: size of the last input dimension.
        hidden: widths of the hidden layers; empty for a linear model.
        out_features: size of the last output dimension.
        activation: name of the nonlinearity between layers, such as ``"relu"``, ``"tanh"`` or ``"silu"``.
        dropout: drop rate of an ``nn.Dropout`` before each weight layer but the first (dropping the inputs of a
            small table would throw whole features away); ``None`` for none.
        skip: whether a linear layer from the input straight to the output is added, so that the hidden layers learn
            what a straight line leaves over.
        constants: number of further outputs, after the ``out_features``, that are one learned number each, the same
            for every row: such as the log variance of a noise that does not vary.
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
        super().__init__()
        widths = [in_features, *hidden, out_features]
        require_positive(in_features=in_features, out_features=out_features)
        check_integer(constants, "constants", 0)
        require_positive(**{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        self.config = {
            "in_features": in_features,
            "hidden": list(hidden),
            "out_features": out_features,
            "activation": activation,
            "dropout": dropout,
            "skip": skip,
            "constants": constants,
        }
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for fan_in, fan_out in pairwise(widths[1:]):
            layers += [activation_layer(activation), *dropout_layers(dropout), nn.Linear(fan_in, fan_out)]
        self.layers = nn.Sequential(*layers)
        self.skip = nn.Linear(in_features, out_features, bias=False) if skip else None
        self.constants = Constants(constants) if constants else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features + constants]``."""
        out: Tensor = self.layers(x)
        if self.skip is not None:
            out = out + self.skip(x)
        if self.constants is not None:
            out = torch.cat([out, self.constants.weight.expand(*out.shape[:-1], -1)], -1)
        return out


class Constants(nn.Module):
    """Learned numbers that start at 0."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to 0."""
        nn.init.zeros_(self.weight)
