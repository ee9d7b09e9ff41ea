"""Pictures of class probabilities: how sure a classifier is, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError
from credo.plots.style import CYCLE, axes_or_new, draw_band, to_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from torch import Tensor

    from credo.predictive import Predictive


def uncertainty_histogram(
    groups: Mapping[str, ArrayLike | Tensor],
    ax: Axes | None = None,
    *,
    bins: int = 30,
    limits: tuple[float, float] | None = None,
    label: str = "predictive entropy (nats)",
) -> Axes:
    """Histograms of an uncertainty over several groups of inputs, such as test images and foreign ones.

    Every group is scaled to area 1 over the same bins, so that groups of different sizes compare.

    Args:
        groups: one uncertainty a row, by the name of the group.
        ax: where to draw; a new figure where ``None``.
        bins: number of bins.
        limits: the range of the bins; by default that of all values.
        label: what the uncertainty is, for the axis.
    """
    from matplotlib.colors import to_rgba

    if not groups:
        raise InputError("groups must hold at least one group of values, got none")
    ax = axes_or_new(ax)
    values = {name: to_array(group).reshape(-1) for name, group in groups.items()}
    low, high = limits or (min(v.min() for v in values.values()), max(v.max() for v in values.values()))
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1).tolist()
    for (name, group), colour in zip(values.items(), _colours(len(values)), strict=True):
        ax.hist(
            group,
            edges,
            density=True,
            histtype="stepfilled",
            facecolor=to_rgba(colour, 0.25),
            edgecolor=colour,
            linewidth=1.2,
            label=name,
        )
    ax.set(xlabel=label, ylabel="density", xlim=(edges[0], edges[-1]))
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
    angle = to_array(degrees)
    mean = to_array(predictive.mean)
    if images.dim() != 4 or not len(images) == len(angle) == len(mean):
        counts = f"{list(images.shape)}, {len(angle)} and {len(mean)}"
        raise InputError(f"images [R, 1, H, W], degrees [R] and R predictions must go together, got {counts}")
    ax = axes_or_new(ax)
    shown = leading_classes(predictive, classes) if isinstance(classes, int) else list(classes)
    lower, upper = draw_band(predictive, level)
    for c, colour in zip(shown, _colours(len(shown)), strict=True):
        ax.fill_between(angle, lower[:, c], upper[:, c], color=colour, alpha=0.22, linewidth=0.0)
        ax.plot(angle, mean[:, c], color=colour, label=names[c] if names else str(c))
    ax.set(xlabel="rotation (degrees)", ylabel="probability", ylim=(-0.02, 1.02), xlim=(angle[0], angle[-1]))
    _strip(ax, images, angle, thumbnails)
    return ax


def leading_classes(predictive: Predictive, n: int) -> list[int]:
    """The ``n`` classes whose probability rises highest in any row, in ascending order."""
    peak = to_array(predictive.mean).max(axis=0)
    return sorted(int(c) for c in np.argsort(-peak, kind="stable")[:n])


def _strip(ax: Axes, images: Tensor, angle: ArrayLike, count: int) -> None:
    """Draw ``count`` of the images in a row above the axes, each over its own angle."""
    angle = to_array(angle)
    picks = np.unique(np.linspace(0, len(angle) - 1, min(count, len(angle))).round().astype(int))
    width = 0.8 / len(picks)
    for pick in picks:
        centre = (angle[pick] - angle[0]) / max(angle[-1] - angle[0], 1e-12)
        left = (1.0 - width) * centre
        frame = ax.inset_axes((left, 1.03, width, 0.22))
        frame.imshow(to_array(images[pick, 0]), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        frame.set_axis_off()


def _colours(n: int) -> list[str]:
    return [CYCLE[i % len(CYCLE)] for i in range(n)]
