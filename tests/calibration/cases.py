"""Predictions that are right, and the same predictions with a spread that is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributions as D

from credo.calibration import VarianceScaling
from credo.likelihoods import Categorical, Gaussian
from credo.predictive import Predictive

F64 = torch.float64
KOLMOGOROV = math.sqrt(math.log(2 / 1e-6) / 2)  # sup |F_n − F| < this/√n but for one case in a million (DKW, Massart)


def truth(rows: int, draws: int = 8, seed: int = 0, outputs: int = 1) -> Predictive:
    """A mixture of Gaussians whose draws disagree and whose noise differs from row to row."""
    g = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(rows, outputs, generator=g, dtype=F64)
    mean = mean + 0.5 * torch.randn(draws, rows, outputs, generator=g, dtype=F64)
    log_variance = torch.randn(rows, outputs, generator=g, dtype=F64).expand_as(mean) - 1
    return Gaussian("heteroscedastic").predictive(torch.cat([mean, log_variance], -1))


def wrong(factor: float, rows: int, seed: int = 0, draws: int = 8) -> tuple[Predictive, Tensor]:
    """A prediction whose spread is 1/``factor`` of the truth's, and targets from the truth."""
    p = truth(rows, draws, seed)
    return VarianceScaling(1 / factor)(p), p.sample(1, seed=seed + 1)[0]


def skewed(factor: float, rows: int, seed: int = 0) -> tuple[Predictive, Tensor]:
    """The same, with targets that scatter exponentially about the mean."""
    p = truth(rows, seed=seed)
    noise = torch.empty(rows, 1, dtype=F64).exponential_(generator=torch.Generator().manual_seed(seed + 1)) - 1
    return VarianceScaling(1 / factor)(p), p.mean + p.std * noise


def labeled(temperature: float, rows: int, draws: int = 5, seed: int = 0) -> tuple[Predictive, Tensor]:
    """Class probabilities of four classes, and labels that have them at ``temperature``."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, 4, generator=g, dtype=F64) + torch.randn(draws, rows, 4, generator=g, dtype=F64)
    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        y = D.Categorical((logits / temperature).softmax(-1).mean(0)).sample()
    return Categorical().predictive(logits), y


def coverage(p: Predictive, y: Tensor, level: float) -> float:
    lower, upper = p.interval(level)
    return float(((lower <= y) & (y <= upper)).double().mean())


def curvature(objective: Callable[[float], float], at: float, step: float = 1e-3) -> float:
    """The second derivative in the logarithm: the information a sum of log likelihoods holds about a factor."""
    low, middle, high = (objective(at * math.exp(x)) for x in (-step, 0.0, step))
    return (low - 2 * middle + high) / step**2
