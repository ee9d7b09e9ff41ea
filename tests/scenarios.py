"""Targets with a known exact answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LinearGaussian:
    """Bayesian linear regression y = Φw + noise with prior N(0, s²) and known noise, solved in closed form."""

    x: Tensor
    y: Tensor
    noise: float
    prior_scale: float

    @property
    def features(self) -> Tensor:
        """Φ = [x, 1], in double precision."""
        return torch.cat([self.x, torch.ones(len(self.x), 1)], 1).double()

    def precision(self, temperature: float = 1.0) -> Tensor:
        """Precision of the (tempered) exact posterior, I/s² + ΦᵀΦ/(Tσ²)."""
        phi = self.features
        prior = torch.eye(phi.shape[1], dtype=torch.float64) / self.prior_scale**2
        return prior + phi.T @ phi / (temperature * self.noise**2)

    def mean(self, temperature: float = 1.0) -> Tensor:
        """Mean of the (tempered) exact posterior."""
        right = self.features.T @ self.y.double().squeeze(1) / (temperature * self.noise**2)
        return torch.linalg.solve(self.precision(temperature), right)

    def posterior_std(self) -> Tensor:
        """Marginal standard deviations of the exact posterior."""
        return torch.linalg.inv(self.precision()).diagonal().sqrt()

    def mean_field_std(self, temperature: float = 1.0) -> Tensor:
        """Standard deviations of the best factorized Gaussian: the precision's diagonal, inverted."""
        return self.precision(temperature).diagonal().rsqrt()

    def log_evidence(self) -> float:
        """log p(y) = log N(y; 0, σ²I + s²ΦΦᵀ)."""
        phi, y = self.features, self.y.double().squeeze(1)
        covariance = self.noise**2 * torch.eye(len(y), dtype=torch.float64) + self.prior_scale**2 * phi @ phi.T
        return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))

    def elbo(self, mean: Tensor, std: Tensor) -> float:
        """The bound of q = N(mean, diag(std²)), exactly."""
        phi, y = self.features, self.y.double().squeeze(1)
        mean, std = mean.double(), std.double()
        error = (y - phi @ mean).square().sum() + (phi.square() @ std.square()).sum()
        expected = -0.5 * len(y) * math.log(2 * math.pi * self.noise**2) - 0.5 * error / self.noise**2
        ratio = std / self.prior_scale
        kl = (-ratio.log() + 0.5 * (ratio.square() + (mean / self.prior_scale).square()) - 0.5).sum()
        return float(expected - kl)

    def best_elbo(self) -> float:
        """The largest bound that a factorized Gaussian reaches."""
        return self.elbo(self.mean(), self.mean_field_std())

    def network(self) -> nn.Linear:
        """The model as a network."""
        return nn.Linear(self.x.shape[1], 1)


def linear_gaussian(n: int = 60, features: int = 3, noise: float = 0.5, seed: int = 0) -> LinearGaussian:
    """Correlated inputs, so that the exact posterior does not factorize."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.eye(features) + 0.4 * torch.ones(features, features)
    x = torch.randn(n, features, generator=generator) @ mixing / math.sqrt(features)
    weight = torch.randn(features, 1, generator=generator)
    y = x @ weight + 0.3 + noise * torch.randn(n, 1, generator=generator)
    return LinearGaussian(x, y, noise, prior_scale=1.0)
