"""Gaussian and Student-t components."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from credo._special import log_rising, ndtr, normal_quantile
from credo.predictive.components import PartialMoments, RealComponents, check_finite, pool_grids


@dataclass(frozen=True, eq=False, repr=False)
class LocationScaleComponents(RealComponents):
    """Distributions of m + σz, where z has a standard distribution that is symmetric about 0; ``draws`` is m."""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """σ."""

    @abstractmethod
    def _standard_cdf(self, z: Tensor) -> Tensor:
        """P(Z ≤ z), accurate in the lower tail."""

    @abstractmethod
    def _standard_quantile(self, q: float) -> Tensor | float:
        """The ``q`` quantile of z."""

    @abstractmethod
    def _noise(self, generator: torch.Generator | None) -> Tensor:
        """A sample of σz from each component."""

    @abstractmethod
    def _grid_offsets(self, n: int) -> Tensor:
        """``n`` values of σz that resolve each component, ``[n, S, B, ...]``."""

    @override
    def check_values(self, y: Tensor) -> None:
        check_finite(y)

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self.draws + self._noise(generator)

    @override
    def cdf(self, y: Tensor) -> Tensor:
        return self._standard_cdf(self._standardize(y))

    @override
    def survival(self, y: Tensor) -> Tensor:
        return self._standard_cdf(-self._standardize(y))

    @override
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of the draws' quantiles."""
        quantiles = self.draws + self._standard_quantile(q) * self.scale
        return quantiles.amin(0), quantiles.amax(0)

    @override
    @abstractmethod
    def mirrored(self) -> Self: ...

    @override
    def grid(self, count: int) -> Tensor:
        return pool_grids(lambda n: self.draws + self._grid_offsets(n), count, len(self.draws))

    def _standardize(self, y: Tensor) -> Tensor:
        """(y − m)/σ."""
        return (y.to(self.draws.dtype) - self.draws) / self.scale


@dataclass(frozen=True, eq=False, repr=False)
class GaussianComponents(LocationScaleComponents):
    """N(y | m, e^s), s the log variance.

    With ``noise`` and ``epistemic``, the function is integrated out: y = f(x) + ε with f(x) ~ N(m, v) and ε ~ N(0, σ²),
    so y ~ N(m, v + σ²) and s = log(v + σ²).

    Attributes:
        mean: m, ``[S, B, ...]``.
        log_variance: s.
        noise: σ², the part of the variance that would remain if the function were known; ``None``: all of it.
        epistemic: v, the variance of the function; ``None``: 0.
    """

    mean: Tensor
    log_variance: Tensor
    noise: Tensor | None = None
    epistemic: Tensor | None = None

    name: ClassVar[str] = "Gaussian"

    @property
    @override
    def draws(self) -> Tensor:
        """m."""
        return self.mean

    @cached_property
    @override
    def scale(self) -> Tensor:
        """σ = e^{s/2}."""
        return (0.5 * self.log_variance).exp()

    @property
    @override
    def variance(self) -> Tensor:
        """e^s."""
        return self.log_variance.exp()

    @property
    @override
    def entropy(self) -> Tensor:
        """½(log 2πe + s)."""
        return 0.5 * (math.log(2 * math.pi) + 1 + self.log_variance)

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """−½(log 2π + s + (y − m)² e^−s): no division, and no overflow for s > −176 in float32."""
        z = (y.to(self.mean.dtype) - self.mean) * (-0.5 * self.log_variance).exp()
        return -0.5 * (math.log(2 * math.pi) + self.log_variance + z.square())

    @override
    def tail(self, y: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        """Φ(−z) or Φ(z), and φ(z)/σ, z = (y − m)/σ."""
        scale = self.scale
        z = (y - self.mean) / scale
        density = z.square().mul_(-0.5).exp_().div_(scale).mul_(1.0 / math.sqrt(2 * math.pi))
        return ndtr(-z if upper else z), density

    @override
    def partial_moments(self, y: Tensor) -> PartialMoments:
        """Φ(z), −σφ(z) and σ²(Φ(z) − zφ(z)), z = (y − m)/σ."""
        z = self._standardize(y)
        below, density = ndtr(z), (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
        return PartialMoments(below, -self.scale * density, self.variance * (below - z * density))

    @property
    @override
    def noise_variance(self) -> Tensor:
        """σ²."""
        return self.variance if self.noise is None else self.noise

    @property
    @override
    def function_variance(self) -> Tensor:
        """v."""
        return torch.zeros_like(self.mean) if self.epistemic is None else self.epistemic

    @property
    @override
    def function_information(self) -> Tensor:
        """½ log(1 + v/σ²): infinite without noise, and 0 where the function is known."""
        v = self.function_variance
        return torch.where(v > 0, 0.5 * torch.log1p(v / self.noise_variance), 0.0)

    @override
    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """N(offset + scale·m, scale²e^s)."""
        return replace(
            self,
            mean=offset + scale * self.mean,
            log_variance=self.log_variance + 2.0 * math.log(scale),
            noise=None if self.noise is None else scale**2 * self.noise,
            epistemic=None if self.epistemic is None else scale**2 * self.epistemic,
        )

    @override
    def mirrored(self) -> Self:
        """N(−m, e^s)."""
        return replace(self, mean=-self.mean)

    @override
    def _standard_cdf(self, z: Tensor) -> Tensor:
        return ndtr(z)

    @override
    def _standard_quantile(self, q: float) -> float:
        return normal_quantile(q)

    @override
    def _noise(self, generator: torch.Generator | None) -> Tensor:
        mean = self.mean
        return self.scale * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)

    @override
    def _grid_offsets(self, n: int) -> Tensor:
        """σz, z evenly spaced from −6.5 to 6.5."""
        z = torch.linspace(-6.5, 6.5, n, dtype=self.mean.dtype, device=self.mean.device)
        return z.view(-1, *[1] * self.mean.ndim) * self.scale


@dataclass(frozen=True, eq=False, repr=False)
class StudentTComponents(LocationScaleComponents):
    """St(y | m, σ, ν): location m, scale σ, ν degrees of freedom.

    ``draws`` are the locations, which are the means if ν > 1 (otherwise there is no mean); the variance is
    σ²ν/(ν − 2) if ν > 2 and infinite otherwise.
    """

    location: Tensor
    log_scale: Tensor
    df: Tensor

    name: ClassVar[str] = "StudentT"

    @property
    @override
    def draws(self) -> Tensor:
        """m."""
        return self.location

    @property
    @override
    def scale(self) -> Tensor:
        """σ."""
        return self.log_scale.exp()

    @property
    @override
    def variance(self) -> Tensor:
        """σ²ν/(ν − 2), or infinite."""
        finite = self.df > 2
        ratio = self.df / torch.where(finite, self.df - 2, 1.0)
        return torch.where(finite, self.scale.square() * ratio, math.inf)

    @property
    @override
    def entropy(self) -> Tensor:
        """log σ + (ν+1)/2 · (ψ((ν+1)/2) − ψ(ν/2)) + ½ log ν + log B(½, ν/2), in float64 because terms cancel."""
        half = 0.5 * self.df.double()
        spread = (half + 0.5) * _digamma_half_step(half) - log_rising(half, torch.full_like(half, 0.5))
        return self.log_scale + (spread + 0.5 * (2 * math.pi * half).log()).to(self.log_scale.dtype)

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπ − log σ − (ν+1)/2 · log(1 + z²/ν), z = (y − m)/σ."""
        z = (y.to(self.df.dtype) - self.location) * (-self.log_scale).exp()
        return _student_t_log_density(self.df, z) - self.log_scale

    @override
    def partial_moments(self, y: Tensor) -> PartialMoments:
        """T_ν(z), −σh(z) and σ²(ν/(ν−2) T_{ν−2}(z√((ν−2)/ν)) − z h(z)), with h(z) = (ν + z²)/(ν − 1) t_ν(z).

        Here z = (y − m)/σ, and t_ν and T_ν are the density and the cdf. NaN if the moment does not exist: the first
        for ν ≤ 1, the second for ν ≤ 2.
        """
        df, z = self.df, self._standardize(y)
        has_mean, has_variance = df > 1, df > 2
        rest = torch.where(has_variance, df - 2, 1.0)
        h = (df + z.square()) / torch.where(has_mean, df - 1, math.nan) * _student_t_log_density(df, z).exp()
        second = df / rest * _student_t_cdf(rest, z * (rest / df).sqrt()) - z * h
        square = torch.where(has_variance, self.scale.square(), math.nan)
        return PartialMoments(_student_t_cdf(df, z), -self.scale * h, square * second)

    @override
    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """Location offset + scale·m, scale·σ, the same ν."""
        return replace(self, location=offset + scale * self.location, log_scale=self.log_scale + math.log(scale))

    @override
    def mirrored(self) -> Self:
        """Location −m."""
        return replace(self, location=-self.location)

    @override
    def _standard_cdf(self, z: Tensor) -> Tensor:
        """By scipy, on the CPU; differentiable in location and scale, not in ν."""
        return _student_t_cdf(self.df, z)

    @override
    def _standard_quantile(self, q: float) -> Tensor:
        from scipy.special import stdtrit

        return torch.as_tensor(stdtrit(self.df.detach().cpu().double().numpy(), q)).to(self.df)

    @override
    def _noise(self, generator: torch.Generator | None) -> Tensor:
        """σε√(ν/χ²_ν)."""
        df = self.df
        chi2 = 2 * torch._standard_gamma((0.5 * df).contiguous(), generator=generator)
        chi2 = chi2.clamp(min=torch.finfo(df.dtype).tiny)
        noise = torch.randn(df.shape, generator=generator, dtype=df.dtype, device=df.device)
        return self.scale * noise * (df / chi2).sqrt()

    @override
    def _grid_offsets(self, n: int) -> Tensor:
        """σ√ν sinh v, v evenly spaced: its density is cosh(v)^−ν, light-tailed for every ν."""
        edge = torch.acosh((20 / self.df).clamp(max=40).exp())
        steps = torch.linspace(-1, 1, n, dtype=edge.dtype, device=edge.device).view(-1, *[1] * edge.ndim)
        return self.scale * self.df.sqrt() * torch.sinh(steps * edge)


def _student_t_log_density(df: Tensor, z: Tensor) -> Tensor:
    """log t_ν(z)."""
    log_norm = log_rising(0.5 * df, torch.full_like(df, 0.5)) - 0.5 * (df * math.pi).log()
    return log_norm - 0.5 * (df + 1) * torch.log1p(z.square() / df)


def _student_t_cdf(df: Tensor, z: Tensor) -> Tensor:
    """T_ν(z) by scipy, with the gradient t_ν(z) in z and none in ν; for ν = 4, the default, a tenth of the time."""
    from scipy.special import stdtr

    if bool((df == 4.0).all()):
        return _student_t4_cdf(z)
    values = torch.as_tensor(stdtr(*(t.detach().cpu().double().numpy() for t in (df, z)))).to(z)
    if not z.requires_grad:
        return values
    return values + _student_t_log_density(df, z).exp().detach() * (z - z.detach())


def _student_t4_cdf(z: Tensor) -> Tensor:
    """T_4(z) = ½(1 + s(1 + c/2)) with s = z/√(4 + z²) and c = 1 − s².

    In the lower tail, where this cancels, ½(1 − s²(1 + c/2)²)/(1 − s(1 + c/2)) = c²(3 + c)/(8(1 − s(1 + c/2))).
    """
    total = 4.0 + z.square()
    c = 4.0 / total
    t = z / total.sqrt() * (1.0 + 0.5 * c)
    return torch.where(z < 0, c.square() * (3.0 + c) / (8.0 * (1.0 - t)), 0.5 * (1.0 + t))


def _digamma_half_step(x: Tensor) -> Tensor:
    """ψ(x + ½) − ψ(x); for x > 50 by its series, whose next term is below 3e-16."""
    small, inverse = x.clamp(max=50.0), x.clamp(min=50.0).reciprocal()
    square = inverse.square()
    series = 0.5 * inverse + square * (1 / 8 - square * (1 / 64 - square / 128))
    return torch.where(x > 50.0, series, torch.digamma(small + 0.5) - torch.digamma(small))
