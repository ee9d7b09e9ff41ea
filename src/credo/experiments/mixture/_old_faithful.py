"""The eruptions of the Old Faithful geyser, and synthetic data for smoke runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credo.datasets.files import arrays
from credo.experiments.registry import RunConfig

SYNTHETIC_ROWS = 150
AXIS_LABELS = ("length of an eruption, minutes", "time to the next, minutes")


def eruptions(config: RunConfig) -> NDArray[np.float64]:
    """Length of 272 eruptions and time to the next, ``[272, 2]``; for a smoke run, two Gaussian clusters."""
    if config.budget != "smoke":
        return np.asarray(arrays("small/old_faithful.npz")["X"], np.float64)
    random = np.random.default_rng(config.seed)
    long = random.random((SYNTHETIC_ROWS, 1)) < 0.65
    mean, deviation = np.where(long, (4.3, 80.0), (2.0, 54.5)), np.where(long, (0.4, 6.0), (0.25, 6.0))
    common = random.normal(size=(SYNTHETIC_ROWS, 1))
    return mean + deviation * (0.6 * common + 0.8 * random.normal(size=(SYNTHETIC_ROWS, 2)))


def standardize(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale every column to mean 0 and standard deviation 1."""
    scaled: NDArray[np.float64] = (x - x.mean(0)) / x.std(0)
    return scaled
