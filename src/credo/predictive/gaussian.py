"""Gaussian components."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from credo._special import ndtr
from credo.errors import InputError
from credo.predictive.components import (
    PartialMoments,
    RealComponents,
    check_finite,
    check_shape,
    check_tensor,
    pooled,
)


def check_real(y: Tensor, wanted: torch.Size) -> None:
    """Raise ``InputError`` for targets that are not real numbers of shape ``wanted``."""
    check_tensor(y)
    if not y.is_floating_point():
        raise InputError(f"y has dtype {y.dtype}, a real-valued target is needed: call y.float().")
    check_shape(y, wanted)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianComponents(RealComponents):
    """N(y | m, e^s), s the log variance."""

    mean: Tensor
    log_variance: Tensor

    name: ClassVar[str] = "Gaussian"
    discrete: ClassVar[bool] = False

    @property
    def draws(self) -> Tensor:
        """m."""
        return self.mean

    @property
    def scale(self) -> Tensor:
        """σ = e^{s/2}."""
        return (0.5 * self.log_variance).exp()

    @property
    def variance(self) -> Tensor:
        """e^s."""
        return self.log_variance.exp()

    @property
    def entropy(self) -> Tensor:
        """½(log 2πe + s)."""
        return 0.5 * (math.log(2 * math.pi) + 1 + self.log_variance)

    def check_form(self, y: Tensor) -> None:
        """Real numbers, one per mean."""
        check_real(y, self.target_shape)

    def check_values(self, y: Tensor) -> None:
        """Finite."""
        check_finite(y)

    def log_density(self, y: Tensor) -> Tensor:
        """−½(log 2π + s + (y − m)² e^−s): no division, and no overflow before s < −176 in float32."""
        z = (y.to(self.mean.dtype) - self.mean) * (-0.5 * self.log_variance).exp()
        return -0.5 * (math.log(2 * math.pi) + self.log_variance + z.square())

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """m + σε."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.scale * noise

    def cdf(self, y: Tensor) -> Tensor:
        """Φ((y − m)/σ)."""
        return ndtr((y.to(self.mean.dtype) - self.mean) / self.scale)

    def survival(self, y: Tensor) -> Tensor:
        """Φ((m − y)/σ)."""
        return ndtr((self.mean - y.to(self.mean.dtype)) / self.scale)

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of the draws' quantiles m + σΦ⁻¹(q)."""
        z = float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))
        quantiles = self.mean + z * self.scale
        return quantiles.amin(0), quantiles.amax(0)

    def partial_moments(self, y: Tensor) -> PartialMoments:
        """Φ(z), −σφ(z) and σ²(Φ(z) − zφ(z)), z = (y − m)/σ."""
        z = (y.to(self.mean.dtype) - self.mean) / self.scale
        below, density = ndtr(z), (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
        return PartialMoments(below, -self.scale * density, self.variance * (below - z * density))

    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """N(offset + scale·m, scale²e^s)."""
        return replace(self, mean=offset + scale * self.mean, log_variance=self.log_variance + 2.0 * math.log(scale))

    def grid(self, count: int) -> Tensor:
        """m + σz of all draws, z evenly from −6.5 to 6.5."""

        def of_each(n: int) -> Tensor:
            z = torch.linspace(-6.5, 6.5, n, dtype=self.mean.dtype, device=self.mean.device)
            return self.mean + z.view(-1, *[1] * self.mean.ndim) * self.scale

        return pooled(of_each, count, len(self.mean))
