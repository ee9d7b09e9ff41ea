"""Tables for the tests of linear and logistic regression."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch.distributions import MultivariateNormal

from credo.linear import BayesianLinearRegression
from credo.linear._algebra import ReducedTable


def table(rows: int = 80, columns: int = 5, noise: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) @ rng.normal(size=(columns, columns)) + 1.0
    return x, x @ rng.normal(size=columns) + 5.0 + noise * rng.normal(size=rows)


def sparse(rows: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ten columns of which the second and the sixth matter."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 10))
    return x, 2.0 * x[:, 1] - x[:, 5] + 0.3 * rng.normal(size=rows)


def wide() -> tuple[np.ndarray, np.ndarray]:
    """Twice as many columns as rows, of falling size."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 60)) * np.geomspace(1.0, 0.01, 60)
    return x, x @ rng.normal(size=60) + 0.5 * rng.normal(size=30)


TABLES = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "plain": table,
    "noisy": lambda: table(noise=5.0),
    "wide": wide,
}


def table_of(x: np.ndarray, y: np.ndarray, centered: bool = False) -> ReducedTable:
    model = BayesianLinearRegression(fit_intercept=False, weight_precision=1.0, noise_precision=1.0).fit(x, y)
    return model.statistics_.to_table(centered=centered)


def direct_evidence(x: np.ndarray, y: np.ndarray, alpha: np.ndarray, beta: float) -> float:
    covariance = torch.from_numpy(np.eye(len(y)) / beta + x / alpha @ x.T)
    return MultivariateNormal(torch.zeros(len(y)).double(), covariance).log_prob(torch.from_numpy(y)).item()


def standardized(load) -> tuple[np.ndarray, np.ndarray]:
    x, y = load(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def tiny(rows: int = 12, columns: int = 2, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = (x[:, 0] + rng.normal(size=rows) > 0).astype(int)
    return x, y if classes == 2 else np.arange(rows) % classes
