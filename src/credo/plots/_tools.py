"""What the figures share: axes, arrays, legends and subsets of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from credo._arguments import check_fraction
from credo.errors import InputError
from credo.predictive import Predictive, RealPredictive
from credo.predictive.location_scale import GaussianComponents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from matplotlib.legend import Legend
    from numpy.typing import ArrayLike, NDArray

_LEGEND: Final[dict[str, Any]] = {
    "frameon": True,
    "framealpha": 0.8,
    "edgecolor": "none",
    "borderpad": 0.3,
    "borderaxespad": 0.1,
    "labelspacing": 0.3,
    "columnspacing": 1.2,
    "handlelength": 1.7,
    "handletextpad": 0.5,
}
_MAX_WIDTH: Final = 1.15  # of a legend relative to its axes, which a layout can still widen


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def legend_on_top(ax: Axes) -> Legend:
    """Add a legend at the top of the axes, in as few rows as possible, and extend the y axis to make room for it."""
    room = ax.get_window_extent()
    for columns in range(len(ax.get_legend_handles_labels()[1]), 0, -1):
        legend = ax.legend(loc="upper center", ncols=columns, **_LEGEND)
        box = legend.get_window_extent()
        if box.width < _MAX_WIDTH * room.width:
            break
    fraction = min(1.1 * box.height / room.height, 0.5)
    ax.autoscale_view()
    to_data = (ax.transScale + ax.transLimits).inverted()
    # Autoscaling is kept, so that a second call on the same axes first adapts to its data.
    ax.set_ylim(top=to_data.transform((0.0, 1.0 / (1.0 - fraction)))[1], auto=None)
    return legend


def map_scale(drawn: AxesImage, cax: Axes, label: str = "") -> None:
    """Draw the scale of a map from 0 below it, with a few numbers that do not overlap."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    numbers = ScalarFormatter()
    numbers.set_powerlimits((-2, 3))  # 0.0003 and 0.0006 would overlap
    bar = cax.figure.colorbar(
        drawn, cax=cax, orientation="horizontal", extend="max", label=label, ticks=MaxNLocator(3), format=numbers
    )
    bar.outline.set_visible(False)


def to_array(values: ArrayLike | torch.Tensor) -> NDArray[np.float64]:
    """Return numbers of any kind, on any device, as a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    if isinstance(values, Predictive):
        raise InputError("numbers are needed, got a prediction: pass one of its quantities, such as p.entropy or p.std")
    return np.asarray(values, dtype=np.float64)


def evenly_spaced(n: int, maximum: int) -> NDArray[np.intp]:
    """Return at most ``maximum`` of the integers 0 … n − 1, evenly spaced, including both ends."""
    return np.unique(np.linspace(0, n - 1, min(n, maximum)).round().astype(np.intp))


def check_names(names: Sequence[str] | None, classes: int) -> None:
    """Raise ``InputError`` unless there is one name per class, or ``names`` is ``None``."""
    if names is not None and len(names) != classes:
        raise InputError(f"names must hold one name per class, {classes} in all, got {len(names)}")


def check_predictive(p: object, call: str) -> None:
    """Raise ``InputError`` unless ``p`` is a prediction; ``call`` shows the order of the arguments."""
    if not isinstance(p, Predictive):
        raise InputError(f"p must be a prediction, as model.predict returns it, got {type(p).__name__}: call {call}")


def draw_band(predictive: Predictive, level: float) -> NDArray[np.float64]:
    """Return the central interval of the drawn functions or probabilities, lower and upper ends, ``[2, B, ...]``."""
    components = predictive.components
    if isinstance(components, GaussianComponents) and components.epistemic is not None:  # no drawn functions
        functions = GaussianComponents(components.mean, components.function_variance.log())
        return to_array(RealPredictive(functions, predictive.weights).quantile(_ends(level)))
    weights = None if predictive.weights is None else to_array(predictive.weights)
    return draw_quantiles(to_array(predictive.draws), weights, level)


def draw_quantiles(
    draws: NDArray[np.float64], weights: NDArray[np.float64] | None, level: float
) -> NDArray[np.float64]:
    """Return the ends of the central interval of values ``[S, ...]`` with weights ``[S]``, ``[2, ...]``."""
    if weights is None:
        return np.quantile(draws, _ends(level), axis=0)
    return np.quantile(draws, _ends(level), axis=0, method="inverted_cdf", weights=weights)


def _ends(level: float) -> list[float]:
    level = check_fraction(level, "level")
    return [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
