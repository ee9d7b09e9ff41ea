"""Predictions whose quantiles have been moved to where the targets were found to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from credo.predictive.adjusted import AdjustedPredictive
from credo.predictive.base import Interval
from credo.predictive.components import average, log_average_exp
from credo.predictive.levels import LevelMap, interpolate
from credo.predictive.real import CPU_WORK, DEVICE_WORK, RealPredictive, check_level, check_levels

KNOT_STEPS = 32  # of the bisection for a knot: off by 2e-10 of the distance between the draws' quantiles
POINTS = 512  # of a row's grid
POINTS_PER_DRAW = 64  # which the grid is chosen from, a fifth of a standard deviation apart


@dataclass(frozen=True, eq=False, repr=False)
class RecalibratedPredictive(AdjustedPredictive):
    """The distribution with cdf R(F(y)), where F is the cdf of ``base`` and R a map of levels (Kuleshov et al. 2018).

    It is that of y' = T(y), T = F⁻¹∘R⁻¹∘F, for y from ``base``: the targets of a row are moved along the real line, in
    their order, and the same is done to every row in terms of its own quantiles. So samples keep the dependence
    between rows, and the mutual information with the draws is that of ``base``, exactly.

        density   log f(y) + log R'(F(y))
        quantile  F⁻¹(R⁻¹(q))
        moments   E[g(y')] = Σ_j c_j E[g(y); a_{j−1} < y ≤ a_j],    a_j = F⁻¹(u_j)
        entropy   H[y] − ∫ log f d(R(F) − F) − ∫ R' log R' du

    c_j is the slope of R between its knots u_{j−1} and u_j. So the moments follow from the components' partial moments,
    which have a closed form, however heavy the tails are. The integrals of the entropy are sums by the trapezoidal rule
    over about 500 points ``y`` of every row, which lie where the components have mass: good to about 1e-3 nats, and 0
    for the identity R. Levels are worked out in float64, in which 1 − F is known down to 1e-16. The variance is split
    into aleatoric and epistemic in the proportions of ``base``; ``draws`` are those of ``base``, and do not average to
    ``mean``.

    Only for continuous targets with one output per row, ``[B]`` or ``[B, 1]``.
    """

    levels: LevelMap = field(kw_only=True)

    @property
    def adjustment(self) -> LevelMap:
        """R."""
        return self.levels

    @property
    def mean(self) -> Tensor:
        """E[y'], ``[B, ...]``. Where ``base`` has no mean (Student-t with ν ≤ 1), that of its locations."""
        return (self._precise.mean + self._moment_changes[0]).to(self.draws.dtype)

    @property
    def variance(self) -> Tensor:
        """Var[y'], ``[B, ...]``; infinite where that of ``base`` is."""
        return self.aleatoric + self.epistemic

    @property
    def aleatoric(self) -> Tensor:
        """The share of the variance that is aleatoric in ``base``, ``[B, ...]``."""
        return self.base.aleatoric * self._inflation

    @property
    def epistemic(self) -> Tensor:
        """The share of the variance that is epistemic in ``base``, ``[B, ...]``."""
        return self.base.epistemic * self._inflation

    @property
    def entropy(self) -> Tensor:
        """−∫ g log g dy of the recalibrated density g, in nats, ``[B, ...]``."""
        parts = [self._entropy_of(self._precise[rows]) for rows in self._chunks(POINTS)]
        return torch.cat(parts).to(self.draws.dtype)

    def cdf(self, y: Tensor) -> Tensor:
        """R(F(y)), ``[B, ...]``."""
        return self.levels(self._precise.cdf(y)).to(self.draws.dtype)

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """F⁻¹(R⁻¹(q)): ``[B, ...]`` for a number ``q``, ``[K, B, ...]`` for K of them; 0 < q < 1."""
        levels = self.levels.inverse(check_levels(q))
        inside = levels.clamp(torch.finfo(levels.dtype).tiny, 1 - torch.finfo(levels.dtype).eps / 2)
        return self._precise.quantile(inside).to(self.draws.dtype)

    def interval(self, level: float = 0.95) -> Interval:
        """Between the quantiles (1 ∓ level)/2."""
        check_level(level)
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))

    def log_prob(self, y: Tensor) -> Tensor:
        """log f(y) + log R'(F(y)), ``[B]``."""
        log_slope = self.levels.log_slope(self._precise.cdf(y)).reshape(len(self))
        return (self._precise.log_prob(y) + log_slope).to(self.draws.dtype)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """T(y) for ``n`` samples y of ``base``, ``[n, B, ...]``; F⁻¹ is interpolated on the grid of the integrals."""
        y = self.base.sample(n, seed)
        with torch.no_grad():
            parts = [self._moved(self._precise[rows], y[:, rows]) for rows in self._chunks(POINTS + n)]
        return torch.cat(parts, 1).to(y.dtype)

    @cached_property
    def _precise(self) -> RealPredictive:
        return self.base.double()

    @property
    def _inflation(self) -> Tensor:
        """Var[y']/Var[y], and 1 where both are infinite."""
        before = self._precise.variance
        shift, growth = self._moment_changes
        return torch.where(before.isinf(), 1.0, 1 + (growth - shift.square()) / before).to(self.draws.dtype)

    @cached_property
    def _moment_changes(self) -> Tensor:
        """By how much R moves the mean and the second moment about the old mean, ``[2, B, ...]``.

        Summed by parts, with P_g(a) = E[g(y); y ≤ a] and c_J the last slope, the change of E[g(y)] is

            (c_J − 1) E[g(y)] + Σ_j (c_{j+1} − c_j) [g(a_j)(F(a_j) − u_j) − P_g(a_j)].

        Its derivative in a_j is 0 at the quantile, so that a knot that is off by δ costs δ², and gradients need none of
        the quantile.
        """
        p = self._precise
        mean, slopes = p.mean, self.levels.slopes
        change = torch.stack([torch.zeros_like(mean), (slopes[-1] - 1) * p.variance])
        for level, before, after in zip(self.levels.predicted[1:-1], slopes[:-1], slopes[1:], strict=True):
            knot = p._quantile(level, KNOT_STEPS)
            below, partial = _partial_moments(p, knot)
            values = torch.stack([knot - mean, (knot - mean).square()])
            change = change + (after - before) * (values * (below - level) - partial)
        return torch.where(change.isnan(), 0.0, change)  # there is no mean to move

    def _entropy_of(self, p: RealPredictive) -> Tensor:
        y = _grid(p)
        below = _cdf(p, y)
        log_p = log_average_exp(p.components.log_density(y[:, None]).transpose(0, 1), p.weights)
        lost = (below - self.levels(below)).diff(dim=0)
        return p.entropy + (0.5 * (log_p[1:] + log_p[:-1]) * lost).sum(0) + self.levels.entropy

    def _moved(self, p: RealPredictive, y: Tensor) -> Tensor:
        levels = self.levels.inverse(_cdf(p, y.to(p.draws.dtype)))
        grid = _grid(p)
        below = _cdf(p, grid).cummax(0).values  # rounding may make it fall by a last digit
        at, xs, ys = (t.movedim(0, -1).contiguous() for t in (levels, below, grid))
        return interpolate(at, xs, ys).movedim(-1, 0)

    def _chunks(self, points: int) -> Iterator[slice]:
        """Parts of the rows small enough to hold ``points`` numbers for every row and draw."""
        work = CPU_WORK if self.draws.device.type == "cpu" else DEVICE_WORK
        size = max(work // (points * self.n_draws), 1)
        return (slice(start, start + size) for start in range(0, max(len(self), 1), size))


def _grid(p: RealPredictive) -> Tensor:
    """About ``POINTS`` points ``[N, B, ...]`` in rising order where ``p`` has mass."""
    fine = p.components.grid(max(POINTS, POINTS_PER_DRAW * p.n_draws))
    return torch.cat([fine[:: max(len(fine) // POINTS, 1)], fine[-1:]])


def _partial_moments(p: RealPredictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y ≤ y), ``[B, ...]``, and the first and second moment about the mean up to there, ``[2, B, ...]``."""
    of_draws, offset = p.components.partial_moments(y), p.draws - p.mean
    below, first, second = of_draws
    moments = (offset * below + first, offset.square() * below + 2 * offset * first + second)
    return average(below, p.weights), torch.stack([average(t, p.weights) for t in moments])


def _cdf(p: RealPredictive, points: Tensor) -> Tensor:
    """F at several ``points [N, B, ...]`` of every row."""
    return average(p.components.cdf(points[:, None]).transpose(0, 1), p.weights)
