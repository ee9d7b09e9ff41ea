"""Predictions with recalibrated quantiles, and the map of levels that recalibrates them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_fraction
from credo.errors import InputError
from credo.predictive.base import Interval, check_levels
from credo.predictive.calibrated import CalibratedPredictive
from credo.predictive.components import average, log_average_exp
from credo.predictive.real import RealPredictive, chunk_size

_POINTS = 512  # of the grid of each row
_POINTS_PER_DRAW = 64  # from which the grid is chosen, a fifth of a standard deviation apart


@dataclass(frozen=True, repr=False)
class LevelMap:
    """A map of levels R: [0, 1] → [0, 1], strictly increasing, linear between knots, with R(0) = 0 and R(1) = 1.

    R(u) is the fraction of targets below their predicted quantile of level u.

    Because the first and the last piece are linear too, R(u) = cu near 0 and 1 − R(u) = c'(1 − u) near 1: a
    distribution function F and R∘F have tails of the same shape.

    Args:
        predicted: the knots, from 0 to 1.
        observed: the values of R there, from 0 to 1.
    """

    predicted: Sequence[float]
    observed: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("predicted", "observed"):
            object.__setattr__(self, name, _check_ascending(getattr(self, name), name))
        if len(self.predicted) != len(self.observed):
            raise InputError(
                "predicted and observed levels must have the same length, got "
                f"{len(self.predicted)} and {len(self.observed)}."
            )

    def __call__(self, level: Tensor) -> Tensor:
        """R(u), elementwise; differentiable."""
        return interpolate(level, *self._knots(level))

    def inverse(self, level: Tensor) -> Tensor:
        """R⁻¹(u), elementwise; differentiable."""
        predicted, observed = self._knots(level)
        return interpolate(level, observed, predicted)

    def log_slope(self, level: Tensor) -> Tensor:
        """log R'(u), elementwise; at a knot that of the piece above."""
        predicted, observed = self._knots(level)
        log_slopes = (observed.diff() / predicted.diff()).log()
        return log_slopes[torch.searchsorted(predicted[1:-1], level.detach().contiguous(), right=True)]

    @property
    def entropy(self) -> float:
        """−∫ R' log R' du, the entropy of R⁻¹(U) for a uniform U: at most 0, and 0 for the identity."""
        steps = zip(pairwise(self.predicted), pairwise(self.observed), strict=True)
        return -sum((s - r) * math.log((s - r) / (v - u)) for (u, v), (r, s) in steps)

    @property
    def slopes(self) -> list[float]:
        """R' between the knots."""
        steps = zip(pairwise(self.predicted), pairwise(self.observed), strict=True)
        return [(s - r) / (v - u) for (u, v), (r, s) in steps]

    def __repr__(self) -> str:
        return f"LevelMap({len(self.predicted)} knots)"

    def _knots(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.predicted), like.new_tensor(self.observed)


@dataclass(frozen=True, eq=False, repr=False)
class RecalibratedPredictive(CalibratedPredictive):
    """The distribution with cdf R(F(y)), where F is the cdf of ``base`` and R a map of levels (Kuleshov et al. 2018).

    It is the distribution of y' = T(y), T = F⁻¹∘R⁻¹∘F, for y from ``base``: T is increasing, and the same for every row
    in terms of the row's quantiles. So samples keep the dependence between rows, and the mutual information with the
    draws is exactly that of ``base``.

        density   log f(y) + log R'(F(y))
        quantile  F⁻¹(R⁻¹(q))
        moments   E[g(y')] = Σ_j c_j E[g(y); a_{j−1} < y ≤ a_j],    a_j = F⁻¹(u_j)
        entropy   H[y] − ∫ log f d(R(F) − F) − ∫ R' log R' du

    c_j is the slope of R between its knots u_{j−1} and u_j. The moments follow from the partial moments of the
    components, which have a closed form for any tails. The entropy is integrated by the trapezoidal rule over about 500
    points per row, which lie where the components have mass: it is accurate to about 1e-3 nats, and exact for the
    identity R. Levels are computed in float64, in which 1 − F is accurate down to 1e-16. The variance is split into
    aleatoric and epistemic in the proportions of ``base``; ``draws`` are those of ``base`` and do not average to
    ``mean``.

    Only for continuous targets with one output per row, ``[B]`` or ``[B, 1]``.

    Args:
        components: those of the uncorrected prediction.
        weights: of the draws, ``[S]``; ``None`` is uniform.
        levels: R.

    Example:
        >>> calibrator = credo.calibration.QuantileRecalibration().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator(model.predict(x)).quantile(0.9)
    """

    levels: LevelMap = field(kw_only=True)

    @property
    @override
    def adjustment(self) -> LevelMap:
        """R."""
        return self.levels

    @property
    @override
    def mean(self) -> Tensor:
        """E[y'], ``[B, ...]``; if ``base`` has no mean (Student-t with ν ≤ 1), the mean of its locations."""
        return (self._base_in_float64.mean + self._moment_changes[0]).to(self.draws.dtype)

    @property
    @override
    def variance(self) -> Tensor:
        """Var[y'], ``[B, ...]``; infinite where that of ``base`` is."""
        return self.aleatoric + self.epistemic

    @property
    @override
    def aleatoric(self) -> Tensor:
        """The variance times the aleatoric fraction of ``base``, ``[B, ...]``."""
        return self.base.aleatoric * self._inflation

    @property
    @override
    def epistemic(self) -> Tensor:
        """The variance times the epistemic fraction of ``base``, ``[B, ...]``."""
        return self.base.epistemic * self._inflation

    @property
    @override
    def entropy(self) -> Tensor:
        """−∫ g log g dy of the recalibrated density g, in nats, ``[B, ...]``."""
        parts = [self._entropy_of(self._base_in_float64[rows]) for rows in self._chunks(_POINTS)]
        return torch.cat(parts).to(self.draws.dtype)

    @override
    def cdf(self, y: Tensor) -> Tensor:
        return self.levels(self._base_in_float64.cdf(y)).to(self.draws.dtype)

    @override
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        levels = self.levels.inverse(check_levels(q))
        inside = levels.clamp(torch.finfo(levels.dtype).tiny, 1 - torch.finfo(levels.dtype).eps / 2)
        return self._base_in_float64.quantile(inside).to(self.draws.dtype)

    @override
    def interval(self, level: float = 0.95) -> Interval:
        level = check_fraction(level, "level")
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))

    @override
    def log_prob(self, y: Tensor) -> Tensor:
        log_slope = self.levels.log_slope(self._base_in_float64.cdf(y)).reshape(len(self))
        return (self._base_in_float64.log_prob(y) + log_slope).to(self.draws.dtype)

    @override
    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        # T(y) for samples y of ``base``; F⁻¹ is interpolated on the grid of the integrals.
        y = self.base.sample(n, seed)
        with torch.no_grad():
            parts = [self._moved(self._base_in_float64[rows], y[:, rows]) for rows in self._chunks(_POINTS + n)]
        return torch.cat(parts, 1).to(y.dtype)

    @property
    def _inflation(self) -> Tensor:
        """Var[y']/Var[y], and 1 where both are infinite."""
        before = self._base_in_float64.variance
        shift, growth = self._moment_changes
        return torch.where(before.isinf(), 1.0, 1 + (growth - shift.square()) / before).to(self.draws.dtype)

    @cached_property
    def _moment_changes(self) -> Tensor:
        """The change of the mean, and of the second moment about the old mean, by R, ``[2, B, ...]``.

        Summed by parts, with P_g(a) = E[g(y); y ≤ a] and c_J the last slope, the change of E[g(y)] is

            (c_J − 1) E[g(y)] + Σ_j (c_{j+1} − c_j) [g(a_j)(F(a_j) − u_j) − P_g(a_j)].

        Its derivative in a_j is 0 at the quantile, so an error δ of a knot costs only δ², and gradients do not need
        that of the quantile.
        """
        p = self._base_in_float64
        mean, slopes = p.mean, self.levels.slopes
        change = torch.stack([torch.zeros_like(mean), (slopes[-1] - 1) * p.variance])
        for level, before, after in zip(self.levels.predicted[1:-1], slopes[:-1], slopes[1:], strict=True):
            knot = p._quantile(level)
            below, partial = _partial_moments(p, knot)
            values = torch.stack([knot - mean, (knot - mean).square()])
            change = change + (after - before) * (values * (below - level) - partial)
        return torch.where(change.isnan(), 0.0, change)  # if there is no mean

    def _entropy_of(self, p: RealPredictive) -> Tensor:
        y = _grid(p)
        below = _cdf(p, y)
        log_p = log_average_exp(p.components.log_density(y[:, None]).transpose(0, 1), p.weights)
        lost = (below - self.levels(below)).diff(dim=0)
        return p.entropy + (0.5 * (log_p[1:] + log_p[:-1]) * lost).sum(0) + self.levels.entropy

    def _moved(self, p: RealPredictive, y: Tensor) -> Tensor:
        levels = self.levels.inverse(_cdf(p, y.to(p.draws.dtype)))
        grid = _grid(p)
        below = _cdf(p, grid).cummax(0).values  # rounding can make it decrease by a last digit
        at, xs, ys = (t.movedim(0, -1).contiguous() for t in (levels, below, grid))
        return interpolate(at, xs, ys).movedim(-1, 0)

    def _chunks(self, points: int) -> Iterator[slice]:
        """Chunks of rows that need ``points`` numbers per row and draw."""
        size = chunk_size(self.draws.device, points * self.n_draws)
        return (slice(start, start + size) for start in range(0, max(len(self), 1), size))


def _grid(p: RealPredictive) -> Tensor:
    """About ``_POINTS`` ascending points ``[N, B, ...]`` where ``p`` has mass."""
    fine = p.components.grid(max(_POINTS, _POINTS_PER_DRAW * p.n_draws))
    return torch.cat([fine[:: max(len(fine) // _POINTS, 1)], fine[-1:]])


def _partial_moments(p: RealPredictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """P(Y ≤ y), ``[B, ...]``, and the first and second moment about the mean up to there, ``[2, B, ...]``."""
    of_draws, offset = p.components.partial_moments(y), p.draws - p.mean
    below, first, second = of_draws
    moments = (offset * below + first, offset.square() * below + 2 * offset * first + second)
    return average(below, p.weights), torch.stack([average(t, p.weights) for t in moments])


def _cdf(p: RealPredictive, points: Tensor) -> Tensor:
    """F at several ``points [N, B, ...]`` of every row."""
    return average(p.components.cdf(points[:, None]).transpose(0, 1), p.weights)


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Return the piecewise linear function through ``(xs, ys)`` at ``x``, constant beyond the ends.

    Args:
        x: ``[...]`` if ``xs`` is one-dimensional, otherwise ``[..., N]``.
        xs: ``[K]`` or ``[..., K]``, non-decreasing along the last dimension.
        ys: the values, of the shape of ``xs``.

    Returns:
        The values at ``x``, of its shape.
    """
    above = torch.searchsorted(xs.detach(), x.detach().contiguous(), right=True).clamp(1, xs.shape[-1] - 1)
    at: Callable[[Tensor, Tensor], Tensor] = (lambda t, i: t[i]) if xs.ndim == 1 else (lambda t, i: t.gather(-1, i))
    left, right, low, high = at(xs, above - 1), at(xs, above), at(ys, above - 1), at(ys, above)
    width = right - left
    fraction = ((x - left) / torch.where(width > 0, width, 1.0)).clamp(0, 1)
    return low + fraction * (high - low)


def _check_ascending(levels: object, name: str) -> tuple[float, ...]:
    values = tuple(map(float, levels)) if isinstance(levels, Sequence) else ()
    ascending = all(a < b for a, b in pairwise(values))
    if len(values) < 2 or not ascending or values[0] != 0 or values[-1] != 1:
        raise InputError(f"{name} must be strictly increasing levels from 0 to 1.")
    return values
