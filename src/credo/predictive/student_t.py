"""Student-t components."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from credo._special import log_rising
from credo.predictive.components import PartialMoments, RealComponents, check_finite, pooled
from credo.predictive.gaussian import check_real


@dataclass(frozen=True, eq=False, repr=False)
class StudentTComponents(RealComponents):
    """St(y | m, σ, ν): location m, scale σ, ν degrees of freedom.

    ``draws`` are the locations, which are the means where ν > 1 (below, there is none); the variance is
    σ²ν/(ν − 2) where ν > 2 and infinite below.
    """

    location: Tensor
    log_scale: Tensor
    df: Tensor

    name: ClassVar[str] = "StudentT"
    discrete: ClassVar[bool] = False

    @property
    def draws(self) -> Tensor:
        """m."""
        return self.location

    @property
    def scale(self) -> Tensor:
        """σ."""
        return self.log_scale.exp()

    @property
    def variance(self) -> Tensor:
        """σ²ν/(ν − 2), or infinite."""
        finite = self.df > 2
        ratio = self.df / torch.where(finite, self.df - 2, 1.0)
        return torch.where(finite, self.scale.square() * ratio, math.inf)

    @property
    def entropy(self) -> Tensor:
        """log σ + (ν+1)/2 · (ψ((ν+1)/2) − ψ(ν/2)) + ½ log ν + log B(½, ν/2); in float64, because it cancels."""
        half = 0.5 * self.df.double()
        spread = (half + 0.5) * _digamma_half_step(half) - log_rising(half, torch.full_like(half, 0.5))
        return self.log_scale + (spread + 0.5 * (2 * math.pi * half).log()).to(self.log_scale.dtype)

    def check_form(self, y: Tensor) -> None:
        """Real numbers, one per location."""
        check_real(y, self.target_shape)

    def check_values(self, y: Tensor) -> None:
        """Finite."""
        check_finite(y)

    def log_density(self, y: Tensor) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπ − log σ − (ν+1)/2 · log(1 + z²/ν), z = (y − m)/σ."""
        z = (y.to(self.df.dtype) - self.location) * (-self.log_scale).exp()
        return _log_density(self.df, z) - self.log_scale

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """m + σε√(ν/χ²_ν)."""
        df = self.df
        chi2 = 2 * torch._standard_gamma((0.5 * df).contiguous(), generator=generator)
        chi2 = chi2.clamp(min=torch.finfo(df.dtype).tiny)
        noise = torch.randn(df.shape, generator=generator, dtype=df.dtype, device=df.device)
        return self.location + self.scale * noise * (df / chi2).sqrt()

    def cdf(self, y: Tensor) -> Tensor:
        """By scipy, on the CPU; differentiable in location and scale, not in ν."""
        return _stdtr(self.df, (y.to(self.df.dtype) - self.location) / self.scale)

    def survival(self, y: Tensor) -> Tensor:
        """By symmetry the cdf of −z."""
        return _stdtr(self.df, (self.location - y.to(self.df.dtype)) / self.scale)

    def partial_moments(self, y: Tensor) -> PartialMoments:
        """T_ν(z), −σh(z) and σ²(ν/(ν−2) T_{ν−2}(z√((ν−2)/ν)) − z h(z)), with h(z) = (ν + z²)/(ν − 1) t_ν(z).

        Here z = (y − m)/σ, and t_ν and T_ν are the density and the cdf. NaN where there is none, for ν ≤ 1 and ν ≤ 2.
        """
        df, z = self.df, (y.to(self.df.dtype) - self.location) / self.scale
        has_mean, has_variance = df > 1, df > 2
        rest = torch.where(has_variance, df - 2, 1.0)
        h = (df + z.square()) / torch.where(has_mean, df - 1, math.nan) * _log_density(df, z).exp()
        second = df / rest * _stdtr(rest, z * (rest / df).sqrt()) - z * h
        square = torch.where(has_variance, self.scale.square(), math.nan)
        return PartialMoments(_stdtr(df, z), -self.scale * h, square * second)

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of the draws' quantiles."""
        from scipy.special import stdtrit

        z = torch.as_tensor(stdtrit(self.df.detach().cpu().double().numpy(), q)).to(self.df)
        quantiles = self.location + z * self.scale
        return quantiles.amin(0), quantiles.amax(0)

    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """Location offset + scale·m, scale·σ, the same ν."""
        return replace(self, location=offset + scale * self.location, log_scale=self.log_scale + math.log(scale))

    def grid(self, count: int) -> Tensor:
        """m + σ√ν sinh v of all draws, v evenly spaced: its density is cosh(v)^−ν, light-tailed for every ν."""
        edge = torch.acosh((20 / self.df).clamp(max=40).exp())

        def of_each(n: int) -> Tensor:
            steps = torch.linspace(-1, 1, n, dtype=edge.dtype, device=edge.device).view(-1, *[1] * edge.ndim)
            return self.location + self.scale * self.df.sqrt() * torch.sinh(steps * edge)

        return pooled(of_each, count, len(edge))


def _log_density(df: Tensor, z: Tensor) -> Tensor:
    """log t_ν(z)."""
    log_norm = log_rising(0.5 * df, torch.full_like(df, 0.5)) - 0.5 * (df * math.pi).log()
    return log_norm - 0.5 * (df + 1) * torch.log1p(z.square() / df)


def _stdtr(df: Tensor, z: Tensor) -> Tensor:
    """T_ν(z) by scipy, with the gradient t_ν(z) in z and none in ν."""
    from scipy.special import stdtr

    values = torch.as_tensor(stdtr(*(t.detach().cpu().double().numpy() for t in (df, z)))).to(z)
    if not z.requires_grad:
        return values
    return values + _log_density(df, z).exp().detach() * (z - z.detach())


def _digamma_half_step(x: Tensor) -> Tensor:
    """ψ(x + ½) − ψ(x), from x = 50 on by its expansion, of which the next term is below 3e-16."""
    small, inverse = x.clamp(max=50.0), x.clamp(min=50.0).reciprocal()
    square = inverse.square()
    series = 0.5 * inverse + square * (1 / 8 - square * (1 / 64 - square / 128))
    return torch.where(x > 50.0, series, torch.digamma(small + 0.5) - torch.digamma(small))
