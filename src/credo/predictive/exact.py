"""Predictions whose uncertainty about the function is integrated out in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from credo.predictive.gaussian import GaussianComponents
from credo.predictive.real import RealPredictive


@dataclass(frozen=True, eq=False, repr=False)
class ExactGaussianComponents(GaussianComponents):
    """y = f(x) + ε with f(x) ~ N(m, v) and ε ~ N(0, σ²), so y ~ N(m, v + σ²): a component that is many functions.

    Attributes:
        mean: m, ``[S, B, ...]``; S is 1 unless predictions were mixed.
        log_variance: log(v + σ²).
        noise: σ², the part of the variance that would remain if the function were known.
        epistemic: v.
    """

    noise: Tensor
    epistemic: Tensor

    name: ClassVar[str] = "exact Gaussian"

    @property
    def noise_variance(self) -> Tensor:
        """σ²."""
        return self.noise

    @property
    def function_variance(self) -> Tensor:
        """v."""
        return self.epistemic

    @property
    def function_information(self) -> Tensor:
        """½ log(1 + v/σ²): infinite without noise, and 0 where the function is known."""
        return torch.where(self.epistemic > 0, 0.5 * torch.log1p(self.epistemic / self.noise), 0.0)

    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """N(offset + scale·m, scale²(v + σ²))."""
        noise, epistemic = scale**2 * self.noise, scale**2 * self.epistemic
        return replace(super().rescaled(scale, offset), noise=noise, epistemic=epistemic)


@dataclass(frozen=True, eq=False, repr=False)
class ExactGaussianPredictive(RealPredictive):
    """y = f(x) + ε with f(x) ~ N(m, v) and ε ~ N(0, σ²): one Gaussian, and no draws are needed.

    ``draws`` holds the one mean function. Every row is a marginal: rows of ``sample`` do not lie on one function. For
    functions, draw them from the model itself. A mixture of such predictions has one component per part.
    """

    components: ExactGaussianComponents

    @classmethod
    def of(cls, mean: Tensor, epistemic: Tensor, noise: Tensor | float) -> ExactGaussianPredictive:
        """From m, v and σ², ``[B, ...]`` each; the noise may be one number for all."""
        aleatoric = torch.as_tensor(noise, dtype=mean.dtype, device=mean.device).expand_as(mean).clone()
        spread = epistemic.clamp(min=0.0)  # rounding may leave a little less
        total = (spread + aleatoric).log()
        return cls(ExactGaussianComponents(mean[None], total[None], aleatoric[None], spread[None]))
