"""Ratios of gamma functions, accurate where the functions themselves are so large that their difference is lost."""

from __future__ import annotations

import torch
from torch import Tensor

_STIRLING_FROM = 16.0
"""Where the first term that the series leaves out, 691/360360 x⁻¹¹, is below a rounding error of float64."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)


def log_rising(start: Tensor, steps: Tensor) -> Tensor:
    """log Γ(x + n) − log Γ(x) for x > 0 and n ≥ 0: the log of x(x+1)…(x+n−1) for a whole n.

    For a large x both terms are Stirling's series, whose leading parts are subtracted on paper:

        (x − ½) log(1 + n/x) + n log(x + n) − n + r(x + n) − r(x)
    """
    large = start.clamp(min=_STIRLING_FROM)
    end = large + steps
    leading = (large - 0.5) * torch.log1p(steps / large) + steps * end.log() - steps
    series = leading + _stirling_remainder(end) - _stirling_remainder(large)
    return torch.where(start < _STIRLING_FROM, torch.lgamma(start + steps) - torch.lgamma(start), series)


def log_sequence_probability(concentration: Tensor, counts: Tensor) -> Tensor:
    """The log probability of a sequence of draws with these counts, its distribution integrated out over a Dirichlet.

    log ∫ ∏ₖ μₖ^mₖ Dir(μ | α) dμ = Σₖ [log Γ(αₖ + mₖ) − log Γ(αₖ)] − [log Γ(Σα + Σm) − log Γ(Σα)]

    Args:
        concentration: α, ``[..., K]``.
        counts: m, ``[..., K]``.
    """
    separate = log_rising(concentration, counts).sum(-1)
    return separate - log_rising(concentration.sum(-1), counts.sum(-1))


def log_multinomial_coefficient(counts: Tensor) -> Tensor:
    """log (Σm)! / ∏ₖ mₖ!, the number of sequences with the counts ``[..., K]``; the largest factorial is cancelled."""
    ascending = counts.sort(-1).values
    others, largest = ascending[..., :-1], ascending[..., -1]
    return log_rising(largest + 1.0, others.sum(-1)) - torch.lgamma(others + 1.0).sum(-1)


def _stirling_remainder(x: Tensor) -> Tensor:
    """r(x) = log Γ(x) − [(x − ½) log x − x + ½ log 2π]."""
    inverse, total = x.reciprocal(), torch.zeros_like(x)
    for coefficient in reversed(_STIRLING):
        total = total * inverse.square() + coefficient
    return total * inverse
