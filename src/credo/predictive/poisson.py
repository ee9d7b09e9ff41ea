"""Poisson components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from credo.errors import InputError
from credo.predictive.components import RealComponents, check_finite, check_shape, check_tensor, pooled


@dataclass(frozen=True, eq=False, repr=False)
class PoissonComponents(RealComponents):
    """Poisson(y | λ), by its log rate."""

    log_rate: Tensor

    name: ClassVar[str] = "Poisson"
    discrete: ClassVar[bool] = True

    @property
    def draws(self) -> Tensor:
        """λ."""
        return self.log_rate.exp()

    @property
    def variance(self) -> Tensor:
        """λ."""
        return self.log_rate.exp()

    @property
    def entropy(self) -> Tensor:
        """−Σ_k p(k) log p(k), over every count or, for λ > 70, evenly spaced ones.

        A sum over every k-th count errs by a factor exp(−λ(1 − cos 2π/k)), for 128 of them less than rounding.
        """
        first, last = self._span()
        stride = ((last - first) / 127).ceil()
        steps = torch.arange(128, dtype=first.dtype, device=first.device).view(-1, *[1] * first.ndim)
        log_p = self.log_density(first + stride * steps)
        return -(stride * log_p.exp() * log_p).sum(0)

    def check_form(self, y: Tensor) -> None:
        """Numbers, one per rate."""
        check_tensor(y)
        if y.dtype == torch.bool or y.is_complex():
            raise InputError(f"y has dtype {y.dtype}, counts are needed: call y.float() or y.long().")
        check_shape(y, self.target_shape)

    def check_values(self, y: Tensor) -> None:
        """Whole and not negative."""
        check_finite(y)
        if bool((y < 0).any()):
            raise InputError(f"y holds {float(y.min()):g}: counts are 0 or more; for real targets use Gaussian().")
        if y.is_floating_point() and bool((y != y.floor()).any()):
            raise InputError("y holds numbers that are not whole, no counts: for real targets use Gaussian().")

    def log_density(self, y: Tensor) -> Tensor:
        """y log λ − λ − log y!"""
        y = y.to(self.log_rate.dtype)
        return y * self.log_rate - self.log_rate.exp() - torch.lgamma(y + 1)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Counts, in the rates' dtype."""
        return torch.poisson(self.log_rate.exp(), generator=generator)

    def cdf(self, y: Tensor) -> Tensor:
        """The regularised upper incomplete gamma function Q(⌊y⌋ + 1, λ); not differentiable in y."""
        rate = self.log_rate.exp()
        count = y.to(rate.dtype).floor().expand_as(rate)
        return torch.where(count < 0, 0.0, torch.special.gammaincc(count.clamp(min=0) + 1, rate))

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """By Cantelli's inequality: λ − √(λ(1−q)/q) ≤ quantile ≤ λ + √(λq/(1−q)), for each draw."""
        rate = self.log_rate.exp()
        lower = (rate - (rate * ((1 - q) / q)).sqrt()).floor() - 1
        upper = (rate + (rate * (q / (1 - q))).sqrt()).ceil()
        return lower.amin(0).clamp(min=-1), upper.amax(0)

    def grid(self, count: int) -> Tensor:
        """Every count, if at most 2 ``count`` of them.

        Else counts evenly spaced in √k, in which every Poisson is as wide, and beside them each draw's own, which
        resolve narrow draws where rates are orders of magnitude apart.
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
        return torch.cat([grid, pooled(of_each, count, len(firsts))]).sort(0).values

    def _span(self) -> tuple[Tensor, Tensor]:
        """Counts beyond which a component has no mass to speak of, λ ± 7√λ and a little more, ``[S, B, ...]``."""
        rate = self.log_rate.exp()
        return (rate - 7 * rate.sqrt()).floor().clamp(min=0), (rate + 7 * rate.sqrt() + 10).ceil()
