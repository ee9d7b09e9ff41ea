"""Scores of predictive distributions for ``tables.py``, and the comparison of methods over many tables.

For quantities: NLL, CRPS, RMSE, and the coverage and mean width of central intervals. A count has the probability of
its integer: under a continuous distribution that of the interval [k − ½, k + ½], and never less than 10⁻¹². For
classes: NLL, accuracy, Brier score and ECE, all of ``credo.metrics``.

References:
    J. Demšar. Statistical comparisons of classifiers over multiple data sets. JMLR 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from credo import metrics
from credo.predictive import Interval, Predictive
from credo.predictive.counts import CountComponents

LEVELS = (0.5, 0.8, 0.95)
SMALLEST_MASS = 1e-12
MAX_DENSITY = 10.0
CRPS_LEVELS = 400


class Distribution(Protocol):
    """What is scored of a prediction, of ``credo.Predictive`` or of quantiles."""

    @property
    def mean(self) -> torch.Tensor: ...

    def log_prob(self, y: torch.Tensor) -> torch.Tensor: ...

    def cdf(self, y: torch.Tensor) -> torch.Tensor: ...

    def interval(self, level: float = ...) -> Interval: ...


@dataclass(frozen=True)
class QuantileDistribution:
    """A density from quantiles: constant between them, and with exponential tails.

    The tails begin at the outermost quantiles, with the scale of an exponential through these and the quartiles: two
    neighboring quantiles that happen to be close would make them too thin. Quantiles that (nearly) coincide are moved
    apart so far that the density between them is at most 10 over the standard deviation of the training targets. The
    density integrates to 1.

    Attributes:
        levels: increasing probabilities, ``[L]``.
        quantiles: ``[L, B]``.
        expectation: the mean, ``[B]``.
        scale: the standard deviation of the training targets.
    """

    levels: NDArray[np.float64]
    quantiles: NDArray[np.float64]
    expectation: NDArray[np.float64]
    scale: float

    @property
    def mean(self) -> torch.Tensor:
        """The expectation, ``[B]``."""
        return torch.from_numpy(self.expectation)

    @cached_property
    def knots(self) -> NDArray[np.float64]:
        """The quantiles, increasing and not too close to each other, ``[L, B]``."""
        gaps = np.maximum(np.diff(self.quantiles, axis=0), np.diff(self.levels)[:, None] * self.scale / MAX_DENSITY)
        middle = len(self.levels) // 2
        steps = np.concatenate([np.zeros((1, gaps.shape[1])), np.cumsum(gaps, axis=0)])
        found: NDArray[np.float64] = self.quantiles[middle] + steps - steps[middle]
        return found

    @cached_property
    def _tails(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scales of both exponential tails, ``[B]`` each."""
        lower, upper = (int(np.abs(self.levels - level).argmin()) for level in (0.25, 0.75))
        low = (self.knots[lower] - self.knots[0]) / np.log(self.levels[lower] / self.levels[0])
        high = (self.knots[-1] - self.knots[upper]) / np.log((1.0 - self.levels[upper]) / (1.0 - self.levels[-1]))
        return low, high

    def _sections(self, y: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The section between knots that each target is in or next to, where it begins, and the density there."""
        section = np.clip((y[None] >= self.knots).sum(0) - 1, 0, len(self.knots) - 2)
        columns = np.arange(len(y))
        start = self.knots[section, columns]
        return section, start, np.diff(self.levels)[section] / (self.knots[section + 1, columns] - start)

    def log_prob(self, y: torch.Tensor) -> torch.Tensor:
        """The log density of every target, ``[B]``."""
        values, (low, high) = y.numpy(), self._tails
        inside = np.log(self._sections(values)[2])
        below = np.log(self.levels[0] / low) + (values - self.knots[0]) / low
        above = np.log((1.0 - self.levels[-1]) / high) - (values - self.knots[-1]) / high
        found = np.where(values < self.knots[0], below, np.where(values >= self.knots[-1], above, inside))
        return torch.from_numpy(found)

    def cdf(self, y: torch.Tensor) -> torch.Tensor:
        """P(Y ≤ y), ``[B]``."""
        values, (low, high) = y.numpy(), self._tails
        section, start, density = self._sections(values)
        inside = self.levels[section] + density * (values - start)
        below = self.levels[0] * np.exp(np.minimum(values - self.knots[0], 0.0) / low)
        above = 1.0 - (1.0 - self.levels[-1]) * np.exp(-np.maximum(values - self.knots[-1], 0.0) / high)
        found = np.where(values < self.knots[0], below, np.where(values >= self.knots[-1], above, inside))
        return torch.from_numpy(found)

    def quantile(self, q: float) -> torch.Tensor:
        """The inverse of ``cdf``, ``[B]``."""
        low, high = self._tails
        if q < self.levels[0]:
            return torch.from_numpy(self.knots[0] + low * np.log(q / self.levels[0]))
        if q > self.levels[-1]:
            return torch.from_numpy(self.knots[-1] - high * np.log((1.0 - q) / (1.0 - self.levels[-1])))
        i = min(int(np.searchsorted(self.levels, q, side="right")) - 1, len(self.levels) - 2)
        share = (q - self.levels[i]) / (self.levels[i + 1] - self.levels[i])
        return torch.from_numpy((1.0 - share) * self.knots[i] + share * self.knots[i + 1])

    def interval(self, level: float = 0.95) -> Interval:
        """The central interval."""
        return Interval(self.quantile((1.0 - level) / 2.0), self.quantile((1.0 + level) / 2.0))

    def crps(self, y: torch.Tensor) -> float:
        """CRPS = 2 ∫ ρ_τ(y − q_τ) dτ, ρ_τ the pinball loss, by the midpoint rule at 400 levels."""
        total = 0.0
        for tau in (np.arange(CRPS_LEVELS) + 0.5) / CRPS_LEVELS:
            error = y - self.quantile(float(tau))
            total += 2.0 * float(torch.maximum(tau * error, (tau - 1.0) * error).mean())
        return total / CRPS_LEVELS


def log_score(p: Distribution, y: torch.Tensor, counts: bool) -> float:
    """The mean log density, or log probability of counts."""
    if not counts:
        return float(p.log_prob(y).mean())
    if isinstance(p, Predictive) and isinstance(p.components, CountComponents):
        return float(p.log_prob(y).clamp(min=float(np.log(SMALLEST_MASS))).mean())
    mass = p.cdf(y + 0.5) - p.cdf(y - 0.5)
    return float(mass.clamp(min=SMALLEST_MASS).log().mean())


def score(p: Distribution, target: NDArray[Any], task: str) -> dict[str, float]:
    """All scores of a prediction of new rows."""
    y = torch.from_numpy(target)
    if task == "classes":
        assert isinstance(p, Predictive)
        return {
            "nll": metrics.nll(p, y),
            "accuracy": metrics.accuracy(p, y),
            "brier": metrics.brier(p, y),
            "ece": metrics.ece(p, y),
        }
    p = p.double() if isinstance(p, Predictive) else p
    found = {"nll": -log_score(p, y, task == "counts"), "rmse": float((p.mean - y).square().mean().sqrt())}
    found["crps"] = p.crps(y) if isinstance(p, QuantileDistribution) else metrics.crps(p, y)  # type: ignore[arg-type]
    for level in LEVELS:
        interval = p.interval(level)
        inside = (y >= interval.lower) & (y <= interval.upper)
        found[f"coverage_{100 * level:.0f}"] = float(inside.double().mean())
        found[f"width_{100 * level:.0f}"] = float((interval.upper - interval.lower).mean())
    return found


@dataclass(frozen=True)
class Comparison:
    """Mean ranks of methods over tables.

    Attributes:
        ranks: the mean rank by method, the best first.
        tables: the number of tables N.
        p_value: of Friedman's test that all methods are alike.
        critical_difference: of Nemenyi's test at 5 %: q √(k(k + 1) / 6N).
    """

    ranks: dict[str, float]
    tables: int
    p_value: float
    critical_difference: float


def compare(values: dict[str, list[float]]) -> Comparison:
    """Rank methods by a score whose lower values are better; a failed fit, NaN, ranks last.

    Args:
        values: a value for each of the same tables, by method.
    """
    scores = np.nan_to_num(np.array(list(values.values())).T, nan=np.inf, posinf=np.inf)
    count, methods = scores.shape
    ranks = stats.rankdata(scores, axis=1).mean(0)
    order = np.argsort(ranks)
    q = float(stats.studentized_range.ppf(0.95, methods, np.inf)) / np.sqrt(2.0)
    p_value = float(stats.friedmanchisquare(*stats.rankdata(scores, axis=1).T).pvalue) if methods > 2 else float("nan")
    names = list(values)
    return Comparison(
        {names[i]: float(ranks[i]) for i in order},
        count,
        p_value,
        q * float(np.sqrt(methods * (methods + 1) / (6.0 * count))),
    )
