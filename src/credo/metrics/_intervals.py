"""95 % confidence intervals of scores over the choice of test rows, one method per kind of score.

The percentile bootstrap is accurate for many rows only. For a coverage of 10 of 10 targets it gives [1, 1]; and it
places a calibration error whose true value is 0 above 0 in every case.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from credo.metrics._statistics import Statistic

TAIL = 0.025  # probability beyond each end


class Bounds(NamedTuple):
    """The ends of an interval; NaN if there are too few rows."""

    lower: float
    upper: float


UNKNOWN = Bounds(math.nan, math.nan)


@dataclass(frozen=True)
class ScoreInterval(ABC):
    """The confidence interval of a score.

    Attributes:
        statistic: the score as a function of weights on the rows.
    """

    statistic: Statistic

    def replicates(self, weights: Tensor) -> Tensor:
        """Return the K quantities of each resample that the interval needs, ``[R, K]``; none by default."""
        return weights.new_empty(len(weights), 0)

    @abstractmethod
    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """Return the interval of the score ``value``, from the replicates of all resamples, ``[R, K]``."""


@dataclass(frozen=True)
class BinomialInterval(ScoreInterval):
    """The exact binomial interval of a fraction of targets (Clopper & Pearson 1934).

    It contains the true fraction in at least 95 % of cases, for any fraction and any number of rows. The targets of one
    row (pixels, tokens, outputs) are not independent: their effective number is p(1 − p)/v, v the variance of the
    fraction over rows (Korn & Graubard 1998), or one per row if all are right or all wrong.

    Attributes:
        targets: the number of targets in all rows.
        filled: the number of rows with at least one target.

    References:
        C. J. Clopper, E. S. Pearson. The use of confidence or fiducial limits illustrated in the case of the binomial.
        Biometrika 1934.
        E. L. Korn, B. I. Graubard. Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data. Survey Methodology 1998.
    """

    targets: int
    filled: int

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """By quantiles of beta distributions, which allow a fractional number of targets."""
        from scipy.stats import beta

        count = self._effective_count(value)
        hits, misses = value * count, (1 - value) * count
        lower = float(beta.ppf(TAIL, hits, misses + 1)) if hits > 0 else 0.0
        upper = float(beta.ppf(1 - TAIL, hits + 1, misses)) if misses > 0 else 1.0
        return Bounds(lower, upper)

    def _effective_count(self, value: float) -> float:
        from scipy.stats import t

        if self.targets == self.filled or self.filled < 2 or not 0 < value < 1:
            return self.filled
        _, error = self.statistic.with_error(self.statistic.unit_weights)
        freedom = t.ppf(1 - TAIL, self.targets - 1) / t.ppf(1 - TAIL, self.filled - 1)
        count = value * (1 - value) / error.square() * freedom**2
        return min(float(count), self.targets)


class ScoreTransform(NamedTuple):
    """An increasing or decreasing transformation of a score, its inverse and its derivative."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[float], float]
    derivative: Callable[[Tensor], Tensor]


IDENTITY = ScoreTransform(lambda x: x, lambda x: x, torch.ones_like)
LOG = ScoreTransform(torch.log, math.exp, torch.reciprocal)
LOG_COMPLEMENT = ScoreTransform(  # for scores up to 1
    lambda x: torch.log1p(-x), lambda x: -math.expm1(x), lambda x: -1 / (1 - x)
)


@dataclass(frozen=True)
class StudentizedInterval(ScoreInterval):
    """The studentized bootstrap (bootstrap-t) interval of a mean, or of a smooth function of means.

    With standard errors s by the infinitesimal jackknife, of the score θ̂ and of every replicate θ*, and the quantiles t
    of (θ* − θ̂)/s*, the interval is [θ̂ − t_{0.975} s, θ̂ − t_{0.025} s]. It accounts for the skewness of the rows and for
    the error of s (Efron & Tibshirani 1993, chapter 12). A transformation to an unbounded scale keeps ends in range.

    The interval is unknown (NaN) for one row, and if the score is undefined in more than one of twenty resamples. Two
    or three rows are equal in so many resamples that an end is infinite. If all rows are equal, the interval is a
    point. An infinite score has the percentile interval.

    Attributes:
        transform: to the scale on which differences are taken.
        minimum: the lower bound of the score.
        maximum: the upper bound of the score.
    """

    transform: ScoreTransform = IDENTITY
    minimum: float = -math.inf
    maximum: float = math.inf

    def replicates(self, weights: Tensor) -> Tensor:
        """The score and its standard error, ``[R, 2]``."""
        return torch.stack(self.statistic.with_error(weights), 1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """θ̂ − ts on the transformed scale, and back."""
        defined = ~replicates[:, 0].isnan()
        if self.statistic.rows < 2 or math.isnan(value) or float(defined.double().mean()) < 1 - 2 * TAIL:
            return UNKNOWN
        values, errors = replicates[defined].unbind(1)
        if not math.isfinite(value):
            return Bounds(*(_order_statistic(values, q) for q in (TAIL, 1 - TAIL)))
        of_all, error = self.statistic.with_error(self.statistic.unit_weights)
        if not float(error) > 1e-12 * abs(value):  # rows that are equal to rounding
            return Bounds(value, value)
        center, spread = self._transformed(of_all, error)
        at, spreads = self._transformed(values, errors)
        # The spread of a resample of equal rows, or of a score of 0 on a log scale, is rounding error.
        distance = at - center
        t = torch.where(spreads > 1e-9 * spread, distance / spreads, distance.sign() * math.inf)
        t = torch.where(values == of_all, 0.0, t)
        ends = (float(center) - _order_statistic(t, q) * float(spread) for q in (1 - TAIL, TAIL))
        lower, upper = sorted(min(max(self._inverse(end), self.minimum), self.maximum) for end in ends)
        return Bounds(lower, upper)

    def _transformed(self, values: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return self.transform.forward(values), errors * self.transform.derivative(values).abs()

    def _inverse(self, x: float) -> float:
        try:
            return self.transform.inverse(x)
        except OverflowError:
            return math.copysign(math.inf, self.transform.inverse(1.0) - self.transform.inverse(0.0))


@dataclass(frozen=True)
class NormInterval(ScoreInterval):
    """The interval of a calibration error, which is the norm ‖μ̂‖ of a vector of means that should be 0.

    By the triangle inequality, ‖μ‖ differs from ‖μ̂‖ by at most ‖μ̂ − μ‖, whose distribution the bootstrap gives as that
    of ‖μ* − μ̂‖, whether μ is 0 or not. So the interval reaches down to 0 if chance explains the error. Percentiles of
    ‖μ*‖ never do: resampling adds noise to the noise in μ̂. The interval is conservative.

    Attributes:
        deviation: ‖μ* − μ̂‖ as a statistic.
        accuracy: the interval of the accuracy, if the means are of correct predictions: an error δ of the accuracy
            changes the calibration error by at most δ. Needed if all predictions are correct, because then all
            resamples are equal.
    """

    deviation: Statistic
    accuracy: BinomialInterval | None = None

    def replicates(self, weights: Tensor) -> Tensor:
        """‖μ* − μ̂‖, ``[R, 1]``."""
        return self.deviation(weights).unsqueeze(1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """The value minus and plus the deviation, at least 0."""
        rows = self.statistic.rows
        if rows < 2:
            return UNKNOWN
        # The variance of a resample is (n − 1)/n of that of the rows.
        below = above = _order_statistic(replicates[:, 0], 1 - TAIL) * math.sqrt(rows / (rows - 1))
        if self.accuracy is not None:
            right = self.accuracy.statistic.value
            lower, upper = self.accuracy.bounds(right, replicates)
            below, above = max(below, right - lower), max(above, upper - right)
        return Bounds(max(value - below, 0.0), value + above)


@dataclass(frozen=True)
class RankingInterval(ScoreInterval):
    """Newcombe's score interval (2006, method 5) of the probability θ that a row of one class ranks above another's.

    All θ with |θ̂ − θ| ≤ 1.96 √V(θ), where V is Hanley & McNeil's variance with m and n both replaced by their mean:

        V(θ) = θ(1 − θ) [1 + N(1 − θ)/(2 − θ) + Nθ/(1 + θ)]/mn,    N = (m + n)/2 − 1.

    It is not a point if the classes are separated, unlike that of the bootstrap.

    Attributes:
        m: the number of rows of one class.
        n: the number of rows of the other.

    References:
        R. G. Newcombe. Confidence intervals for an effect size measure based on the Mann–Whitney statistic. Part 2:
        asymptotic methods and evaluation. Statistics in Medicine 2006.
    """

    m: int
    n: int

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """Where |θ̂ − θ| = 1.96 √V(θ)."""
        if math.isnan(value):
            return UNKNOWN
        return Bounds(1.0 - self._above(1.0 - value), self._above(value))  # V(θ) = V(1 − θ)

    def _above(self, value: float) -> float:
        from scipy.optimize import brentq
        from scipy.stats import norm

        z, half = float(norm.ppf(1 - TAIL)), 0.5 * (self.m + self.n) - 1.0

        def excess(theta: float) -> float:
            inflation = 1 + half * (1 - theta) / (2 - theta) + half * theta / (1 + theta)
            return theta - value - z * math.sqrt(theta * (1 - theta) * inflation / (self.m * self.n))

        start = value + 1e-9  # if the value is 0, it solves the equation itself
        return float(brentq(excess, start, 1.0)) if start < 1 and excess(start) < 0 else 1.0


@dataclass(frozen=True)
class SelectiveRiskInterval(ScoreInterval):
    """The interval of a mean of losses of 0 and 1, weighted by rank: percentiles, at least as wide as the error rate's.

    If losses are rare, a resample often has none. So the interval also covers that of the error rate, in proportion:
    for a score A and an error rate e within [e₋, e₊], [A e₋/e, A e₊/e]; and [0, e₊] if there are no losses.

    Attributes:
        error_rate: the interval of the fraction of losses.
    """

    error_rate: BinomialInterval

    def replicates(self, weights: Tensor) -> Tensor:
        """The score, ``[R, 1]``."""
        return self.statistic(weights).unsqueeze(1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """The wider of the two intervals, at each end."""
        losses = self.error_rate.statistic.value
        lower, upper = self.error_rate.bounds(losses, replicates)
        if losses == 0:
            return Bounds(0.0, upper)
        low, high = (_order_statistic(replicates[:, 0], q) for q in (TAIL, 1 - TAIL))
        return Bounds(min(low, value * lower / losses), min(max(high, value * upper / losses), 1.0))


def _order_statistic(values: Tensor, q: float) -> float:
    """The ``q`` quantile, one of the values: infinite values cannot be interpolated."""
    return float(np.quantile(values.numpy(), q, method="nearest"))
