"""Predictions of real and count-valued targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credo.errors import InputError, UnsupportedError
from credo.predictive.base import Interval, Predictive
from credo.predictive.components import RealComponents, average, log_average_exp, quadrature

CPU_WORK, DEVICE_WORK = 2**18, 2**24  # numbers held at once: a cache's worth, or enough to fill an accelerator
GRID = 1024  # points on which a mixture's entropy is integrated


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """A mixture on the real line or on the counts; uncertainties are variances."""

    components: RealComponents

    @property
    def variance(self) -> Tensor:
        """E_s Var[y | f_s] + Var_s E[y | f_s], ``[B, ...]``."""
        return self.aleatoric + self.epistemic

    @property
    def aleatoric(self) -> Tensor:
        """E_s Var[y | f_s], ``[B, ...]``."""
        return average(self.components.noise_variance, self.weights)

    @property
    def epistemic(self) -> Tensor:
        """Var E[y | f] = Σ_s w_s (v_s + (m_s − m̄)²), ``[B, ...]``: v_s within a component, 0 for a drawn function."""
        centered = self.draws - self.mean
        return average(self.components.function_variance + centered.square(), self.weights)

    @property
    def entropy(self) -> Tensor:
        """E_s H[y | s] + I[y; s] in nats, ``[B, ...]``."""
        return average(self.components.entropy, self.weights) + self._draw_information

    @property
    def mutual_information(self) -> Tensor:
        """I[y; f] = I[y; s] + E_s I[y; f | s] in nats, ``[B, ...]``: the second part is 0 for drawn functions."""
        return self._draw_information + average(self.components.function_information, self.weights)

    @cached_property
    def _draw_information(self) -> Tensor:
        """I[y; s] = ∫ p(y) KL(p(s | y) ‖ p(s)) dy in nats, ``[B, ...]``: how far a target would move the weights.

        A quadrature on the grids of all components together, so that narrow ones are resolved among wide ones.
        """
        draws = self.n_draws
        if draws == 1 or self.components.target_shape.numel() == 0:
            return torch.zeros_like(self.draws[0])
        return self._by_element(lambda part: _information(part, self.weights), 2 * GRID * draws)

    @property
    def mode(self) -> Tensor:
        """Not for real or count-valued targets."""
        raise UnsupportedError("mode is the most probable class; for this target use mean or quantile(0.5).")

    def cdf(self, y: Tensor) -> Tensor:
        """Σ_s w_s P(Y ≤ y | f_s), ``[B, ...]``."""
        self.components.check_form(y)
        return average(self.components.cdf(y), self.weights)

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """The smallest y with P(Y ≤ y) ≥ q, by bisection of the mixture's cdf between the draws' own quantiles.

        ``[B, ...]`` for a number ``q``, ``[K, B, ...]`` for K of them; 0 < q < 1.
        """
        levels = check_levels(q)
        if levels.ndim == 0:
            return self._quantile(float(levels))
        if not len(levels):
            return self.components.parameter.new_empty(0, *self.components.target_shape)
        return torch.stack([self._quantile(level) for level in levels.tolist()])

    def interval(self, level: float = 0.95) -> Interval:
        """Between the quantiles (1 ∓ level)/2: holds y with probability ``level`` (for counts, at least that)."""
        check_level(level)
        return Interval(self._quantile((1 - level) / 2), self._quantile((1 + level) / 2))

    @torch.no_grad()
    def _quantile(self, q: float, steps: int | None = None) -> Tensor:
        """The ``q`` quantile, to rounding or by so many halvings of the distance between the draws' own."""
        return self._by_element(lambda part: _bisect(part, self.weights, q, steps), self.n_draws)

    def _by_element(self, function: Callable[[RealComponents], Tensor], cost: int) -> Tensor:
        """``function`` over flattened components ``[S, E]``, part by part, each element holding ``cost`` numbers."""
        shape = self.components.target_shape
        work = CPU_WORK if self.components.parameter.device.type == "cpu" else DEVICE_WORK
        size = max(work // cost, 1)
        flat = self.components.map(lambda t: t.reshape(len(t), shape.numel()))
        parts = [
            function(flat.map(lambda t, start=start: t[:, start : start + size]))  # type: ignore[misc]
            for start in range(0, max(shape.numel(), 1), size)
        ]
        return torch.cat(parts).view(shape)


def check_levels(q: float | Sequence[float] | Tensor) -> Tensor:
    """The levels of quantiles in float64, ``[]`` or ``[K]``, which must lie between 0 and 1."""
    levels = torch.as_tensor(q, dtype=torch.float64)
    if levels.ndim > 1:
        raise InputError(f"q must be a number or a list of them, got shape {list(levels.shape)}.")
    if not bool(((levels > 0) & (levels < 1)).all()):
        raise InputError(f"q must lie between 0 and 1, both excluded, got {q}.")
    return levels


def check_level(level: float) -> None:
    """Raise ``InputError`` for the level of an interval that is not between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, both excluded, got {level}.")


def _bisect(components: RealComponents, weights: Tensor | None, q: float, steps: int | None) -> Tensor:
    lower, upper = components.bracket(q)
    for _ in range(steps or (64 if lower.dtype == torch.float64 else 40)):
        middle = lower + 0.5 * (upper - lower)
        if components.discrete:
            middle = middle.floor()
        if not bool(((middle > lower) & (middle < upper)).any()):
            break
        # Whichever of the two is small has its digits.
        if q <= 0.5:
            below = average(components.cdf(middle), weights) < q
        else:
            below = average(components.survival(middle), weights) > 1 - q
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return upper


def _information(components: RealComponents, weights: Tensor | None) -> Tensor:
    """I[y; f] from components ``[S, E]``, ``[E]``."""
    points, areas = quadrature(components.grid(GRID), components.discrete)
    log_p = components.log_density(points[:, None]).transpose(0, 1)
    gain = log_p - log_average_exp(log_p, weights)
    return (areas * average(log_p.exp() * gain, weights)).sum(0).clamp(min=0)
