"""Data and a model for the tests of Gaussian process regression."""

from __future__ import annotations

import numpy as np

from credo.gaussian_process import GaussianProcessRegressor
from credo.gaussian_process.kernels import RBF

from .pairs import NOISE

KERNEL = 1.5 * RBF(0.7)


def curve(n=25, d=1, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-2.0, 2.0, size=(n, d))
    return X, 3.0 + 2.0 * np.sin(2.0 * X).sum(1) + NOISE * random.normal(size=n)


def fixed(kernel=KERNEL, **options):
    """A regressor with fixed hyperparameters."""
    return GaussianProcessRegressor(kernel, **{"optimizer": None, "noise": NOISE, "normalize_y": False} | options)
