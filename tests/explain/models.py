"""Linear models with given posterior draws, whose explanations are known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin

from credo.likelihoods import Categorical, Gaussian
from credo.predictive import Predictive

SIGMA = 0.5


class LinearDraws(RegressorMixin, BaseEstimator):
    """y ~ N(w_sᵀx, σ²) for draws w of shape ``[S, D]``; ``noise_weights`` v make the noise |1 + vᵀx|."""

    def __init__(self, weights: Any, sigma: float = SIGMA, noise_weights: Any = None) -> None:
        self.weights = weights
        self.sigma = sigma
        self.noise_weights = noise_weights

    def predict_dist(self, X: Any) -> Predictive:
        x, w = torch.as_tensor(np.asarray(X, dtype=np.float64)), torch.as_tensor(self.weights)
        mean = w @ x.T
        v = torch.zeros(x.shape[1]) if self.noise_weights is None else torch.as_tensor(self.noise_weights)
        scale = self.sigma * (1 + x @ v.double()).abs()
        output = torch.stack([mean, 2 * scale.log().expand_as(mean)], -1)
        return Gaussian("heteroscedastic").predictive(output)


class LogisticDraws(BaseEstimator):
    """P(y = 1) = sigmoid(w_sᵀx) for draws w of shape ``[S, D]``."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights
        self.classes_ = np.array(["no", "yes"])

    def predict_dist(self, X: Any) -> Predictive:
        logit = torch.as_tensor(self.weights) @ torch.as_tensor(np.asarray(X, dtype=np.float64)).T
        return Categorical().predictive(torch.stack([torch.zeros_like(logit), logit], -1))


def gaussian_rows(rows: int = 40, columns: int = 3, seed: int = 0) -> np.ndarray:
    """Independent columns with different means and scales."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) * np.arange(1, columns + 1) + np.arange(columns)
