"""Predictions by every kind of likelihood."""

from __future__ import annotations

import torch

from credo.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from credo.predictive import Predictive

F64 = torch.float64


REAL: list[Likelihood] = [
    Gaussian(0.7),
    StudentT(3.0, 0.7),
    Poisson(),
    Gaussian("heteroscedastic"),
    LogNormal(0.5),
    Beta(8.0),
    NegativeBinomial(0.5),
]


CLASSES: list[Likelihood] = [Categorical(), Bernoulli()]


def prediction(likelihood: Likelihood, draws: int = 5, rows: int = 4, seed: int = 0, spread: float = 1.0) -> Predictive:
    generator = torch.Generator().manual_seed(seed)
    return likelihood.predictive(spread * torch.randn(draws, rows, 4, generator=generator, dtype=F64))


def assert_same(a: Predictive, b: Predictive) -> None:
    assert type(a) is type(b)
    for name in ("draws", "mean", "variance", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))
