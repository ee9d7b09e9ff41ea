"""Distributions with reference values by quadrature, and mixtures without closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.distributions import (
    Categorical,
    Distribution,
    Gumbel,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)


def mixture(means=(-2.0, 2.0), scales=(0.5, 1.0), weights=(0.5, 0.5)) -> MixtureSameFamily:
    components = Normal(torch.tensor(means, dtype=torch.float64), torch.tensor(scales, dtype=torch.float64))
    return MixtureSameFamily(Categorical(torch.tensor(weights, dtype=torch.float64)), components)


def bimodal(separation: float = 1.5, weights=(0.5, 0.5)) -> MixtureSameFamily:
    means = separation * torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    covariances = torch.tensor([[[0.6, 0.2], [0.2, 0.4]], [[0.5, -0.3], [-0.3, 0.6]]], dtype=torch.float64)
    return MixtureSameFamily(
        Categorical(torch.tensor(weights, dtype=torch.float64)), MultivariateNormal(means, covariances)
    )


def correlated(rho: float = 0.8, scales=(1.0, 1.0)) -> MultivariateNormal:
    scale = torch.tensor(scales, dtype=torch.float64)
    covariance = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64) * torch.outer(scale, scale)
    return MultivariateNormal(torch.tensor([0.5, -0.3], dtype=torch.float64), covariance)


def as_mixture(p: MultivariateNormal) -> MixtureSameFamily:
    """The same distribution as a mixture of one component, for which credo has no closed form."""
    components = MultivariateNormal(p.loc[None], p.covariance_matrix[None])
    return MixtureSameFamily(Categorical(torch.ones(1, dtype=torch.float64)), components)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


ON_THE_LINE: dict[str, Distribution] = {
    "normal": Normal(number(0.3), number(1.2)),
    "wide normal": Normal(number(-0.5), number(2.0)),
    "laplace": Laplace(number(0.1), number(0.9)),
    "gumbel": Gumbel(number(0.0), number(1.1)),
    "student": StudentT(number(7.0), number(0.2), number(1.0)),
    "mixture": mixture(),
}


def on_the_line(p: Distribution, function: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """E_p[f(x)] by the trapezoidal rule: the error is 1e-8 at a kink, and less where both are smooth."""
    x = torch.linspace(-60.0, 60.0, 240_001, dtype=torch.float64)
    return float(torch.trapezoid(p.log_prob(x).exp() * function(x), x))


def within(estimate, truth: float, errors: float = 4.0) -> bool:
    """Whether the truth is within ``errors`` standard errors, plus the error of quadrature."""
    return math.isclose(float(estimate), truth, abs_tol=errors * float(estimate.standard_error) + 1e-7)
