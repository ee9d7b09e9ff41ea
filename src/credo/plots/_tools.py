"""What the figures share: axes, arrays, keys, and a few out of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from credo.errors import InputError
from credo.predictive import RealPredictive
from credo.predictive.location_scale import ExactGaussianComponents, GaussianComponents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend
    from numpy.typing import ArrayLike, NDArray

    from credo.predictive import Predictive

_KEY: Final[dict[str, Any]] = {
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
_OVERHANG: Final = 1.15  # of a key over its axes, which a layout may still widen


def axes_or_new(ax: Axes | None) -> Axes:
    """The given axes, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def legend_on_top(ax: Axes) -> Legend:
    """A key at the top, inside the axes, whose y axis is stretched to make room; in as few rows as fit the width."""
    room = ax.get_window_extent()
    for columns in range(len(ax.get_legend_handles_labels()[1]), 0, -1):
        key = ax.legend(loc="upper center", ncols=columns, **_KEY)
        box = key.get_window_extent()
        if box.width < _OVERHANG * room.width:
            break
    share = min(1.1 * box.height / room.height, 0.5)
    ax.autoscale_view()
    to_data = (ax.transScale + ax.transLimits).inverted()
    # Autoscaling stays as it was, so that a second call on the same axes fits its data first.
    ax.set_ylim(top=to_data.transform((0.0, 1.0 / (1.0 - share)))[1], auto=None)
    return key


def to_array(values: ArrayLike | torch.Tensor) -> NDArray[np.float64]:
    """Numbers of any kind, on any device, as a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)


def spread(n: int, most: int) -> NDArray[np.intp]:
    """At most ``most`` of the numbers 0 … n − 1, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.intp))


def check_level(level: float) -> float:
    """A probability strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    return level


def check_count(name: str, value: int) -> int:
    """An integer, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be at least 1, got {value!r}")
    return int(value)


def check_names(names: Sequence[str] | None, classes: int) -> None:
    """One name for each class, or none at all."""
    if names is not None and len(names) != classes:
        raise InputError(f"names must be one for each of {classes} classes, got {len(names)}")


def draw_band(predictive: Predictive, level: float) -> NDArray[np.float64]:
    """The central ``level`` of the drawn functions or probabilities at every row, lower and upper, ``[2, B, ...]``."""
    check_level(level)
    ends = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    components = predictive.components
    if isinstance(components, ExactGaussianComponents):  # its draws are means; the functions are Gaussian about them
        functions = GaussianComponents(components.mean, components.function_variance.log())
        return to_array(RealPredictive(functions, predictive.weights).quantile(ends))
    draws = to_array(predictive.draws)
    if predictive.weights is None:
        return np.quantile(draws, ends, axis=0)
    weights = to_array(predictive.weights)
    return np.quantile(draws, ends, axis=0, method="inverted_cdf", weights=weights)
