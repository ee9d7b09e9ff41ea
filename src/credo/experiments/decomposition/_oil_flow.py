"""The oil flow data, and synthetic data for smoke runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo.datasets.files import arrays
from credo.experiments.registry import RunConfig
from credo.plots.style import MARKERS, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The readings of class 0 are proportional to the phase fractions, in class 2 the horizontal beams are independent.
CLASSES = ("homogeneous", "annular", "stratified")
COLORS = (OKABE_ITO["vermilion"], OKABE_ITO["blue"], OKABE_ITO["green"])
COLUMNS = 12
SYNTHETIC_ROWS = 150


@dataclass(frozen=True, eq=False)
class OilFlow:
    """Readings of 12 gamma beams through a pipe, and the configuration of oil, water and gas in it.

    Attributes:
        train: training readings ``[N, 12]``.
        train_class: configurations of the training rows ``[N]``, as indices into ``CLASSES``.
        test: test readings ``[M, 12]``.
    """

    train: NDArray[np.float64]
    train_class: NDArray[np.uint8]
    test: NDArray[np.float64]


def load_oil_flow(config: RunConfig) -> OilFlow:
    """The oil flow data; for a smoke run, three Gaussian classes with two latent dimensions in 12 columns."""
    if config.budget != "smoke":
        stored = arrays("small/oil_flow.npz")
        return OilFlow(stored["train_X"], stored["train_label"], stored["test_X"])
    random = np.random.default_rng(config.seed)
    centers = random.normal(size=(3, COLUMNS))
    label = random.integers(3, size=2 * SYNTHETIC_ROWS)
    within = random.normal(size=(2, COLUMNS))
    latent = random.normal(scale=0.3, size=(len(label), 2))
    x = centers[label] + latent @ within + 0.1 * random.normal(size=(len(label), COLUMNS))
    return OilFlow(x[:SYNTHETIC_ROWS], label[:SYNTHETIC_ROWS].astype(np.uint8), x[SYNTHETIC_ROWS:])


def scatter_classes(ax: Axes, points: NDArray[np.float64], labels: NDArray[np.uint8], size: float) -> None:
    """Draw ``points [N, 2]`` with a color and a marker for each class."""
    for k, (name, color, marker) in enumerate(zip(CLASSES, COLORS, MARKERS, strict=False)):
        x, y = points[labels == k].T
        ax.scatter(x, y, s=size, c=color, marker=marker, alpha=0.75, linewidths=0.0, label=name)
