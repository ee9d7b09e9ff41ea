"""Real vectors around an unknown mean, with a covariance that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from credo.conjugate._arguments import (
    Numbers,
    numbers,
    observations,
    require_covariance,
    require_rows,
    require_vector,
)
from credo.conjugate._moments import mean_and_scatter
from credo.conjugate.base import ConjugatePair
from credo.conjugate.linear_gaussian import GaussianBelief, condition


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalKnownCovariance(ConjugatePair):
    """μ ~ N(m, V) and x ~ N(μ, Σ) with a known Σ. Data are real, ``[N, D]``.

        V′⁻¹ = V⁻¹ + NΣ⁻¹,    m′ = V′(V⁻¹m + NΣ⁻¹x̄)

    Attributes:
        mean: m, ``[D]``.
        covariance: V, of the belief about μ, ``[D, D]``.
        noise_covariance: Σ, ``[D, D]``.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, exercise 2.40.
    """

    mean: Tensor
    covariance: Tensor
    noise_covariance: Tensor

    def __init__(self, mean: Numbers, covariance: Numbers, noise_covariance: Numbers) -> None:
        mean, covariance, noise_covariance = numbers(
            mean=mean, covariance=covariance, noise_covariance=noise_covariance
        )
        require_vector("mean", mean)
        require_covariance(len(mean), covariance=covariance, noise_covariance=noise_covariance)
        self._store(mean=mean, covariance=covariance, noise_covariance=noise_covariance)

    @property
    def posterior(self) -> MultivariateNormal:
        """N(μ | m, V)."""
        return MultivariateNormal(self.mean, self.covariance)

    @property
    def predictive(self) -> MultivariateNormal:
        """N(x | m, V + Σ)."""
        return MultivariateNormal(self.mean, self.covariance + self.noise_covariance)

    def likelihood(self, parameters: Tensor) -> MultivariateNormal:
        """N(x | μ, Σ)."""
        return MultivariateNormal(parameters, self.noise_covariance)

    @staticmethod
    def maximum_likelihood(data: Numbers, noise_covariance: Numbers) -> MultivariateNormal:
        """N(x | x̄, Σ) of ``data [N, D]``; for a covariance that is estimated too, see :class:`NormalWishart`."""
        (noise_covariance,) = numbers(noise_covariance=noise_covariance)
        require_covariance(noise_covariance.shape[-1], noise_covariance=noise_covariance)
        rows = require_rows(observations(data, noise_covariance.shape[-1:], noise_covariance.device))
        return MultivariateNormal(rows.mean(0), noise_covariance)

    def _read(self, data: Numbers) -> Tensor:
        return observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        prior = GaussianBelief.from_precision(self.mean, torch.linalg.inv(self.covariance))
        noise_precision = torch.linalg.inv(self.noise_covariance)
        after = condition(prior, len(data) * noise_precision, noise_precision @ data.sum(0))
        return replace(self, mean=after.mean, covariance=after.covariance)

    def _log_evidence(self, data: Tensor) -> Tensor:
        """By an orthogonal turn of the rows: √N x̄ carries μ, the other N − 1 directions are noise alone."""
        center, scatter = mean_and_scatter(data)
        along = MultivariateNormal(torch.zeros_like(center), self.noise_covariance + len(data) * self.covariance)
        squares: Tensor = torch.linalg.solve(self.noise_covariance, scatter).trace()
        noise = (len(data) - 1) * torch.logdet(2.0 * math.pi * self.noise_covariance) + squares
        log_prob: Tensor = along.log_prob(math.sqrt(len(data)) * (center - self.mean))
        return log_prob - 0.5 * noise
