"""Components of counts: Poisson and negative binomial."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from credo._special import log_negative_binomial, log_poisson
from credo.errors import InputError
from credo.predictive.components import (
    RealComponents,
    check_finite,
    check_target_shape,
    check_tensor,
    pool_grids,
)

_LARGE = 1000.0  # for larger rates, the expansion of the entropy is exact to rounding
_TAIL = 1e-13  # probability that a span of counts leaves out at either end
_ENTROPY_NODES = 128
_CHUNK = 2**22  # numbers in memory at a time


@dataclass(frozen=True, eq=False, repr=False)
class CountComponents(RealComponents):
    """Distributions on the counts from 0."""

    discrete: ClassVar[bool] = True

    @property
    @override
    def support(self) -> tuple[float, float]:
        """From 0."""
        return 0.0, math.inf

    @abstractmethod
    def _span(self) -> tuple[Tensor, Tensor]:
        """The first and the last count with a mass that is not negligible, ``[S, B, ...]``."""

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
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """By Cantelli's inequality: m − √(v(1−q)/q) ≤ quantile ≤ m + √(vq/(1−q)), for each draw."""
        mean, variance = self.draws, self.variance
        lower = (mean - (variance * ((1 - q) / q)).sqrt()).floor() - 1
        upper = (mean + (variance * (q / (1 - q))).sqrt()).ceil()
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


@dataclass(frozen=True, eq=False, repr=False)
class PoissonComponents(CountComponents):
    """Poisson(y | λ), parametrized by the log rate."""

    log_rate: Tensor

    name: ClassVar[str] = "Poisson"

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

    @override
    def _span(self) -> tuple[Tensor, Tensor]:
        """λ ± 7√λ and a little more."""
        rate = self.log_rate.exp()
        return (rate - 7 * rate.sqrt()).floor().clamp(min=0), (rate + 7 * rate.sqrt() + 10).ceil()


@dataclass(frozen=True, eq=False, repr=False)
class NegativeBinomialComponents(CountComponents):
    """NB(y | μ, α): Poisson with a Gamma distributed rate of mean μ and shape 1/α, parametrized by log μ and log α.

    The variance is μ + αμ². The cdf and what depends on it (quantiles, the span of counts) are computed by scipy on the
    CPU in float64, and are not differentiable.
    """

    log_mean: Tensor
    log_dispersion: Tensor

    name: ClassVar[str] = "NegativeBinomial"

    @property
    @override
    def draws(self) -> Tensor:
        """μ."""
        return self.log_mean.exp()

    @property
    @override
    def variance(self) -> Tensor:
        """μ + αμ²."""
        return self.log_mean.exp() + (self.log_dispersion + 2 * self.log_mean).exp()

    @property
    @override
    def entropy(self) -> Tensor:
        """−Σ_k p(k) log p(k), over the first 128 counts, and over the others as an integral in log k.

        The integral begins half a count below the first of them; the error is below about 1e-5 nats.
        """
        flat = self.map(lambda t: t.reshape(-1))
        size = max(_CHUNK // (2 * _ENTROPY_NODES), 1)
        pieces = range(0, max(self.log_mean.numel(), 1), size)
        parts = [flat.map(lambda t, i=i: t[i : i + size])._summed_entropy() for i in pieces]  # type: ignore[misc]
        return torch.cat(parts).view(self.log_mean.shape)

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """log Γ(k + 1/α)/(Γ(1/α) k!) − log(1 + αμ)/α + k log(αμ/(1 + αμ)), without cancellation."""
        shape, scale = self._gamma()
        return log_negative_binomial(y.to(shape.dtype), shape, scale)

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Counts, in the dtype of the parameters."""
        shape, scale = self._gamma()
        return torch.poisson(scale * torch._standard_gamma(shape.contiguous(), generator=generator), generator)

    @override
    def cdf(self, y: Tensor) -> Tensor:
        """The regularized incomplete beta function I_p(1/α, ⌊y⌋ + 1), p = 1/(1 + αμ)."""
        from scipy.special import betainc

        count, shape, scale = self._arguments(y)
        below = betainc(shape, np.maximum(count, 0) + 1, 1 / (1 + scale))
        return torch.as_tensor(np.where(count < 0, 0.0, below)).to(self.log_mean)

    @override
    def survival(self, y: Tensor) -> Tensor:
        """I_{1−p}(⌊y⌋ + 1, 1/α)."""
        from scipy.special import betainc

        count, shape, scale = self._arguments(y)
        above = betainc(np.maximum(count, 0) + 1, shape, scale / (1 + scale))
        return torch.as_tensor(np.where(count < 0, 1.0, above)).to(self.log_mean)

    @override
    def _span(self) -> tuple[Tensor, Tensor]:
        """λ ± 7√λ and a little more, for the extreme quantiles λ of the Gamma distribution of rates."""
        from scipy.special import gammainccinv, gammaincinv

        shape, scale = (t.detach().cpu().double().numpy() for t in self._gamma())
        slow, fast = scale * gammaincinv(shape, _TAIL), scale * gammainccinv(shape, _TAIL)
        first = np.maximum(np.floor(slow - 7 * np.sqrt(slow)), 0)
        last = np.ceil(fast + 7 * np.sqrt(fast) + 10)
        return torch.as_tensor(first).to(self.log_mean), torch.as_tensor(last).to(self.log_mean)

    def _summed_entropy(self) -> Tensor:
        """The entropies of flat components ``[E]``."""
        first, last = self._span()
        every = first + torch.arange(_ENTROPY_NODES, dtype=first.dtype, device=first.device)[:, None]
        log_p = self.log_density(every)
        entropy = -(log_p.exp() * log_p).sum(0)
        nodes, weights = (
            torch.as_tensor(t).to(first)[:, None] for t in np.polynomial.legendre.leggauss(_ENTROPY_NODES)
        )
        start = _ENTROPY_NODES - 0.5
        width = 0.5 * ((last - first) / start).clamp(min=1).log()  # half the range of log k
        offset = start * (width * (nodes + 1)).exp()
        log_p = self.log_density(first + offset)
        return entropy - (weights * width * offset * log_p.exp() * log_p).sum(0)

    def _gamma(self) -> tuple[Tensor, Tensor]:
        """The shape 1/α and the scale αμ of the Gamma distribution of rates."""
        return (-self.log_dispersion).exp(), (self.log_dispersion + self.log_mean).exp()

    def _arguments(self, y: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The counts and the parameters of :meth:`_gamma` as arrays of one shape in float64."""
        shape, scale = self._gamma()
        values = torch.broadcast_tensors(y.double().floor(), shape.double(), scale.double())
        count, a, s = (t.detach().cpu().numpy() for t in values)
        return count, a, s
