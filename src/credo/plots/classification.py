"""Figures of classifiers: confusion matrices, and class probabilities of a rotated image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo._arguments import check_integer
from credo.errors import InputError
from credo.metrics.classification import LabeledPredictions
from credo.plots._tools import axes_or_new, check_names, draw_band, legend_on_top, to_array
from credo.plots.style import CYCLE, MARKERS
from credo.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

_MAX_NUMBERED = 20  # with more classes the cells are too small for numbers
_POINTS_PER_INCH = 72
_CHARACTER_WIDTH = 0.7  # of a character and the space around it, in font sizes


def confusion(
    p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, names: Sequence[str] | None = None
) -> Axes:
    """Plot the confusion matrix: true classes in rows, most probable classes in columns.

    Numbers are counts of targets, for up to 20 classes; shades are fractions of the true class.

    Args:
        p: the prediction of classes.
        y: the true classes; those equal to the likelihood's ``ignore_index`` are left out.
        ax: the axes to draw on; ``None``: those of a new figure.
        names: names of the classes; ``None``: their indices.

    Returns:
        The axes.

    Raises:
        InputError: if ``p`` is not a prediction of classes, or ``y`` or ``names`` does not match it.
    """
    from sklearn.metrics import confusion_matrix

    labeled = LabeledPredictions.from_predictive(p, y, "confusion")
    n = labeled.probability.shape[1]
    counts = confusion_matrix(labeled.label, labeled.predicted, labels=range(n))
    check_names(names, n)
    fraction = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax = axes_or_new(ax)
    ax.imshow(fraction, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    if n <= _MAX_NUMBERED:
        _write_numbers(ax, counts, fraction)
    _name_classes(ax, names or [str(c) for c in range(n)])
    ax.set(xlabel="predicted class", ylabel="true class")
    return ax


def rotated_digit(
    images: Tensor,
    degrees: ArrayLike | Tensor,
    predictive: Predictive,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    classes: int | Sequence[int] = 3,
    level: float = 0.9,
    thumbnails: int = 7,
) -> Axes:
    """Plot class probabilities along a rotation, with a band of the posterior draws for each class.

    The band of a class contains ``level`` of the drawn probabilities: a narrow band away from 0 and 1 means that the
    image is ambiguous, a wide band that the model is uncertain.

    Args:
        images: the rotated images ``[R, 1, H, W]``, shown in a row above the axes.
        degrees: their angles ``[R]``, ascending.
        predictive: the prediction for ``images``.
        ax: the axes to draw on; ``None``: those of a new figure, with a legend.
        names: names of the classes; ``None``: their indices.
        classes: the classes to show, or the number of classes with the highest maximum probability.
        level: probability inside each band.
        thumbnails: the maximum number of images to show.

    Returns:
        The axes.

    Raises:
        InputError: if the shapes do not match, or an option is not valid.
    """
    check_integer(thumbnails, "thumbnails", minimum=1)
    angle = to_array(degrees)
    mean = to_array(predictive.mean)
    if images.dim() != 4 or not len(images) == len(angle) == len(mean):
        counts = f"{list(images.shape)}, {len(angle)} and {len(mean)}"
        raise InputError(f"images [R, 1, H, W], degrees [R] and predictions must have the same R, got {counts}")
    shown = _select_classes(classes, mean)
    check_names(names, mean.shape[1])
    lower, upper = draw_band(predictive, level)
    is_new, ax = ax is None, axes_or_new(ax)
    for c, color in zip(shown, cycle(CYCLE), strict=False):
        ax.fill_between(angle, lower[:, c], upper[:, c], color=color, alpha=0.22, linewidth=0.0)
        ax.plot(angle, mean[:, c], color=color, label=names[c] if names else str(c))
    ax.set(xlabel="rotation (degrees)", ylabel="probability", ylim=(-0.02, 1.02))
    if angle[0] < angle[-1]:
        ax.set_xlim(angle[0], angle[-1])
    if is_new:
        ax.legend(title="class", loc="best")
    _draw_thumbnails(ax, images, angle, thumbnails)
    return ax


def softmax_scatter(
    degrees: ArrayLike | Tensor,
    values: Predictive | ArrayLike | Tensor,
    ax: Axes | None = None,
    *,
    classes: int | Sequence[int] = 3,
    names: Sequence[str] | None = None,
    images: Tensor | None = None,
    thumbnails: int = 12,
    label: str = "softmax output",
) -> Axes:
    """Plot the softmax inputs or outputs of every posterior draw, class and image along a rotation.

    If the softmax inputs of two classes overlap, the model cannot separate the classes, even if the softmax of the mean
    is confident. The outputs are the draws of a prediction; the inputs are the outputs of the network,
    ``model._predictor(100, seed=0).outputs(images)``. At every angle the classes are side by side, in the order of the
    legend.

    Args:
        degrees: the angles ``[R]``, ascending, or another quantity along which the images change.
        values: a prediction of R images, or numbers ``[S, R, C]``: S draws, R images, C classes.
        ax: the axes to draw on; ``None``: those of a new figure.
        classes: the classes to show, or the number of classes with the highest maximum mean.
        names: names of the classes; ``None``: their indices.
        images: the images ``[R, 1, H, W]``, to show in a row above the axes; ``None`` shows none.
        thumbnails: the maximum number of images to show.
        label: the label of the y axis.

    Returns:
        The axes.

    Raises:
        InputError: if the shapes do not match, or an option is not valid.

    Reference: Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep
    learning", ICML 2016, Figure 4.
    """
    check_integer(thumbnails, "thumbnails", minimum=1)
    angle = to_array(degrees)
    dots = to_array(values.draws if isinstance(values, Predictive) else values)
    if dots.ndim != 3 or angle.ndim != 1 or dots.shape[1] != len(angle) or not dots.size:
        shapes = f"{list(angle.shape)} and {list(dots.shape)}"
        raise InputError(f"degrees must have shape [R] and values [S, R, C], not empty, got {shapes}")
    if images is not None and (images.dim() != 4 or len(images) != len(angle)):
        raise InputError(f"images must have shape [{len(angle)}, 1, H, W], one per angle, got {list(images.shape)}")
    shown = _select_classes(classes, dots.mean(axis=0))
    check_names(names, dots.shape[2])
    step = float(np.diff(angle).min(initial=np.inf))
    step = step if 0.0 < step < np.inf else 1.0
    ax = axes_or_new(ax)
    for i, (c, color, marker) in enumerate(zip(shown, cycle(CYCLE), cycle(MARKERS), strict=False)):
        # Side by side within half a step; otherwise the last class would hide the others at 0 and 1.
        offset = 0.5 * step * ((i + 0.5) / len(shown) - 0.5)
        ax.scatter(
            np.broadcast_to(angle + offset, dots.shape[:2]),
            dots[:, :, c],
            s=9,
            color=color,
            alpha=max(0.25, 1.0 / np.sqrt(len(dots))),
            marker=marker,
            linewidths=0,
            label=names[c] if names else f"class {c}",
            rasterized=dots[:, :, c].size > 10_000,
        )
    ax.set(xlabel="rotation (degrees)", ylabel=label, xlim=(angle[0] - 0.5 * step, angle[-1] + 0.5 * step))
    if dots.min() >= 0.0 and dots.max() <= 1.0:
        ax.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    for handle in legend_on_top(ax).legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    if images is not None:
        _draw_thumbnails(ax, images, angle, thumbnails)
    return ax


def leading_classes(predictive: Predictive, n: int) -> list[int]:
    """Return the classes with the highest maximum probability over all rows.

    Args:
        predictive: the prediction of classes, ``[B, C]``.
        n: the number of classes.

    Returns:
        The class indices, ascending.
    """
    return _leading(to_array(predictive.mean), n)


def _write_numbers(ax: Axes, counts: NDArray[np.int64], fraction: NDArray[np.float64]) -> None:
    """Write the counts that are not 0, as large as their cells allow."""
    import matplotlib as mpl

    size = min(mpl.rcParams["font.size"], _cell(ax, len(counts)) / (_CHARACTER_WIDTH * len(str(counts.max()))))
    for row, column in np.argwhere(counts):
        color = "white" if fraction[row, column] > 0.6 else "black"
        ax.text(column, row, str(counts[row, column]), ha="center", va="center", color=color, fontsize=size)


def _name_classes(ax: Axes, names: Sequence[str]) -> None:
    """Label both axes with class names, rotated if they are wider than a cell; of many, every k-th."""
    ticks = range(0, len(names), -(-len(names) // _MAX_NUMBERED))
    shown = [names[i] for i in ticks]
    cell = _cell(ax, len(ticks))
    size = min(float(ax.xaxis.get_ticklabels()[0].get_fontsize()), cell)
    is_wide = _CHARACTER_WIDTH * size * max(len(name) for name in shown) > cell
    ax.set_xticks(ticks, shown, rotation=90 if is_wide else 0, fontsize=size)
    ax.set_yticks(ticks, shown, fontsize=size)
    ax.tick_params(length=0)


def _cell(ax: Axes, n: int) -> float:
    """Return the side of one of n × n cells, in points."""
    box = ax.get_window_extent()
    return min(box.width, box.height) / ax.figure.dpi * _POINTS_PER_INCH / n


def _leading(mean: NDArray[np.float64], n: int) -> list[int]:
    peak = mean.max(axis=0)
    return sorted(int(c) for c in np.argsort(-peak, kind="stable")[:n])


def _select_classes(classes: int | Sequence[int], mean: NDArray[np.float64]) -> list[int]:
    """Return the classes to show of ``mean [R, C]``."""
    if isinstance(classes, int):
        return _leading(mean, check_integer(classes, "classes", minimum=1))
    wrong = [c for c in classes if not 0 <= c < mean.shape[1]]
    if wrong or not len(classes):
        raise InputError(f"classes must be integers from 0 to {mean.shape[1] - 1}, got {list(classes)}")
    return list(classes)


def _draw_thumbnails(ax: Axes, images: Tensor, angle: NDArray[np.float64], count: int) -> None:
    """Draw at most ``count`` of the images in a row above the axes, each above its angle."""
    picks = range(0, len(angle), -(-len(angle) // count))
    left, right = ax.get_xlim()
    width = 0.8 / len(picks)
    for pick in picks:
        center = (angle[pick] - left) / (right - left)
        frame = ax.inset_axes((center - 0.5 * width, 1.03, width, 0.22), anchor="S")
        frame.imshow(to_array(images[pick, 0]), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        frame.set_axis_off()
