"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from credo.metrics.classification import LabeledPredictions
from credo.plots._tools import axes_or_new, check_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from credo.predictive import Predictive

_NUMBERED = 20  # with more classes the cells have no room for numbers
_POINTS = 72  # to the inch
_CHARACTER = 0.7  # width of a character and the space around it, in font sizes


def confusion(
    p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, names: Sequence[str] | None = None
) -> Axes:
    """How often each true class, a row, was given each most probable class, a column.

    Numbers count targets, shades are their share of the true class. Up to 20 classes have numbers.

    Args:
        p: the prediction of classes.
        y: the true classes; those that the likelihood ignores are left out.
        ax: where to draw; a new figure where ``None``.
        names: names of the classes; by default their numbers.
    """
    from sklearn.metrics import confusion_matrix

    answers = LabeledPredictions.from_predictive(p, y, "confusion")
    n = answers.probability.shape[1]
    counts = confusion_matrix(answers.label, answers.predicted, labels=range(n))
    check_names(names, n)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax = axes_or_new(ax)
    ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    if n <= _NUMBERED:
        _write_numbers(ax, counts, share)
    _name_classes(ax, names or [str(c) for c in range(n)])
    ax.set(xlabel="predicted class", ylabel="true class")
    return ax


def _write_numbers(ax: Axes, counts: NDArray[np.int64], share: NDArray[np.float64]) -> None:
    """The counts that are not 0, as large as their cells allow."""
    import matplotlib as mpl

    size = min(mpl.rcParams["font.size"], _cell(ax, len(counts)) / (_CHARACTER * len(str(counts.max()))))
    for row, column in np.argwhere(counts):
        color = "white" if share[row, column] > 0.6 else "black"
        ax.text(column, row, str(counts[row, column]), ha="center", va="center", color=color, fontsize=size)


def _name_classes(ax: Axes, names: Sequence[str]) -> None:
    """The names of the classes along both axes, upright where they are wider than a cell; of many, every k-th."""
    ticks = range(0, len(names), -(-len(names) // _NUMBERED))
    shown = [names[i] for i in ticks]
    cell = _cell(ax, len(ticks))
    size = min(float(ax.xaxis.get_ticklabels()[0].get_fontsize()), cell)
    is_wide = _CHARACTER * size * max(len(name) for name in shown) > cell
    ax.set_xticks(ticks, shown, rotation=90 if is_wide else 0, fontsize=size)
    ax.set_yticks(ticks, shown, fontsize=size)
    ax.tick_params(length=0)


def _cell(ax: Axes, n: int) -> float:
    """The side of one of n × n cells, in points."""
    box = ax.get_window_extent()
    return min(box.width, box.height) / ax.figure.dpi * _POINTS / n
