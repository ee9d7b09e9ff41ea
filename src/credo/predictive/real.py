"""Predictions of real and count-valued targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_fraction
from credo._special import normal_quantile
from credo.errors import UnsupportedError
from credo.predictive.base import Interval, Predictive, check_levels
from credo.predictive.components import RealComponents, average, log_average_exp, quadrature
from credo.predictive.location_scale import GaussianComponents

_GRID = 1024  # points on which a mixture's entropy is integrated
_NEWTON_STEPS = 12
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of a floating-point number


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """A mixture on the real line or on the counts 0, 1, 2, …; uncertainties are variances.

    Args:
        components: the distributions of every draw and row.
        weights: of the draws, ``[S]``, summing to 1; ``None`` is uniform.

    Example:
        >>> p = credo.Gaussian(noise=0.1).predictive(torch.randn(20, 4, 1))
        >>> torch.equal(p.variance, p.aleatoric + p.epistemic)
        True
    """

    components: RealComponents

    @property
    @override
    def variance(self) -> Tensor:
        """E_s Var[y | f_s] + Var_s E[y | f_s], ``[B, ...]``."""
        return self.aleatoric + self.epistemic

    @property
    @override
    def aleatoric(self) -> Tensor:
        """E_s Var[y | f_s], ``[B, ...]``."""
        return average(self.components.noise_variance, self.weights)

    @property
    @override
    def epistemic(self) -> Tensor:
        """Var E[y | f] = Σ_s w_s (v_s + (m_s − m̄)²), ``[B, ...]``: v_s within a component, 0 for a drawn function."""
        centered = self.draws - self.mean
        return average(self.components.function_variance + centered.square(), self.weights)

    @property
    @override
    def entropy(self) -> Tensor:
        """E_s H[y | s] + I[y; s] in nats, ``[B, ...]``."""
        return average(self.components.entropy, self.weights) + self._draw_information

    @property
    @override
    def mutual_information(self) -> Tensor:
        """I[y; f] = I[y; s] + E_s I[y; f | s] in nats, ``[B, ...]``: the second part is 0 for drawn functions."""
        return self._draw_information + average(self.components.function_information, self.weights)

    @cached_property
    def _draw_information(self) -> Tensor:
        """I[y; s] = ∫ p(y) KL(p(s | y) ‖ p(s)) dy in nats, ``[B, ...]``: how far a target would move the weights.

        By quadrature on the union of the grids of all components, which resolves narrow ones among wide ones.
        """
        draws = self.n_draws
        if draws == 1 or self.components.target_shape.numel() == 0:
            return torch.zeros_like(self.draws[0])
        return self._by_element(lambda part: _information(part, self.weights), 2 * _GRID * draws)

    @property
    @override
    def mode(self) -> Tensor:
        """Raises ``UnsupportedError``: only for classes."""
        raise UnsupportedError("mode is the most probable class; for this target use mean or quantile(0.5).")

    @override
    def cdf(self, y: Tensor) -> Tensor:
        self.components.check_dtype_and_shape(y)
        return average(self.components.cdf(y), self.weights)

    @override
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        # The root of the mixture's cdf between the smallest and the largest quantile of the draws.
        levels = check_levels(q)
        if levels.ndim == 0:
            return self._quantile(float(levels))
        if not len(levels):
            return self.components.parameter.new_empty(0, *self.components.target_shape)
        return torch.stack([self._quantile(level) for level in levels.tolist()])

    @override
    def interval(self, level: float = 0.95) -> Interval:
        level = check_fraction(level, "level")
        mirrored = self.components.mirrored()
        if mirrored is None:
            return Interval(self._quantile((1 - level) / 2), self._quantile((1 + level) / 2))
        # The upper bound of y is minus the lower bound of −y: both are found in one search.
        both = replace(self, components=self.components.join([mirrored], 1))._quantile((1 - level) / 2)
        rows = len(both) // 2
        return Interval(both[:rows], -both[rows:])

    @torch.no_grad()
    def _quantile(self, q: float) -> Tensor:
        """The ``q`` quantile, to rounding."""
        search = _solve if self.n_draws > 1 and not self.components.discrete else _bisect
        return self._by_element(lambda part: search(part, self.weights, q), self.n_draws)

    def _by_element(self, function: Callable[[RealComponents], Tensor], cost: int) -> Tensor:
        """Apply ``function`` to flattened components ``[S, E]``, in chunks; an element needs ``cost`` numbers."""
        shape = self.components.target_shape
        size = chunk_size(self.components.parameter.device, cost)
        flat = self.components.map(lambda t: t.reshape(len(t), shape.numel()))
        parts = [
            function(flat.map(lambda t, start=start: t[:, start : start + size]))  # type: ignore[misc]
            for start in range(0, max(shape.numel(), 1), size)
        ]
        return torch.cat(parts).view(shape)


@dataclass(frozen=True, eq=False, repr=False)
class ExactGaussianPredictive(RealPredictive):
    """y = f(x) + ε with f(x) ~ N(m, v) and ε ~ N(0, σ²): one Gaussian in closed form, without draws.

    ``draws`` holds the one mean function. Every row is a marginal distribution: the rows of a ``sample`` do not lie on
    one function; to sample functions, use the model. A mixture of such predictions has one component per part.

    Args:
        components: m, v and σ²; see :meth:`of`.
        weights: of the parts of a mixture, ``[S]``; ``None`` is uniform.

    Example:
        >>> p = ExactGaussianPredictive.of(mean=torch.zeros(3), epistemic=torch.ones(3), noise=0.25)
        >>> p.std
        tensor([1.1180, 1.1180, 1.1180])
    """

    components: GaussianComponents

    @classmethod
    def of(cls, mean: Tensor, epistemic: Tensor, noise: Tensor | float) -> ExactGaussianPredictive:
        """Build a prediction from its moments.

        Args:
            mean: m, ``[B, ...]``.
            epistemic: v, ``[B, ...]``; values below 0, by rounding, count as 0.
            noise: σ², ``[B, ...]`` or one number for all rows.

        Returns:
            The prediction.
        """
        aleatoric = torch.as_tensor(noise, dtype=mean.dtype, device=mean.device).expand_as(mean).clone()
        spread = epistemic.clamp(min=0.0)
        total = (spread + aleatoric).log()
        return cls(GaussianComponents(mean[None], total[None], aleatoric[None], spread[None]))


def chunk_size(device: torch.device, cost: int) -> int:
    """Return how many elements of ``cost`` numbers to process at once: those that fill a CPU cache or a GPU."""
    return max((2**18 if device.type == "cpu" else 2**24) // max(cost, 1), 1)


def _solve(components: RealComponents, weights: Tensor | None, q: float) -> Tensor:
    """The ``q`` quantile of a continuous mixture ``[E]``, to rounding.

    Newton's method for log P = log q, P the smaller of the two tails, whose logarithm is close to a parabola:

        y ← y ∓ P/p(y) · log(P/q).

    A step that leaves the bracket is replaced by bisection. Errors d of log P are squared from step to step, d' = cd².
    A step is the last one if d' ≤ ε by two estimates of c: by the errors, d' = dᵢ(dᵢ/dᵢ₋₁)², and by the densities, if
    they are alike, d' = dᵢ|pᵢ/pᵢ₋₁ − 1| times the ratio of the steps. That d is small is not enough: between modes,
    where hardly any density is, it is so far from the quantile too, and a step goes anywhere. Mixtures that are not
    solved after a few steps, as with modes far apart, are bisected. A component that is thousands of times narrower
    than the others, inside of the last step, can be overlooked.
    """
    lower, upper = components.bracket(q)
    is_lower = q <= 0.5
    level, sign = (q, -1.0) if is_lower else (1.0 - q, 1.0)
    middle = lower + 0.5 * (upper - lower)
    open_ = (middle > lower) & (middle < upper)
    mean = average(components.draws, weights)
    variance = average(components.variance + (components.draws - mean).square(), weights)
    y = mean + normal_quantile(q) * variance.sqrt()
    y = torch.where((y > lower) & (y < upper), y, middle)
    eps = torch.finfo(y.dtype).eps
    error = density = step = torch.zeros_like(y)
    for _ in range(_NEWTON_STEPS):
        if not bool(open_.any()):
            break
        tails, densities = components.tail(y, upper=not is_lower)
        tail = average(tails, weights)
        below = tail < level if is_lower else tail > level
        lower, upper = torch.where(below, y, lower), torch.where(below, upper, y)
        distance = (tail / level).log()
        before = error, density, step
        error, density = distance.abs(), average(densities, weights)
        following = y + sign * distance * tail / density
        inside = (following >= lower) & (following <= upper)
        following = torch.where(inside, following, lower + 0.5 * (upper - lower))
        step = (following - y).abs()
        is_squared = error**3 <= eps * before[0] ** 2
        change = (density / before[1] - 1.0).abs()
        is_steady = (change < 0.5) & (error * change * (step / before[2]) <= eps)
        y = torch.where(open_, following, y)
        open_ = open_ & ~(inside & is_squared & (is_steady | (error == 0.0)))
    result = torch.where(lower < upper, y, upper)
    if bool(open_.any()):
        result[open_] = _bisect(components.map(lambda t: t[:, open_]), weights, q)
    return result


def _bisect(components: RealComponents, weights: Tensor | None, q: float) -> Tensor:
    """The ``q`` quantile of a mixture ``[E]`` by bisection, to rounding.

    A continuous one is searched among the floating-point numbers in their order, so that quantiles next to 0 are found
    to rounding too: those of a Beta mixture can be 1e-100 where the largest of the draws' quantiles is 0.5.
    """
    lower, upper = components.bracket(q)
    between = (lambda a, b: (a + 0.5 * (b - a)).floor()) if components.discrete else _halfway
    for _ in range(8 * lower.element_size()):
        middle = between(lower, upper)
        if not bool(((middle > lower) & (middle < upper)).any()):
            break
        # The smaller of the two probabilities is the accurate one.
        if q <= 0.5:
            below = average(components.cdf(middle), weights) < q
        else:
            below = average(components.survival(middle), weights) > 1 - q
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return upper


def _halfway(lower: Tensor, upper: Tensor) -> Tensor:
    """The number with as many floating-point numbers between it and ``lower`` as between it and ``upper``."""
    integer = _INTEGERS[lower.element_size()]

    def ordinal(bits: Tensor) -> Tensor:  # its own inverse: the magnitude's bits are flipped where the sign is set
        return torch.where(bits < 0, bits ^ torch.iinfo(integer).max, bits)

    a, b = (ordinal(t.contiguous().view(integer)) for t in (lower, upper))
    return ordinal((a & b) + ((a ^ b) >> 1)).view(lower.dtype)  # ⌊(a + b)/2⌋ without overflow


def _information(components: RealComponents, weights: Tensor | None) -> Tensor:
    """I[y; s] of components ``[S, E]``, ``[E]``."""
    points, areas = quadrature(components.grid(_GRID), components.discrete)
    log_p = components.log_density(points[:, None]).transpose(0, 1)
    gain = log_p - log_average_exp(log_p, weights)
    return (areas * average(log_p.exp() * gain, weights)).sum(0).clamp(min=0)
