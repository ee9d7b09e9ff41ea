"""Scores as functions of weights on the rows.

A score is a functional of the empirical distribution of the rows, so it can be written as a function of their weights.
Weights of 1 give its value, the counts of a bootstrap resample give a replicate, and the gradient in the weights gives
its standard error. Rows are evaluated once, and a thousand replicates are a few matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_WEIGHTS = 2**22  # weights of targets held at once


@dataclass(frozen=True)
class Statistic:
    """A score of ``rows`` rows as a function of their weights.

    Attributes:
        rows: the number of rows.
        function: maps weights ``[R, rows]``, integers in float64, to scores ``[R]``.
    """

    rows: int
    function: Callable[[Tensor], Tensor]

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the score for every set of weights ``[R, rows]``, ``[R]``; NaN where it is undefined."""
        return self.function(weights)

    @property
    def unit_weights(self) -> Tensor:
        """Weights of 1, ``[1, rows]``."""
        return torch.ones(1, self.rows, dtype=torch.float64)

    @property
    def value(self) -> float:
        """The score itself, with all weights 1."""
        return float(self(self.unit_weights))

    def with_error(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score θ for every set of weights, and its standard error √(Σ_i w_i (∂θ/∂w_i)²), ``[R]`` each.

        The infinitesimal jackknife: the influence of row i on a function of N rows is N ∂θ/∂w_i (Jaeckel 1972).
        """
        weights = weights.detach().requires_grad_()
        with torch.enable_grad():
            values = self(weights)
            (slope,) = torch.autograd.grad(values.sum(), weights)
        return values.detach(), (weights.detach() * slope.square()).sum(1).sqrt()

    def on_rows(self, row: Tensor, rows: int) -> Statistic:
        """Return a statistic of targets as one of rows: target n has the weight of its row, ``row[n]``."""
        if self.rows == rows and torch.equal(row, torch.arange(rows)):
            return self
        size = max(_MAX_WEIGHTS // max(self.rows, 1), 1)
        return Statistic(rows, lambda weights: torch.cat([self(part[:, row]) for part in weights.split(size)]))


def mean(values: Tensor) -> Statistic:
    """The mean of ``values [B]``; infinite if a value with a positive weight is (0 · ∞ is NaN)."""
    infinite = values.isinf()
    finite = torch.where(infinite, 0.0, values)

    def function(weights: Tensor) -> Tensor:
        total = weights @ finite
        if bool(infinite.any()):
            total = torch.where(weights @ infinite.double() > 0, torch.inf, total)
        return total / weights.sum(1)

    return Statistic(len(values), function)


def root_mean(squares: Tensor) -> Statistic:
    """√ of the mean of ``squares [B]``."""
    inner = mean(squares)
    return Statistic(len(squares), lambda weights: inner(weights).sqrt())


def explained_variance(squared_error: Tensor, y: Tensor) -> Statistic:
    """1 − Σ (error)² / Σ (y − ȳ)², for ``squared_error [B]`` averaged over the outputs ``y [B, D]``.

    NaN if all rows with a positive weight are equal.
    """
    centered = y - y.mean(0)

    def function(weights: Tensor) -> Tensor:
        rows = weights.sum(1, keepdim=True)
        square = (weights @ centered.square() / rows).mean(1)
        variance = square - (weights @ centered / rows).square().mean(1)
        residual = weights @ squared_error / rows.squeeze(1)
        # The variance of equal targets is rounding error, about 1e-16 of the square.
        return torch.where(variance > 1e-12 * square, 1 - residual / variance, torch.nan)

    return Statistic(len(y), function)


def mean_absolute_deviation(values: Tensor, nominal: Tensor) -> Statistic:
    """The mean over k of |mean_b values[b, k] − nominal[k]|, for ``values [B, K]``."""

    def function(weights: Tensor) -> Tensor:
        return (weights @ values / weights.sum(1, keepdim=True) - nominal).abs().mean(1)

    return Statistic(len(values), function)


def binned_gap(gap: Tensor, index: Tensor, bins: int, centered: bool = False) -> Statistic:
    """Σ_k |Σ_{n in bin k} gap_n| / N, for ``gap [N]`` in the bins ``index [N]``; with each sum centered if asked."""
    members = torch.nn.functional.one_hot(index, bins) * gap[:, None]
    center = members.mean(0) if centered else torch.zeros(bins, dtype=gap.dtype)

    def function(weights: Tensor) -> Tensor:
        return (weights @ members / weights.sum(1, keepdim=True) - center).abs().sum(1)

    return Statistic(len(gap), function)


def auroc(score: Tensor, positive: Tensor) -> Statistic:
    """P(a positive row scores above a negative one) + ½ P(equal), the area under the ROC curve; NaN for one class.

    With P and N the total weight of positive and negative rows with scores up to s, it is ∫ N dP / (P_∞ N_∞); equal
    scores are one step of both, along which the curve is linear.
    """
    up_to = _Cumulative(score)
    positive = positive.double()

    def function(weights: Tensor) -> Tensor:
        hits, alarms = up_to(weights * positive), up_to(weights * (1 - positive))
        return torch.trapezoid(alarms, hits) / (hits[:, -1] * alarms[:, -1])

    return Statistic(len(score), function)


def aurc(loss: Tensor, uncertainty: Tensor) -> Statistic:
    """(1/N) Σ_k E[mean loss of the k most certain rows], the expectation over the order of equally certain ones.

    For a group of c equally uncertain rows of mean loss l, after n rows of total loss L, the sum over the group is

        Σ_{k=n+1}^{n+c} (L + (k − n) l)/k = c l + (L − n l)(H_{n+c} − H_n),

    with the harmonic numbers H_n = ψ(n + 1) + const. A row resampled c times is such a group.
    """
    up_to = _Cumulative(uncertainty)

    def function(weights: Tensor) -> Tensor:
        rows, losses = up_to(weights), up_to(weights * loss)
        count, total = rows.diff(), losses.diff()
        average = total / count.clamp(min=1)
        harmonic = torch.digamma(rows + 1).diff()
        return (total + (losses[:, :-1] - rows[:, :-1] * average) * harmonic).sum(1) / rows[:, -1]

    return Statistic(len(loss), function)


class _Cumulative:
    """Cumulative weights up to each distinct score, ``[R, N]`` to ``[R, G + 1]``, starting at 0."""

    def __init__(self, score: Tensor) -> None:
        self.order = score.argsort()
        counts = torch.unique(score, return_counts=True)[1]
        self.ends = counts.cumsum(0) - 1

    def __call__(self, weights: Tensor) -> Tensor:
        cumulative = weights[:, self.order].cumsum(1)[:, self.ends]
        return torch.nn.functional.pad(cumulative, (1, 0))
