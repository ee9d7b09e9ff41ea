"""Figures of pixel classes: image, truth, prediction, and maps of the two uncertainties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from credo.errors import InputError
from credo.plots._tools import check_names, check_predictive, map_scale, to_array
from credo.plots.images import unit_images
from credo.predictive.classes import CategoricalComponents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from numpy.typing import NDArray
    from torch import Tensor

    from credo.predictive import Predictive

VOID_COLOR = (0.0, 0.0, 0.0)
_COLUMNS = ("image", "truth", "prediction", "epistemic", "aleatoric")
_WIDTH = 9.6  # of the figure, in inches
_GAP = 0.06  # between panels
_HEADER = 0.26  # for the titles
_LEGEND_ROW = 0.19
_COLOR_BARS = 0.55  # room below the panels
_BAR = 0.08  # height of a color bar
_LEGEND_COLUMNS = 4


def segmentation_maps(
    images: Tensor | NDArray[np.floating],
    y: Tensor | NDArray[np.integer],
    p: Predictive,
    *,
    names: Sequence[str] | None = None,
    colors: Sequence[tuple[float, float, float]] | None = None,
) -> Figure:
    """Plot one row per image: the image, its true and predicted classes, and the parts of its uncertainty.

    The epistemic map is the mutual information between a pixel's class and the weights, which more training images
    would reduce; the aleatoric map is the expected entropy, which they would not. Each has a scale in nats from 0 to
    its 99th percentile. Pixels with the likelihood's ``ignore_index`` are black in the truth.

    Args:
        images: ``[N, H, W]``, ``[N, 1, H, W]`` or ``[N, 3, H, W]``, between 0 and 1, or integers from 0 to 255.
        y: class of every pixel, ``[N, H, W]``.
        p: the prediction of the N images.
        names: the names of the classes; ``None``: their numbers.
        colors: red, green and blue of each class, between 0 and 1; ``None``: matplotlib's ``tab20``.

    Returns:
        A new figure.

    Raises:
        InputError: if the prediction is not one of pixel classes, or shapes or numbers of classes do not match.

    Example:
        >>> p = model.predict(x[:3], samples=50, seed=0)
        >>> credo.plots.segmentation_maps(x[:3], y[:3], p, names=scenes.classes, colors=scenes.colors)

    References:
        Kendall, Badrinarayanan, Cipolla. Bayesian SegNet. BMVC, 2017. arXiv:1511.02680, Figure 1.
        Kendall, Gal. What uncertainties do we need in Bayesian deep learning for computer vision? NeurIPS, 2017.
        arXiv:1703.04977, Figure 1.
    """
    check_predictive(p, "segmentation_maps(images, y, p)")
    shown = unit_images(images)
    components = p.components
    if not isinstance(components, CategoricalComponents) or p.mode.ndim != 3:
        raise InputError(f"p must be a prediction of a class for every pixel, [N, H, W], got {p}")
    palette = _palette(components.classes, colors)
    check_names(names, components.classes)
    labels = torch.as_tensor(y).detach().cpu()
    if labels.is_floating_point():
        raise InputError(f"y must hold classes as integers, got {labels.dtype}: call y.long()")
    expected = (len(shown), *shown.shape[-2:])
    for name, shape in (("y", labels.shape), ("p", p.mode.shape)):
        if tuple(shape) != expected:
            raise InputError(f"{name} must have one class per pixel of the images, {list(expected)}, got {list(shape)}")

    legend = _legend_handles(names or [str(c) for c in range(components.classes)], palette, labels)
    footer = max(_LEGEND_ROW * math.ceil(len(legend) / _LEGEND_COLUMNS) + 0.12, _COLOR_BARS)
    figure, axes, below = _panels(len(shown), shown.shape[-2] / shown.shape[-1], footer)
    pixels = to_array(shown.permute(0, 2, 3, 1).squeeze(-1))
    for row, image, true, predicted in zip(axes, pixels, labels, p.mode.cpu(), strict=True):
        row[0].imshow(image, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        row[1].imshow(_colored(true, palette), interpolation="nearest")
        row[2].imshow(_colored(predicted, palette), interpolation="nearest")
    for j, part in ((3, p.epistemic), (4, p.aleatoric)):
        maps = to_array(part)
        top = float(np.quantile(maps, 0.99)) or 1.0
        for row, values in zip(axes, maps, strict=True):
            drawn = row[j].imshow(values, cmap="magma", vmin=0.0, vmax=top, interpolation="nearest")
        map_scale(drawn, below[j], "nats")
        below[j].tick_params(length=2, pad=1)
    for ax, title in zip(axes[0], _COLUMNS, strict=True):
        ax.set_title(title)
    figure.legend(
        handles=legend,
        loc="upper center",
        bbox_to_anchor=(1.5 / len(_COLUMNS), footer / figure.get_figheight()),
        ncols=min(len(legend), _LEGEND_COLUMNS),
        frameon=False,
        fontsize=8.0,
        handlelength=1.2,
        handleheight=1.0,
        columnspacing=1.6,
    )
    return figure


def _panels(rows: int, aspect: float, footer: float) -> tuple[Figure, list[list[Axes]], dict[int, Axes]]:
    """A figure with rows of panels of equal size, and axes for the color bars below the two uncertainties."""
    from matplotlib.figure import Figure

    columns = len(_COLUMNS)
    width = (_WIDTH - (columns + 1) * _GAP) / columns
    height = width * aspect
    total = rows * (height + _GAP) + _HEADER + footer
    figure = Figure(figsize=(_WIDTH, total))

    def add(left: float, bottom: float, width: float, height: float) -> Axes:
        """Axes at a position in inches."""
        return figure.add_axes((left / _WIDTH, bottom / total, width / _WIDTH, height / total))

    lefts = [_GAP + j * (width + _GAP) for j in range(columns)]
    bottoms = [total - _HEADER - i * _GAP - (i + 1) * height for i in range(rows)]
    axes = [[add(left, bottom, width, height) for left in lefts] for bottom in bottoms]
    for ax in (ax for row in axes for ax in row):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    below = {j: add(lefts[j] + 0.1 * width, footer - _BAR - 0.05, 0.8 * width, _BAR) for j in (3, 4)}
    return figure, axes, below


def _palette(classes: int, colors: Sequence[tuple[float, float, float]] | None) -> NDArray[np.float64]:
    """Red, green and blue of each class, ``[C, 3]``."""
    if colors is None:
        import matplotlib as mpl

        table: Colormap = mpl.colormaps["tab20"]
        return np.array([table(c % 20)[:3] for c in range(classes)])
    palette = np.asarray(colors, dtype=np.float64)
    if palette.shape != (classes, 3):
        raise InputError(f"colors must hold red, green and blue of each of {classes} classes, got {colors!r}")
    if palette.min() < 0.0 or palette.max() > 1.0:
        raise InputError(f"colors must lie between 0 and 1, got numbers from {palette.min():g} to {palette.max():g}")
    return palette


def _colored(labels: Tensor, palette: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colors ``[H, W, 3]`` of classes ``[H, W]``; labels without a class have that of void."""
    classes = len(palette)
    index = torch.where((labels >= 0) & (labels < classes), labels, classes).numpy()
    colored: NDArray[np.float64] = np.vstack([palette, VOID_COLOR])[index]
    return colored


def _legend_handles(names: Sequence[str], palette: NDArray[np.float64], labels: Tensor) -> list[Patch]:
    """The colors of all classes, and of void if there is any."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=tuple(color), label=name) for name, color in zip(names, palette, strict=True)]
    if bool(((labels < 0) | (labels >= len(palette))).any()):
        handles.append(Patch(facecolor=VOID_COLOR, label="void"))
    return handles
