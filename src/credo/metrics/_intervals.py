"""95 % confidence intervals of scores over the choice of test rows: for each kind of score one that holds what it says.

The percentile bootstrap does so for many rows only. Of ten intervals for the share of targets inside a 95 % interval,
all ten of which are right, it makes [1, 1]; and it places a calibration error that is really 0 above 0 in every case.
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

TAIL = 0.025  # beyond each end


class Bounds(NamedTuple):
    """The ends of an interval; NaN where the rows cannot tell."""

    lower: float
    upper: float


UNKNOWN = Bounds(math.nan, math.nan)


@dataclass(frozen=True)
class Estimate(ABC):
    """A score of the test rows, and what its interval is made from."""

    statistic: Statistic

    def replicates(self, weights: Tensor) -> Tensor:
        """What the interval asks of resamples with ``weights [R, rows]``, ``[R, K]``; nothing unless said otherwise."""
        return weights.new_empty(len(weights), 0)

    @abstractmethod
    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """The interval of the score ``value``, from the replicates of all resamples, ``[R, K]``."""


@dataclass(frozen=True)
class Share(Estimate):
    """A share of targets: the exact binomial interval of Clopper and Pearson.

    It holds the true share in 95 % of cases or more, whatever that is and however few the rows are. The targets of one
    row (pixels, tokens, outputs) are not independent: they count as p(1 − p)/v of them, v the variance of the share
    over rows (Korn & Graubard 1998), and where all are right or all wrong, as one per row.

    Attributes:
        targets: how many there are, in all rows together.
        filled: how many rows have any.

    References:
        C. J. Clopper, E. S. Pearson. The use of confidence or fiducial limits illustrated in the case of the binomial.
        Biometrika 1934.
        E. L. Korn, B. I. Graubard. Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data. Survey Methodology 1998.
    """

    targets: int
    filled: int

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """By quantiles of beta distributions, which take parts of a target too."""
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


class Scale(NamedTuple):
    """A scale on which a score is studentized: how to get there and back, and its slope."""

    to: Callable[[Tensor], Tensor]
    back: Callable[[float], float]
    slope: Callable[[Tensor], Tensor]


PLAIN = Scale(lambda x: x, lambda x: x, torch.ones_like)
LOG = Scale(torch.log, math.exp, torch.reciprocal)
LOG_REST = Scale(lambda x: torch.log1p(-x), lambda x: -math.expm1(x), lambda x: -1 / (1 - x))  # for scores up to 1


@dataclass(frozen=True)
class Studentized(Estimate):
    """A mean, or a smooth function of means: the studentized bootstrap, also called bootstrap-t.

    With standard errors s by the infinitesimal jackknife, of the score θ̂ and of every replicate θ*, and the quantiles t
    of (θ* − θ̂)/s*, the interval is [θ̂ − t_{0.975} s, θ̂ − t_{0.025} s]: it follows the skewness of the rows, and the
    uncertainty of s itself (Efron & Tibshirani 1993, chapter 12). On a scale without bounds, ends stay in range.

    One row has no spread, and says nothing, nor do rows of which more than one resample in twenty has no score. Two or
    three rows are alike in so many resamples that an end is infinite. Where all rows are equal, so are the ends. An
    infinite score has the interval of percentiles.

    Attributes:
        scale: on which differences are taken.
        smallest, largest: the range of the score.
    """

    scale: Scale = PLAIN
    smallest: float = -math.inf
    largest: float = math.inf

    def replicates(self, weights: Tensor) -> Tensor:
        """The score and its standard error, ``[R, 2]``."""
        return torch.stack(self.statistic.with_error(weights), 1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """θ̂ − ts on the scale, and back."""
        defined = ~replicates[:, 0].isnan()
        if self.statistic.rows < 2 or math.isnan(value) or float(defined.double().mean()) < 1 - 2 * TAIL:
            return UNKNOWN
        values, errors = replicates[defined].unbind(1)
        if not math.isfinite(value):
            return Bounds(*(_order_statistic(values, q) for q in (TAIL, 1 - TAIL)))
        of_all, error = self.statistic.with_error(self.statistic.unit_weights)
        if not float(error) > 1e-12 * abs(value):  # rows that are equal to rounding
            return Bounds(value, value)
        center, spread = self._scaled(of_all, error)
        at, spreads = self._scaled(values, errors)
        # A resample of equal rows has no spread but rounding, and neither has a score of 0 on a log scale.
        distance = at - center
        t = torch.where(spreads > 1e-9 * spread, distance / spreads, distance.sign() * math.inf)
        t = torch.where(values == of_all, 0.0, t)
        ends = (float(center) - _order_statistic(t, q) * float(spread) for q in (1 - TAIL, TAIL))
        lower, upper = sorted(min(max(self._back(end), self.smallest), self.largest) for end in ends)
        return Bounds(lower, upper)

    def _scaled(self, values: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale.to(values), errors * self.scale.slope(values).abs()

    def _back(self, x: float) -> float:
        try:
            return self.scale.back(x)
        except OverflowError:
            return math.copysign(math.inf, self.scale.back(1.0) - self.scale.back(0.0))


@dataclass(frozen=True)
class Distance(Estimate):
    """A calibration error, the norm ‖μ̂‖ of a vector of means that would be 0: within the distance that chance moves μ̂.

    By the triangle inequality ‖μ‖ is no farther from ‖μ̂‖ than ‖μ̂ − μ‖, of which the bootstrap has the distribution,
    in ‖μ* − μ̂‖, whether μ is 0 or not. So the interval reaches down to 0 where chance explains the error. Percentiles
    of ‖μ*‖ never do: resampling adds noise to the noise that is measured already. It errs on the wide side.

    Attributes:
        observed: ‖μ* − μ̂‖ as a statistic.
        share: of right answers, where the means are of right answers: if it is off by δ, so is the error at most, which
            counts where all answers are right and a resample knows no other.
    """

    observed: Statistic
    share: Share | None = None

    def replicates(self, weights: Tensor) -> Tensor:
        """‖μ* − μ̂‖, ``[R, 1]``."""
        return self.observed(weights).unsqueeze(1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """The value less and plus the distance, 0 at least."""
        rows = self.statistic.rows
        if rows < 2:
            return UNKNOWN
        # The spread of a resample is (n − 1)/n of what it should be.
        below = above = _order_statistic(replicates[:, 0], 1 - TAIL) * math.sqrt(rows / (rows - 1))
        if self.share is not None:
            right = self.share.statistic.value
            lower, upper = self.share.bounds(right, replicates)
            below, above = max(below, right - lower), max(above, upper - right)
        return Bounds(max(value - below, 0.0), value + above)


@dataclass(frozen=True)
class Ranking(Estimate):
    """The probability θ that a row of one kind ranks above one of another: Newcombe's score interval (2006, method 5).

    All θ with |θ̂ − θ| ≤ 1.96 √V(θ), where V is Hanley & McNeil's variance with m and n both replaced by their mean:

        V(θ) = θ(1 − θ) [1 + N(1 − θ)/(2 − θ) + Nθ/(1 + θ)]/mn,    N = (m + n)/2 − 1.

    Not a point where the kinds are separated, as the bootstrap's.

    Attributes:
        m: rows of the one kind.
        n: rows of the other.

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

        start = value + 1e-9  # at 0 the value itself solves the equation
        return float(brentq(excess, start, 1.0)) if start < 1 and excess(start) < 0 else 1.0


@dataclass(frozen=True)
class Risk(Estimate):
    """A mean of losses of 0 and 1, weighted by rank: percentiles, no narrower than the share of losses makes them.

    Where the loss is rare, a resample often has none at all. So the interval holds that of the share too, in
    proportion: for a score A and a share e within [e₋, e₊], [A e₋/e, A e₊/e]; and [0, e₊] where there is no loss.
    """

    share: Share

    def replicates(self, weights: Tensor) -> Tensor:
        """The score, ``[R, 1]``."""
        return self.statistic(weights).unsqueeze(1)

    def bounds(self, value: float, replicates: Tensor) -> Bounds:
        """The wider of the two, at either end."""
        losses = self.share.statistic.value
        lower, upper = self.share.bounds(losses, replicates)
        if losses == 0:
            return Bounds(0.0, upper)
        low, high = (_order_statistic(replicates[:, 0], q) for q in (TAIL, 1 - TAIL))
        return Bounds(min(low, value * lower / losses), min(max(high, value * upper / losses), 1.0))


def _order_statistic(values: Tensor, q: float) -> float:
    """The ``q`` quantile, one of the values: between two infinite ones nothing can be interpolated."""
    return float(np.quantile(values.numpy(), q, method="nearest"))
