"""Answering only where one is certain: what does it cost, what does it gain?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError
from credo.metrics import _statistics
from credo.metrics._targets import Values, score_vector


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """``risk[k]`` is the mean loss of the share ``coverage[k]`` of the rows that are most certain; both ``[N]``."""

    coverage: Tensor
    risk: Tensor


def risk_coverage(loss: Values, uncertainty: Values) -> RiskCoverage:
    """The mean loss of the k most certain rows, for k from 1 to N (El-Yaniv & Wiener 2010).

    Equally uncertain rows have no order; the risk is the mean over all their orders, so it does not depend on the one
    in which they are given.

    Args:
        loss: of every row, ``[N]``: 0 or 1 for right and wrong, a squared error, …
        uncertainty: of every row, ``[N]``.

    References:
        R. El-Yaniv, Y. Wiener. On the foundations of noise-free selective classification. JMLR 2010.
    """
    losses, uncertainties = _checked(loss, uncertainty)
    _, group, counts = uncertainties.unique(return_inverse=True, return_counts=True)
    expected = (torch.bincount(group, losses) / counts).repeat_interleave(counts)
    rows = torch.arange(1, len(losses) + 1, dtype=torch.float64)
    return RiskCoverage(rows / len(losses), expected.cumsum(0) / rows)


def aurc(loss: Values, uncertainty: Values) -> float:
    """The area under the risk–coverage curve, (1/N) Σ_k risk_k (Geifman et al. 2019); lower is better.

    The mean of ``risk_coverage(loss, uncertainty).risk``. An uncertainty that says nothing gives the mean loss.

    Args:
        loss: of every row, ``[N]``.
        uncertainty: of every row, ``[N]``.

    References:
        Y. Geifman, G. Uziel, R. El-Yaniv. Bias-reduced uncertainty estimation for deep neural classifiers. ICLR 2019.
    """
    return _statistics.aurc(*_checked(loss, uncertainty)).value


def _checked(loss: Values, uncertainty: Values) -> tuple[Tensor, Tensor]:
    losses, uncertainties = score_vector(loss, "loss"), score_vector(uncertainty, "uncertainty")
    if len(losses) != len(uncertainties):
        raise InputError(
            f"loss and uncertainty must have one number for each row, got {len(losses)} and {len(uncertainties)}."
        )
    return losses, uncertainties
