"""Grids of images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_integer
from credo.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BELOW_ZERO = 0.25  # images with lower values range from −1 to 1


def image_grid(
    images: Tensor | NDArray[np.floating],
    columns: int | None = None,
    *,
    value_range: tuple[float, float] | None = None,
    gap: int = 0,
) -> Figure:
    """Plot images in a grid.

    Args:
        images: ``[N, H, W]``, ``[N, 1, H, W]`` or ``[N, 3, H, W]``; rows of numbers ``[N, D]`` with D a square; or
            ``[rows, columns, C, H, W]``, as returned by ``interpolate``.
        columns: the number of images per row; ``None``: about as many as rows.
        value_range: the values of black and white; ``None``: 0 and 1, −1 and 1 if there are values below −0.25, 0 and
            255 for integers.
        gap: the number of black pixels around each image.

    Returns:
        A new figure.

    Raises:
        InputError: if the shape is not that of images, values are not finite, or an option is not valid.
    """
    from matplotlib.figure import Figure

    given = torch.as_tensor(images).detach().cpu()
    if given.ndim == 5:
        columns = given.shape[1] if columns is None else columns
        given = given.flatten(0, 1)
    tiles = as_images(given.float())
    if not bool(tiles.isfinite().all()):
        raise InputError("images must be finite, got NaN or infinite values")
    low, high = value_range or _default_range(given)
    if not low < high:
        raise InputError(f"value_range must be (black, white) with black < white, got {value_range}")
    count = math.ceil(math.sqrt(len(tiles))) if columns is None else columns
    mosaic = tile(((tiles - low) / (high - low)).clamp(0.0, 1.0), count, gap)
    height, width = mosaic.shape[:2]
    figure = Figure(figsize=(6.0, max(6.0 * height / width, 0.5)), dpi=100)
    _show(figure.add_axes((0.0, 0.0, 1.0, 1.0)), mosaic, aspect="auto")
    return figure


def draw_images(ax: Axes, images: Tensor, columns: int, title: str = "", *, gap: int = 1) -> None:
    """Draw images ``[N, C, H, W]`` between 0 and 1 in a grid on the axes."""
    _show(ax, tile(images.detach().cpu().float().clamp(0.0, 1.0), columns, gap))
    ax.set_title(title)


def _show(ax: Axes, mosaic: NDArray[np.float32], **options: Any) -> None:
    ax.imshow(mosaic, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest", **options)
    ax.set_axis_off()


def _default_range(images: Tensor) -> tuple[float, float]:
    """Return the values of black and white by dtype and range; means near 0 can be slightly negative."""
    if _are_bytes(images):
        return 0.0, 255.0
    return (-1.0, 1.0) if float(images.min()) < -_BELOW_ZERO else (0.0, 1.0)


def _are_bytes(images: Tensor) -> bool:
    return not images.is_floating_point() and images.dtype != torch.bool


def unit_images(values: Tensor | NDArray[Any]) -> Tensor:
    """Return images as float32 ``[N, C, H, W]`` between 0 and 1; integers are from 0 to 255."""
    given = torch.as_tensor(values).detach().cpu()
    return as_images(given.float() / (255.0 if _are_bytes(given) else 1.0)).clamp(0.0, 1.0)


def as_images(values: Tensor) -> Tensor:
    """Return ``values`` as images ``[N, C, H, W]`` with one or three channels."""
    if values.ndim == 2:
        side = math.isqrt(values.shape[1])
        if side * side != values.shape[1]:
            raise InputError(f"rows of {values.shape[1]} numbers are not square images: reshape them to [N, H, W]")
        values = values.unflatten(1, (side, side))
    if values.ndim == 3:
        values = values.unsqueeze(1)
    if values.ndim != 4 or values.shape[1] not in (1, 3) or len(values) == 0:
        raise InputError(
            f"images must have shape [N, H, W] or [N, C, H, W] with 1 or 3 channels, got {list(values.shape)}"
        )
    return values


def tile(images: Tensor, columns: int, gap: int = 0) -> NDArray[np.float32]:
    """Return images ``[N, C, H, W]`` as one, ``[rows·H, columns·W, C]`` (without C if it is 1); blanks are white.

    Every image has a border of ``gap`` black pixels.
    """
    columns, gap = check_integer(columns, "columns", minimum=1), check_integer(gap, "gap", minimum=0)
    images = F.pad(images, (gap, gap, gap, gap))
    rows = -(-len(images) // columns)
    blank = images.new_ones((rows * columns - len(images), *images.shape[1:]))
    grid = torch.cat([images, blank]).unflatten(0, (rows, columns))
    mosaic = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    array: NDArray[np.float32] = mosaic.squeeze(-1).numpy()
    return array
