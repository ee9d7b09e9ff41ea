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
    """N(y | m, e^s) with e^s = noise + epistemic: what is left of a Gaussian belief about the function.

    Attributes:
        mean: m, ``[1, B, ...]``.
        log_variance: s, of the whole variance.
        noise: the part of the variance that would remain if the function were known.
    """

    noise: Tensor

    name: ClassVar[str] = "exact Gaussian"

    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """N(offset + scale·m, scale²e^s), and scale² of the noise."""
        return replace(super().rescaled(scale, offset), noise=scale**2 * self.noise)


@dataclass(frozen=True, eq=False, repr=False)
class ExactGaussianPredictive(RealPredictive):
    """y = f(x) + ε with f(x) ~ N(m, v) and ε ~ N(0, σ²): one Gaussian, and no draws are needed.

    ``draws`` holds the one mean function. Every row is a marginal: rows of ``sample`` do not lie on one function. For
    functions, draw them from the model itself.
    """

    components: ExactGaussianComponents

    @classmethod
    def of(cls, mean: Tensor, epistemic: Tensor, noise: Tensor | float) -> ExactGaussianPredictive:
        """From m, v and σ², ``[B, ...]`` each; the noise may be one number for all."""
        aleatoric = torch.as_tensor(noise, dtype=mean.dtype, device=mean.device).expand_as(mean)
        total = (epistemic + aleatoric).log()
        return cls(ExactGaussianComponents(mean[None], total[None], aleatoric.clone()[None]))

    @property
    def aleatoric(self) -> Tensor:
        """σ², ``[B, ...]``."""
        return self.components.noise[0]

    @property
    def epistemic(self) -> Tensor:
        """v, ``[B, ...]``."""
        return (self.components.variance[0] - self.aleatoric).clamp(min=0.0)

    @property
    def entropy(self) -> Tensor:
        """½ log 2πe(v + σ²), ``[B, ...]``."""
        return self.components.entropy[0]

    @property
    def mutual_information(self) -> Tensor:
        """½ log(1 + v/σ²) in nats, ``[B, ...]``; infinite without noise."""
        return (0.5 * (self.components.log_variance[0] - self.aleatoric.log())).clamp(min=0.0)

    def _quantile(self, q: float) -> Tensor:
        z = float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))
        return self.mean + z * self.std

    @property
    def variance(self) -> Tensor:
        """v + σ², ``[B, ...]``."""
        return self.components.variance[0]
