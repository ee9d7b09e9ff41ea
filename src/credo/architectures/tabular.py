"""A network for the encoded columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo._arguments import check_integer
from credo.architectures._base import Architecture
from credo.architectures.dense import MLP


class PiecewiseLinear(nn.Module):
    r"""Piecewise linear encoding of numbers: how far each has passed through each of some bins.

    For a feature with knots t₀ < … < t_B, bin b of a value x is

    .. math:: e_b(x) = \min(\max((x - t_{b-1}) / (t_b - t_{b-1}), 0), 1),

    so that a linear layer after it is any continuous function of x that is linear between the knots. A network can
    then fit steps and thresholds as easily as a tree can. Maps ``[..., D]`` to ``[..., F·B]``.

    Args:
        features: F, the number of features that are encoded.
        bins: B, the number of bins of each.

    Attributes:
        columns: the positions of the encoded features ``[F]``.
        start: t₀ … t_{B−1} of each feature ``[F, B]``.
        slope: 1/(t_b − t_{b−1}) ``[F, B]``; 0 for a bin without width, which is 0 for every value.

    Example:
        >>> encoding = PiecewiseLinear(1, 2)
        >>> encoding.fit(torch.tensor([[0.0], [1.0], [2.0]]), [0])
        >>> encoding(torch.tensor([[0.5], [3.0]]))
        tensor([[0.5000, 0.0000],
                [1.0000, 1.0000]])

    Reference: Y. Gorishniy, I. Rubachev, A. Babenko, "On embeddings for numerical features in tabular deep learning",
    NeurIPS 2022.
    """

    columns: Tensor
    start: Tensor
    slope: Tensor

    def __init__(self, features: int, bins: int) -> None:
        super().__init__()
        self.register_buffer("columns", torch.zeros(features, dtype=torch.int64))
        self.register_buffer("start", torch.zeros(features, bins))
        self.register_buffer("slope", torch.zeros(features, bins))

    @torch.no_grad()
    def fit(self, x: Tensor, columns: Sequence[int]) -> None:
        """Set the knots to quantiles of data, such that bins hold about equally many values.

        Args:
            x: data ``[N, D]``.
            columns: the positions of the F features to encode.
        """
        if not len(columns):
            return
        bins = self.start.shape[1]
        levels = torch.linspace(0.0, 1.0, bins + 1, dtype=x.dtype, device=x.device)
        knots = torch.quantile(x[:, list(columns)], levels, dim=0).T
        width = knots.diff(dim=1)
        self.columns.copy_(torch.tensor(list(columns)))
        self.start.copy_(knots[:, :-1])
        self.slope.copy_(torch.where(width > 0, 1.0 / width, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Encode numbers.

        Args:
            x: numbers ``[..., D]``.

        Returns:
            Codes between 0 and 1 ``[..., F·B]``.
        """
        passed = (x.index_select(-1, self.columns).unsqueeze(-1) - self.start) * self.slope
        return passed.clamp(0.0, 1.0).flatten(-2)


class TabularMLP(Architecture):
    """A linear function of the features of a table, plus a multilayer perceptron on their piecewise linear codes.

    Maps ``[..., in_features]`` to ``[..., out_features]``. Outside the range of the data the codes are constant.

    Args:
        in_features: number of features D.
        hidden: widths of the hidden layers.
        out_features: size of the last output dimension.
        activation: name of the activation between layers, such as ``"relu"``.
        encoded: F, the number of features that have codes beside their value.
        bins: B, the number of codes of each.

    Raises:
        InputError: if a size is not an integer of at least 1, or the activation is unknown.

    Example:
        >>> net = TabularMLP(3, (64, 64), 2, encoded=2, bins=8)
        >>> net.encoding.fit(torch.randn(100, 3), columns=[0, 2])
        >>> net(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (64, 64),
        out_features: int = 1,
        activation: str = "relu",
        encoded: int = 0,
        bins: int = 8,
    ) -> None:
        encoded, bins = check_integer(encoded, "encoded", 0), check_integer(bins, "bins", 1)
        super().__init__(
            in_features=in_features,
            hidden=tuple(hidden),
            out_features=out_features,
            activation=activation,
            encoded=encoded,
            bins=bins,
        )
        self.encoding = PiecewiseLinear(encoded, bins)
        self.perceptron = MLP(in_features + encoded * bins, hidden, out_features, activation)
        self.linear = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network.

        Args:
            x: features ``[..., in_features]``.

        Returns:
            Outputs ``[..., out_features]``.
        """
        codes = torch.cat([x, self.encoding(x)], -1) if self.config["encoded"] else x
        out: Tensor = self.perceptron(codes) + self.linear(x)
        return out
