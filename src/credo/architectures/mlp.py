"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

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
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (50, 50),
        out_features: int = 1,
        activation: str = "relu",
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden, out_features]
        require_positive(in_features=in_features, out_features=out_features)
        require_positive(**{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        self.config = {
            "in_features": in_features,
            "hidden": list(hidden),
            "out_features": out_features,
            "activation": activation,
            "dropout": dropout,
        }
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for fan_in, fan_out in pairwise(widths[1:]):
            layers += [activation_layer(activation), *dropout_layers(dropout), nn.Linear(fan_in, fan_out)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        out: Tensor = self.layers(x)
        return out
