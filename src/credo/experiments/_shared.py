"""Data and drawing functions that several experiments use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from credo.datasets import Images, load_digits
from credo.datasets.files import images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.experiments.registry import RunConfig


def handwritten_digits(config: RunConfig) -> Images:
    """MNIST for a full run, else the 8×8 digits of scikit-learn."""
    return images("mnist") if config.budget == "full" else load_digits(seed=config.seed)


def add_legend(figure: Figure, ax: Axes, prefix: str = "", **options: Any) -> None:
    """Add the legend of one panel below all panels, with ``prefix`` before each label."""
    handles, labels = ax.get_legend_handles_labels()
    labels = [prefix + label for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **options)


def add_ellipse(
    ax: Axes, mean: NDArray[np.float64], covariance: NDArray[np.float64], deviations: float = 1.0, **style: Any
) -> None:
    """Draw the contour of a Gaussian in the plane, ``deviations`` standard deviations from its mean."""
    from matplotlib.patches import Ellipse

    variances, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * deviations * np.sqrt(variances)
    angle = np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    ax.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, **style))
