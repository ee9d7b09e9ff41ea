"""Predictions to score, and targets that really come from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.likelihoods import Gaussian, Likelihood
from credo.predictive import Interval, Predictive, RealPredictive
from credo.predictive.components import RealComponents

F64 = torch.float64


def prediction(likelihood: Likelihood, *shape: int, seed: int = 0, spread: float = 1.0) -> Predictive:
    """A prediction from random outputs ``shape = [S, B, ...]`` of a network."""
    generator = torch.Generator().manual_seed(seed)
    return likelihood.predictive(spread * torch.randn(shape, generator=generator, dtype=F64))


def unequal_weights(likelihood: Likelihood, rows: int, seed: int = 0) -> Predictive:
    """A mixture of five draws whose weights are ¼, ¼, 1/6, 1/6, 1/6."""
    parts = [prediction(likelihood, draws, rows, seed=seed + draws) for draws in (2, 3)]
    return Predictive.mixture(parts)


def own_targets(p: Predictive, seed: int) -> Tensor:
    """A target for each row from the prediction itself, independent over rows (a sample shares its draw)."""
    rows = torch.arange(len(p))
    return p.sample(len(p), seed=seed)[rows, rows]


@dataclass(frozen=True, eq=False, repr=False)
class Widened(RealPredictive):
    """A recalibrated prediction: all of it three times as far from its mean, its components as they were."""

    components: RealComponents

    def cdf(self, y: Tensor) -> Tensor:
        return super().cdf(self.mean + (y - self.mean) / 3)

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        return self.mean + 3 * (super().quantile(q) - self.mean)

    def interval(self, level: float = 0.95) -> Interval:
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))


def widened_gaussian(rows: int) -> tuple[Predictive, Predictive]:
    """A recalibrated prediction, and the plain one it is equal to."""
    means, scales = torch.randn(2, 6, rows, generator=torch.Generator().manual_seed(0), dtype=F64)
    outputs = torch.stack([means, scales], -1)
    p = Gaussian("heteroscedastic").predictive(outputs)
    far = p.mean + 3 * (p.draws - p.mean)
    wide = torch.stack([far.squeeze(-1), scales + 2 * torch.log(torch.tensor(3.0, dtype=F64))], -1)
    return Widened(p.components), Gaussian("heteroscedastic").predictive(wide)
