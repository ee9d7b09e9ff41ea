"""The score that every kind of prediction has."""

from __future__ import annotations

import torch
from torch import Tensor

from credo.metrics._statistics import mean
from credo.metrics._targets import Values, any_targets, by_row
from credo.predictive import Predictive


def nll(p: Predictive, y: Values) -> float:
    """The mean over rows of −log p(y) in nats: how surprised the prediction was by the targets; lower is better.

    A strictly proper score: only the true distribution makes it smallest. The outputs, pixels or tokens of a row count
    together, as in ``p.log_prob``, so it grows with their number. Densities depend on the unit of y: the values of two
    models compare, those of two data sets do not.

    Args:
        p: the prediction of B rows.
        y: their targets, in the shape ``p.log_prob`` takes.
    """
    return mean(row_nll(p, any_targets(p, y, "nll"))).value


@torch.no_grad()
def row_nll(p: Predictive, y: Tensor) -> Tensor:
    """−log p(y) of every row, ``[B]``."""
    return by_row(-p.log_prob(y))
