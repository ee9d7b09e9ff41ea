"""What explanations read from a prediction: functions of the draws, their bands, and parts of the uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.plots._tools import draw_quantiles
from credo.predictive import ClassPredictive, Predictive
from credo.predictive.components import average

Floats = NDArray[np.float64]


def mean_over_draws(draws: NDArray[Any], weights: Floats | None) -> Floats:
    """Σ_s w_s v_s of values ``[S, ...]``, ``[...]``."""
    mean = average(torch.from_numpy(draws.astype(np.float64)), None if weights is None else torch.from_numpy(weights))
    return np.asarray(mean.numpy(), dtype=np.float64)


def band_over_draws(draws: Floats, weights: Floats | None, level: float) -> Floats:
    """The ends of the central interval of values ``[S, ...]``, ``[2, ...]``; NaN for a single draw."""
    if len(draws) == 1:
        return np.full((2, *draws.shape[1:]), np.nan)
    return draw_quantiles(draws, weights, level)


def drawn_means(p: Predictive) -> Tensor:
    """The mean function of every draw: ``[S, N]``, or the class probabilities ``[S, N, K]``."""
    draws = p.draws
    return torch.stack([1 - draws, draws], -1) if isinstance(p, ClassPredictive) and draws.ndim == 2 else draws


def draw_weights(p: Predictive) -> Floats | None:
    """The weights of the draws ``[S]``; ``None`` if they are equal."""
    return None if p.weights is None else np.asarray(p.weights.double().numpy())


def epistemic_part(p: Predictive) -> Tensor:
    """The epistemic standard deviation per row ``[N]``, or the mutual information of classes in nats."""
    return p.epistemic if isinstance(p, ClassPredictive) else p.epistemic.sqrt()


def aleatoric_part(p: Predictive) -> Tensor:
    """The aleatoric standard deviation per row ``[N]``, or the expected entropy of classes in nats."""
    return p.aleatoric if isinstance(p, ClassPredictive) else p.aleatoric.sqrt()
