"""An image that turns until it is another: what a classifier makes of it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError
from credo.plots._tools import axes_or_new, check_count, check_names, draw_band, legend_on_top, to_array
from credo.plots.style import CYCLE, MARKERS
from credo.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor


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
    """Class probabilities along a rotation, with the spread of the posterior draws around each.

    The band of a class holds ``level`` of the drawn probabilities: a narrow band away from 0 and 1 is an image that
    is ambiguous, a wide one a model that does not know.

    Args:
        images: the rotated images ``[R, 1, H, W]``, shown in a strip above.
        degrees: their angles ``[R]``, ascending.
        predictive: the prediction for ``images``.
        ax: where to draw; a new figure where ``None``.
        names: names of the classes; by default their numbers.
        classes: the classes to show, or how many of those whose probability rises highest on the way.
        level: probability inside each band.
        thumbnails: how many of the images to show.
    """
    check_count("thumbnails", thumbnails)
    angle = to_array(degrees)
    mean = to_array(predictive.mean)
    if images.dim() != 4 or not len(images) == len(angle) == len(mean):
        counts = f"{list(images.shape)}, {len(angle)} and {len(mean)}"
        raise InputError(f"images [R, 1, H, W], degrees [R] and R predictions must go together, got {counts}")
    shown = _chosen(classes, mean)
    check_names(names, mean.shape[1])
    lower, upper = draw_band(predictive, level)
    ax = axes_or_new(ax)
    for c, color in zip(shown, cycle(CYCLE), strict=False):
        ax.fill_between(angle, lower[:, c], upper[:, c], color=color, alpha=0.22, linewidth=0.0)
        ax.plot(angle, mean[:, c], color=color, label=names[c] if names else str(c))
    ax.set(xlabel="rotation (degrees)", ylabel="probability", ylim=(-0.02, 1.02))
    if angle[0] < angle[-1]:
        ax.set_xlim(angle[0], angle[-1])
    _strip(ax, images, angle, thumbnails)
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
    """One dot for each posterior draw, class and image: the inputs or the outputs of the softmax along a rotation.

    Softmax inputs whose clouds overlap belong to classes the model cannot tell apart, however sure the softmax of
    their mean would be. The outputs are the draws of a prediction; the inputs are what the network outputs,
    ``model._predictor(100, seed=0).outputs(images)``. At every angle the classes stand side by side, in the order of
    the key.

    Args:
        degrees: the angles ``[R]``, ascending, or any other quantity along which the images change.
        values: a prediction of R images, or numbers ``[S, R, C]``: S draws, R images, C classes.
        ax: where to draw; a new figure where ``None``.
        classes: the classes to show, or how many of those whose mean rises highest on the way.
        names: names of the classes; by default their numbers.
        images: the images ``[R, 1, H, W]``, to show in a strip above.
        thumbnails: how many of the images to show.
        label: what the values are, for the axis.

    Reference: Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep
    learning", ICML 2016, Figure 4.
    """
    check_count("thumbnails", thumbnails)
    angle = to_array(degrees)
    dots = to_array(values.draws if isinstance(values, Predictive) else values)
    if dots.ndim != 3 or angle.ndim != 1 or dots.shape[1] != len(angle) or not dots.size:
        shapes = f"{list(angle.shape)} and {list(dots.shape)}"
        raise InputError(f"degrees must have shape [R] and values [S, R, C], none of them 0, got {shapes}")
    if images is not None and (images.dim() != 4 or len(images) != len(angle)):
        raise InputError(
            f"images must have shape [{len(angle)}, 1, H, W], one for each angle, got {list(images.shape)}"
        )
    shown = _chosen(classes, dots.mean(axis=0))
    check_names(names, dots.shape[2])
    step = float(np.diff(angle).min(initial=np.inf))
    step = step if 0.0 < step < np.inf else 1.0
    ax = axes_or_new(ax)
    for i, (c, color, marker) in enumerate(zip(shown, cycle(CYCLE), cycle(MARKERS), strict=False)):
        # Side by side within half a step, or the last class would hide the others at 0 and 1.
        aside = 0.5 * step * ((i + 0.5) / len(shown) - 0.5)
        ax.scatter(
            np.broadcast_to(angle + aside, dots.shape[:2]),
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
        _strip(ax, images, angle, thumbnails)
    return ax


def leading_classes(predictive: Predictive, n: int) -> list[int]:
    """The ``n`` classes whose probability rises highest in any row, in ascending order."""
    return _leading(to_array(predictive.mean), n)


def _leading(mean: NDArray[np.float64], n: int) -> list[int]:
    peak = mean.max(axis=0)
    return sorted(int(c) for c in np.argsort(-peak, kind="stable")[:n])


def _chosen(classes: int | Sequence[int], mean: NDArray[np.float64]) -> list[int]:
    """The classes to show of ``mean [R, C]``."""
    if isinstance(classes, int):
        return _leading(mean, check_count("classes", classes))
    wrong = [c for c in classes if not 0 <= c < mean.shape[1]]
    if wrong or not len(classes):
        raise InputError(f"classes must be numbers from 0 to {mean.shape[1] - 1}, got {list(classes)}")
    return list(classes)


def _strip(ax: Axes, images: Tensor, angle: NDArray[np.float64], count: int) -> None:
    """Draw at most ``count`` of the images in a row above the axes, each over its own angle."""
    picks = range(0, len(angle), -(-len(angle) // count))
    left, right = ax.get_xlim()
    width = 0.8 / len(picks)
    for pick in picks:
        center = (angle[pick] - left) / (right - left)
        frame = ax.inset_axes((center - 0.5 * width, 1.03, width, 0.22), anchor="S")
        frame.imshow(to_array(images[pick, 0]), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        frame.set_axis_off()
