"""Eruptions of the Old Faithful geyser, a stand-in for them that needs no files, and ellipses around clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from credo.datasets.files import arrays
from credo.experiments.registry import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Ellipse

STAND_IN_ROWS = 150
LABELS = ("length of an eruption, minutes", "time to the next, minutes")


def eruptions(setting: Setting) -> NDArray[np.float64]:
    """Length and time to the next of 272 eruptions, ``[272, 2]``; for a smoke run, rows of two Gaussian clusters."""
    if setting.effort != "smoke":
        return np.asarray(arrays("small/old_faithful.npz")["X"], np.float64)
    random = np.random.default_rng(setting.seed)
    long = random.random((STAND_IN_ROWS, 1)) < 0.65
    mean, deviation = np.where(long, (4.3, 80.0), (2.0, 54.5)), np.where(long, (0.4, 6.0), (0.25, 6.0))
    common = random.normal(size=(STAND_IN_ROWS, 1))
    return mean + deviation * (0.6 * common + 0.8 * random.normal(size=(STAND_IN_ROWS, 2)))


def standardized(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every column with mean 0 and standard deviation 1."""
    scaled: NDArray[np.float64] = (x - x.mean(0)) / x.std(0)
    return scaled


def add_ellipse(
    ax: Axes, mean: NDArray[np.float64], covariance: NDArray[np.float64], deviations: float = 1.0, **style: Any
) -> Ellipse:
    """Where a Gaussian in the plane is so many standard deviations from its mean."""
    from matplotlib.patches import Ellipse

    variances, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * deviations * np.sqrt(variances)
    ellipse = Ellipse((mean[0], mean[1]), width, height, angle=np.degrees(np.arctan2(axes[1, 0], axes[0, 0])), **style)
    ax.add_patch(ellipse)
    return ellipse
