"""Figures of predicted images: what was given, prediction, truth, error, and maps of the two uncertainties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from credo.errors import InputError
from credo.plots._tools import check_predictive, map_scale, to_array
from credo.plots.images import as_images, unit_images
from credo.predictive.components import RealComponents

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from credo.predictive import Predictive

_PANEL = 1.45  # width in inches
_BAR = 0.08  # height of a color bar
_IMAGES = ("prediction", "truth")
_MAPS = ("error", "epistemic std", "aleatoric std")


def restoration_maps(
    given: Mapping[str, Tensor | NDArray[np.floating]], y: Tensor | NDArray[np.floating], p: Predictive
) -> Figure:
    """Plot one row per image: what was given, the prediction, the truth, its error and both standard deviations.

    For networks whose targets are images: super-resolution, removal of noise or blur. The error is the absolute
    difference of prediction and truth. The epistemic standard deviation is that of the predicted image over draws,
    which more training images would reduce; the aleatoric one is that of the noise. With several channels, maps show
    the root mean square over channels. Each map has a scale from 0 to its 99th percentile, the same for all rows.

    Args:
        given: the first columns by their titles, such as the input of the network: images ``[N, H, W]`` or
            ``[N, C, H, W]`` with 1 or 3 channels between 0 and 1, or integers from 0 to 255, of any height and width.
        y: the true images, ``[N, C, H, W]``, in the unit of the predicted ones.
        p: the prediction of the N images.

    Returns:
        A new figure.

    Raises:
        InputError: if the prediction is not one of images, or numbers or shapes of images do not match.

    Example:
        >>> p = model.predict(x[:3], samples=50, seed=0)
        >>> credo.plots.restoration_maps({"low resolution": x[:3]}, y[:3], p)

    References:
        Kendall, Gal. What uncertainties do we need in Bayesian deep learning for computer vision? NeurIPS, 2017.
        arXiv:1703.04977, Figure 1.
    """
    from matplotlib.figure import Figure

    check_predictive(p, 'restoration_maps({"input": images}, y, p)')
    if not isinstance(given, Mapping):
        raise InputError(f'given must be images by title, such as {{"input": x}}, got {type(given).__name__}')
    if not isinstance(p.components, RealComponents) or p.mean.ndim != 4:
        raise InputError(f"p must be a prediction of images, [N, C, H, W], got {p}")
    if not torch.as_tensor(y).is_floating_point():
        raise InputError("y must be floating-point images in the unit of the predicted ones, got integers")
    truth, mean = as_images(_on_cpu(y)), _on_cpu(p.mean)
    if truth.shape != mean.shape:
        raise InputError(f"y must have the shape of the predicted images, {list(mean.shape)}, got {list(truth.shape)}")
    images = {title: unit_images(values) for title, values in given.items()}
    for title, values in images.items():
        if title in (*_IMAGES, *_MAPS):
            raise InputError(f"given has the title {title!r}, which is that of another column: choose another")
        if len(values) != len(truth):
            raise InputError(f"given[{title!r}] must hold {len(truth)} images, as y does, got {len(values)}")
    images |= dict(zip(_IMAGES, (mean, truth), strict=True))
    squares = ((mean - truth).square(), _on_cpu(p.epistemic), _on_cpu(p.aleatoric))
    maps = {title: to_array(square.mean(1).sqrt()) for title, square in zip(_MAPS, squares, strict=True)}

    rows, columns = len(truth), len(images) + len(maps)
    height = _PANEL * truth.shape[-2] / truth.shape[-1]
    figure = Figure(figsize=(_PANEL * columns, (height + 0.05) * rows + 0.75), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.0, hspace=0.0)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(rows + 1, columns, squeeze=False, height_ratios=[height] * rows + [_BAR])
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for column, title in zip(axes.T, (*images, *maps), strict=True):
        column[0].set_title(title)
    for column, values in zip(axes.T, images.values(), strict=False):
        for ax, image in zip(column, to_array(values.clamp(0.0, 1.0).permute(0, 2, 3, 1)), strict=False):
            ax.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0.0, vmax=1.0)
    for column, deviations in zip(axes.T[len(images) :], maps.values(), strict=True):
        top = float(np.quantile(deviations, 0.99)) or 1.0
        for ax, image in zip(column, deviations, strict=False):
            drawn = ax.imshow(image, cmap="magma", vmin=0.0, vmax=top)
        map_scale(drawn, column[-1])
    return figure


def _on_cpu(values: Tensor | NDArray[np.floating]) -> Tensor:
    return torch.as_tensor(values).detach().cpu().float()
