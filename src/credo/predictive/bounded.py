"""Components on a part of the real line: log-normal and Beta."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from credo._special import log_beta, ndtr
from credo.errors import InputError, UnsupportedError
from credo.predictive.components import PartialMoments, RealComponents, average, check_finite, pool_grids
from credo.predictive.location_scale import GaussianComponents

_TAIL = 1e-12  # probability that a grid leaves out at either end


@dataclass(frozen=True, eq=False, repr=False)
class LogNormalComponents(RealComponents):
    """LogNormal(y | m, σ²): log y ~ N(m, σ²), y > 0, parametrized by m and log σ.

    The mean is exp(m + σ²/2) and the median exp(m). A mixture's spread is stretched in log y.
    """

    location: Tensor
    log_scale: Tensor

    name: ClassVar[str] = "LogNormal"

    @property
    @override
    def support(self) -> tuple[float, float]:
        """From 0."""
        return 0.0, math.inf

    @property
    @override
    def draws(self) -> Tensor:
        """exp(m + σ²/2)."""
        return (self.location + 0.5 * self.scale.square()).exp()

    @property
    def scale(self) -> Tensor:
        """σ, the standard deviation of log y."""
        return self.log_scale.exp()

    @property
    @override
    def variance(self) -> Tensor:
        """(exp(σ²) − 1) exp(2m + σ²)."""
        return self.scale.square().expm1() * self.draws.square()

    @property
    @override
    def entropy(self) -> Tensor:
        """m + ½ log 2πe + log σ."""
        return self.location + self._log.entropy

    @override
    def check_values(self, y: Tensor) -> None:
        check_finite(y)
        if bool((y <= 0).any()):
            raise InputError(
                f"y holds {float(y.min()):g}, but a log-normal target is positive: use Gaussian() or StudentT(), or "
                "NegativeBinomial() for counts."
            )

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """log N(log y | m, σ²) − log y."""
        log_y = y.to(self.location.dtype).log()
        return self._log.log_density(log_y) - log_y

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self._log.sample(generator).exp()

    @override
    def cdf(self, y: Tensor) -> Tensor:
        """Φ((log y − m)/σ), and 0 for y ≤ 0."""
        return self._log.cdf(self._log_of(y))

    @override
    def survival(self, y: Tensor) -> Tensor:
        """Φ((m − log y)/σ), and 1 for y ≤ 0."""
        return self._log.survival(self._log_of(y))

    @override
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of the draws' quantiles."""
        lower, upper = self._log.bracket(q)
        return lower.exp(), upper.exp()

    @override
    def partial_moments(self, y: Tensor) -> PartialMoments:
        """From E[Yᵏ; Y ≤ y] = exp(km + k²σ²/2) Φ(z − kσ), z = (log y − m)/σ."""
        mean, sigma = self.draws, self.scale
        z = (self._log_of(y) - self.location) / sigma
        below, first, second = (ndtr(z - k * sigma) for k in range(3))
        spread = sigma.square().exp() * second - 2 * first + below
        return PartialMoments(below, mean * (first - below), mean.square() * spread)

    @override
    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """Location m + log scale; a log-normal target cannot be shifted."""
        if isinstance(offset, Tensor) or offset != 0.0:
            raise UnsupportedError("LogNormal targets cannot be shifted: they start at 0")
        return replace(self, location=self.location + math.log(scale))

    @override
    def stretched(self, factor: float, weights: Tensor | None) -> Self:
        """log y ↦ m̄ + factor·(log y − m̄) with m̄ the mean of the locations."""
        center = average(self.location, weights)
        log_y = self._log.rescaled(factor, (1.0 - factor) * center)
        return replace(self, location=log_y.mean, log_scale=0.5 * log_y.log_variance)

    @override
    def grid(self, count: int) -> Tensor:
        return self._log.grid(count).exp()

    @property
    def _log(self) -> GaussianComponents:
        """The components of log y."""
        return GaussianComponents(self.location, 2 * self.log_scale)

    def _log_of(self, y: Tensor) -> Tensor:
        return y.to(self.location.dtype).clamp(min=0).log()


@dataclass(frozen=True, eq=False, repr=False)
class BetaComponents(RealComponents):
    """y = lower + (upper − lower)·u with u ~ Beta(μφ, (1 − μ)φ), parametrized by logit μ and log φ.

    The mean of u is μ and its variance μ(1 − μ)/(1 + φ). The cdf and what depends on it (quantiles, partial moments)
    are computed by scipy on the CPU in float64, and are not differentiable.
    """

    logit_mean: Tensor
    log_concentration: Tensor
    lower: float = 0.0
    upper: float = 1.0

    name: ClassVar[str] = "Beta"

    @property
    @override
    def support(self) -> tuple[float, float]:
        """From ``lower`` to ``upper``."""
        return self.lower, self.upper

    @property
    def width(self) -> float:
        """The width of the support."""
        return self.upper - self.lower

    @property
    @override
    def draws(self) -> Tensor:
        """lower + (upper − lower)·μ."""
        return self.lower + self.width * self.logit_mean.sigmoid()

    @property
    @override
    def variance(self) -> Tensor:
        """(upper − lower)²·μ(1 − μ)/(1 + φ)."""
        spread = self.logit_mean.sigmoid() * (-self.logit_mean).sigmoid()
        return self.width**2 * spread / (1 + self.log_concentration.exp())

    @property
    @override
    def entropy(self) -> Tensor:
        """log B(a, b) − (a − 1)ψ(a) − (b − 1)ψ(b) + (φ − 2)ψ(φ) + log(upper − lower), in float64: terms cancel."""
        a, b = self._shapes(torch.float64)
        total = a + b
        log_norm = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(total)
        spread = (total - 2) * torch.digamma(total) - (a - 1) * torch.digamma(a) - (b - 1) * torch.digamma(b)
        return (log_norm + spread + math.log(self.width)).to(self.logit_mean.dtype)

    @override
    def check_values(self, y: Tensor) -> None:
        check_finite(y)
        outside = int(((y <= self.lower) | (y >= self.upper)).sum())
        if outside:
            first, last = min(self.lower, float(y.min())), max(self.upper, float(y.max()))
            margin = 0.005 * (last - first)
            wider = f"Beta(lower={first - margin:g}, upper={last + margin:g})"
            raise InputError(
                f"y holds {outside} value(s) that are not between {self.lower:g} and {self.upper:g}, both excluded, "
                f"but from {float(y.min()):g} to {float(y.max()):g}: give ends that targets do not reach, such as "
                f"{wider}, or use Gaussian() for targets without ends."
            )

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """(a − 1) log u + (b − 1) log(1 − u) − log B(a, b) − log(upper − lower), without cancellation."""
        return log_beta(self._unit(y), *self._shapes()) - math.log(self.width)

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """sigmoid(log G/H) of Gamma variables G and H; at least a rounding error inside the support.

        With V uniform, G(a) = G(a + 1)·V^{1/a}, in logarithms: Gamma variables of a small shape underflow.
        """
        shapes = self._shapes()
        g, h = (torch._standard_gamma(t + 1.0, generator=generator) for t in shapes)
        v, w = (torch.empty_like(t).exponential_(generator=generator) / t for t in shapes)  # −log V/a
        return self.lower + self.width * ((g / h).log() + w - v).sigmoid().clamp(*self._margins())

    @override
    def cdf(self, y: Tensor) -> Tensor:
        """The regularized incomplete beta function I_u(a, b)."""
        from scipy.special import betainc

        u, a, b = self._arguments(y)
        return self._tensor(betainc(a, b, u))

    @override
    def survival(self, y: Tensor) -> Tensor:
        """1 − I_u(a, b)."""
        from scipy.special import betaincc

        u, a, b = self._arguments(y)
        return self._tensor(betaincc(a, b, u))

    @override
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of the draws' quantiles."""
        quantiles = self.lower + self.width * self._tensor(self._unit_quantile(q))
        return quantiles.amin(0), quantiles.amax(0)

    @override
    def partial_moments(self, y: Tensor) -> PartialMoments:
        """From E[U; U ≤ u] = μ I_u(a + 1, b) and E[U²; U ≤ u] = μ (a + 1)/(φ + 1) I_u(a + 2, b)."""
        from scipy.special import betainc

        u, a, b = self._arguments(y)
        mean = a / (a + b)
        below, first, second = betainc(a, b, u), mean * betainc(a + 1, b, u), betainc(a + 2, b, u)
        second = mean * (a + 1) / (a + b + 1) * second - 2 * mean * first + mean**2 * below
        moments = (below, self.width * (first - mean * below), self.width**2 * second)
        return PartialMoments(*map(self._tensor, moments))

    @override
    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """The ends offset + scale·lower and offset + scale·upper, the same for all rows."""
        if isinstance(offset, Tensor):
            raise UnsupportedError("Beta targets cannot be shifted row by row: they lie between two fixed ends")
        return replace(self, lower=offset + scale * self.lower, upper=offset + scale * self.upper)

    @override
    def stretched(self, factor: float, weights: Tensor | None) -> Self:
        """Raises ``UnsupportedError``: targets between two ends cannot be stretched."""
        raise UnsupportedError(
            "Beta targets lie between two ends, so that their spread cannot be multiplied: use SplitConformal"
        )

    @override
    def grid(self, count: int) -> Tensor:
        """Evenly spaced in logit u, in which the density falls exponentially to both sides."""
        ends = [torch.logit(self._tensor(self._unit_quantile(q)).clamp(*self._margins())) for q in (_TAIL, 1 - _TAIL)]

        def of_each(n: int) -> Tensor:
            parts = torch.linspace(0, 1, n, dtype=ends[0].dtype, device=ends[0].device)
            logits = ends[0] + (ends[1] - ends[0]) * parts.view(-1, *[1] * ends[0].ndim)
            return self.lower + self.width * logits.sigmoid().clamp(*self._margins())

        return pool_grids(of_each, count, len(self.logit_mean))

    def _shapes(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """a = μφ and b = (1 − μ)φ, in ``dtype``; ``None``: that of the parameters."""
        logit, log_concentration = self.logit_mean.to(dtype), self.log_concentration.to(dtype)
        return (F.logsigmoid(logit) + log_concentration).exp(), (F.logsigmoid(-logit) + log_concentration).exp()

    def _margins(self) -> tuple[float, float]:
        """The smallest and the largest u that is not rounded to 0 or 1."""
        info = torch.finfo(self.logit_mean.dtype)
        return info.tiny, 1 - info.eps

    def _unit(self, y: Tensor) -> Tensor:
        """u, inside its margins."""
        return ((y.to(self.logit_mean.dtype) - self.lower) / self.width).clamp(*self._margins())

    def _arguments(self, y: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """u from 0 to 1, a and b as arrays of one shape in float64."""
        unit = ((y.double() - self.lower) / self.width).clamp(0, 1)
        values = torch.broadcast_tensors(unit, *self._shapes(torch.float64))
        u, a, b = (t.detach().cpu().numpy() for t in values)
        return u, a, b

    def _unit_quantile(self, q: float) -> NDArray[np.float64]:
        from scipy.special import betainccinv, betaincinv

        a, b = (t.detach().cpu().numpy() for t in self._shapes(torch.float64))
        quantile: NDArray[np.float64] = betaincinv(a, b, q) if q <= 0.5 else betainccinv(a, b, 1 - q)
        return quantile

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.as_tensor(values).to(self.logit_mean)
