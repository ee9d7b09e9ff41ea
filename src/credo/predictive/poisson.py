"""Poisson components."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from credo._special import log_poisson
from credo.errors import InputError
from credo.predictive.components import RealComponents, check_finite, check_target_shape, check_tensor, pool_grids

_LARGE = 1000.0  # for larger rates, the expansion of the entropy is exact to rounding


@dataclass(frozen=True, eq=False, repr=False)
class PoissonComponents(RealComponents):
    """Poisson(y | λ), parametrized by the log rate."""

    log_rate: Tensor

    name: ClassVar[str] = "Poisson"
    discrete: ClassVar[bool] = True

    @property
    @override
    def draws(self) -> Tensor:
        """λ."""
        return self.log_rate.exp()

    @property
    @override
    def variance(self) -> Tensor:
        """λ."""
        return self.log_rate.exp()

    @property
    @override
    def entropy(self) -> Tensor:
        """−Σ_k p(k) log p(k), over every count or, for λ > 70, evenly spaced ones; for λ > 1000 by its expansion.

        The error of a sum over every k-th count is a factor exp(−λ(1 − cos 2π/k)), below rounding for 128 of them. The
        expansion is ½ log 2πeλ − 1/12λ − 1/24λ² − 19/360λ³ − 9/80λ⁴ − …, and the next term is below 1e-15.
        """
        summed = replace(self, log_rate=self.log_rate.clamp(max=math.log(_LARGE)))._summed_entropy()
        inverse = (-self.log_rate.clamp(min=math.log(_LARGE))).exp()
        series = 0.5 * (math.log(2 * math.pi) + 1 + self.log_rate)
        series = series - inverse * (1 / 12 + inverse * (1 / 24 + inverse * (19 / 360 + inverse * 9 / 80)))
        return torch.where(self.log_rate > math.log(_LARGE), series, summed)

    @override
    def check_dtype_and_shape(self, y: Tensor) -> None:
        check_tensor(y)
        if y.dtype == torch.bool or y.is_complex():
            raise InputError(f"y has dtype {y.dtype}, but counts are needed: call y.float() or y.long().")
        check_target_shape(y, self.target_shape)

    @override
    def check_values(self, y: Tensor) -> None:
        check_finite(y)
        if bool((y < 0).any()):
            raise InputError(f"y holds {float(y.min()):g}: counts must be at least 0; for real targets use Gaussian().")
        if y.is_floating_point() and bool((y != y.floor()).any()):
            raise InputError("y holds numbers that are not integers: for real targets use Gaussian().")

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """y log λ − λ − log y!, without cancellation; see :func:`~credo._special.log_poisson`."""
        return log_poisson(y.to(self.log_rate.dtype), self.log_rate, self.log_rate.exp())

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Counts, in the rates' dtype."""
        return torch.poisson(self.log_rate.exp(), generator=generator)

    @override
    def cdf(self, y: Tensor) -> Tensor:
        """The regularized upper incomplete gamma function Q(⌊y⌋ + 1, λ), in float64; not differentiable in y."""
        count, rate = self._arguments(y)
        return torch.where(count < 0, 0.0, torch.special.gammaincc(count.clamp(min=0) + 1, rate)).to(self.log_rate)

    @override
    def survival(self, y: Tensor) -> Tensor:
        """The regularized lower incomplete gamma function P(⌊y⌋ + 1, λ), in float64."""
        count, rate = self._arguments(y)
        return torch.where(count < 0, 1.0, torch.special.gammainc(count.clamp(min=0) + 1, rate)).to(self.log_rate)

    @override
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """By Cantelli's inequality: λ − √(λ(1−q)/q) ≤ quantile ≤ λ + √(λq/(1−q)), for each draw."""
        rate = self.log_rate.exp()
        lower = (rate - (rate * ((1 - q) / q)).sqrt()).floor() - 1
        upper = (rate + (rate * (q / (1 - q))).sqrt()).ceil()
        return lower.amin(0).clamp(min=-1), upper.amax(0)

    @override
    def grid(self, count: int) -> Tensor:
        """Every count, if there are at most 2 ``count``.

        Otherwise counts evenly spaced in √k, in which all Poisson distributions have the same width, and counts of
        each draw, which resolve narrow draws if rates are orders of magnitude apart.
        """
        firsts, lasts = self._span()
        first, last = firsts.amin(0), lasts.amax(0)
        n = min(int((last - first).max()) + 1, 2 * count)
        steps = torch.arange(n, dtype=first.dtype, device=first.device).view(-1, *[1] * first.ndim)
        every = torch.minimum(first + steps, last)
        if bool((last - first < n).all()):
            return every

        def of_each(m: int) -> Tensor:
            parts = torch.linspace(0, 1, m, dtype=first.dtype, device=first.device).view(-1, *[1] * firsts.ndim)
            return (firsts + (lasts - firsts) * parts).round()

        spaced = (first.sqrt() + (last.sqrt() - first.sqrt()) * steps / (n - 1)).square().round()
        grid = torch.where(last - first < n, every, spaced)
        return torch.cat([grid, pool_grids(of_each, count, len(firsts))]).sort(0).values

    def _summed_entropy(self) -> Tensor:
        first, last = self._span()
        stride = ((last - first) / 127).ceil()
        steps = torch.arange(128, dtype=first.dtype, device=first.device).view(-1, *[1] * first.ndim)
        log_p = self.log_density(first + stride * steps)
        return -(stride * log_p.exp() * log_p).sum(0)

    def _arguments(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The counts and the rates in float64: in float32 the incomplete gamma functions lose 1e-3 at λ = 1e8."""
        rate = self.log_rate.double().exp()
        return y.double().floor().expand_as(rate), rate

    def _span(self) -> tuple[Tensor, Tensor]:
        """Counts beyond which a component has negligible mass, λ ± 7√λ and a little more, ``[S, B, ...]``."""
        rate = self.log_rate.exp()
        return (rate - 7 * rate.sqrt()).floor().clamp(min=0), (rate + 7 * rate.sqrt() + 10).ceil()
