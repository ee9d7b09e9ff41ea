"""Small images without data files: handwritten digits, rotated images, and printed letters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from credo._arguments import check_fraction, check_integer
from credo.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LETTERS = "ABCDEFGHIJ"
_FONTS = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "STIXGeneral")
_BLOCK = 4


@dataclass(frozen=True, eq=False)
class Images:
    """Labeled images, in a training and a test part; a part that does not exist has no rows.

    Attributes:
        x_train: training images ``[N, C, H, W]``, float32 in [0, 1].
        y_train: training classes ``[N]``, int64.
        x_test: test images ``[M, C, H, W]``.
        y_test: test classes ``[M]``, int64.
        classes: names of the classes.

    Example:
        >>> data = load_digits()
        >>> data.x_train.shape
        torch.Size([1347, 1, 8, 8])
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]


def load_digits(test_fraction: float = 0.25, seed: int = 0) -> Images:
    """Load the 1,797 handwritten 8×8 digits of scikit-learn, scaled to [0, 1], with a stratified split.

    Args:
        test_fraction: fraction of the images in the test part.
        seed: seed of the split.

    Returns:
        The images, ``[N, 1, 8, 8]``.

    Raises:
        InputError: if ``test_fraction`` is not between 0 and 1.

    References:
        Alpaydin, Kaynak. Optical recognition of handwritten digits. UCI Machine Learning Repository, 1998.
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    check_fraction(test_fraction, "test_fraction")
    bunch = datasets.load_digits()
    x = torch.from_numpy(bunch.images / 16.0).float()[:, None]
    y = torch.from_numpy(bunch.target).long()
    train, test = train_test_split(np.arange(len(y)), test_size=test_fraction, random_state=seed, stratify=bunch.target)
    return Images(x[train], y[train], x[test], y[test], tuple(str(d) for d in range(10)))


def rotate(images: Tensor, degrees: float | Tensor) -> Tensor:
    """Rotate images counterclockwise about their center, with bilinear interpolation and zeros outside.

    Args:
        images: images ``[B, C, H, W]``.
        degrees: one angle for all images, or one for each, ``[B]``.

    Returns:
        The rotated images, ``[B, C, H, W]``.

    Raises:
        InputError: if the shape of ``images`` or of ``degrees`` does not match.
    """
    if images.dim() != 4:
        raise InputError(f"images must have shape [B, C, H, W], got {list(images.shape)}")
    angle = torch.as_tensor(degrees, dtype=images.dtype, device=images.device).deg2rad()
    if angle.shape not in (torch.Size([]), torch.Size([len(images)])):
        raise InputError(f"degrees must be one number or one for each of {len(images)} images, got {list(angle.shape)}")
    cos, sin = angle.cos().expand(len(images)), angle.sin().expand(len(images))
    # grid_sample takes the source of each output pixel, in coordinates with the y axis down, scaled by height and
    # width separately.
    ratio = images.shape[-2] / images.shape[-1]
    zero = torch.zeros_like(cos)
    theta = torch.stack([cos, -sin * ratio, zero, sin / ratio, cos, zero], dim=-1).view(-1, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def letters(n: int = 500, seed: int = 0, *, size: int = 8, characters: str = LETTERS) -> Tensor:
    """Draw printed letters, by default A to J in 8×8: out-of-distribution images for a classifier of digits.

    They are made like scikit-learn's digits: each pixel is the mean of a 4×4 block of a bitmap. Letters appear equally
    often, in four typefaces, regular or bold, and each is slightly rotated, slanted and scaled at random, so that they
    differ from digits in shape and not in resolution or contrast.

    Args:
        n: number of images.
        seed: seed of the typefaces and the distortions.
        size: height and width of an image.
        characters: what to draw, one after the other.

    Returns:
        The images, ``[n, 1, size, size]`` in [0, 1].

    Raises:
        InputError: if ``n`` or ``size`` is below 1, or ``characters`` has none, or one that is blank.
    """
    check_integer(n, "n", 1)
    check_integer(size, "size", 1)
    if not characters or any(character.isspace() for character in characters):
        raise InputError(f"characters must be a string of one or more characters without blanks, got {characters!r}")
    rng = np.random.default_rng(seed)
    images = np.empty((n, 1, size, size), dtype=np.float32)
    for i in range(n):
        outline = _outline(
            characters[i % len(characters)], _FONTS[rng.integers(len(_FONTS))], ("normal", "bold")[rng.integers(2)]
        )
        images[i, 0] = _rasterize(outline, size, rng)
    return torch.from_numpy(images)


@cache
def _outline(letter: str, family: str, weight: str) -> list[NDArray[np.float64]]:
    """The polygons of a glyph, its box centered on the origin, 2 high and at most 1.7 wide."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    path = TextPath((0.0, 0.0), letter, size=100, prop=FontProperties(family=family, weight=weight))
    polygons = [np.asarray(polygon, dtype=np.float64) for polygon in path.to_polygons()]
    corners = np.concatenate(polygons)
    low, high = corners.min(axis=0), corners.max(axis=0)
    width, height = high - low
    scale = 2.0 / height * np.array([min(1.0, 0.85 * height / width), 1.0])
    return [(polygon - (low + high) / 2.0) * scale for polygon in polygons]


def _rasterize(outline: list[NDArray[np.float64]], size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a randomly distorted glyph as the fraction of set bits in each block of a bitmap, ``[size, size]``."""
    from matplotlib.path import Path

    angle, slant = np.deg2rad(rng.uniform(-10.0, 10.0)), rng.uniform(-0.15, 0.15)
    width, height = rng.uniform(0.75, 1.0), rng.uniform(0.85, 1.0)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    distort = turn @ np.array([[width, slant], [0.0, height]])
    bits_per_side = size * _BLOCK
    centers = (np.arange(bits_per_side) + 0.5) / bits_per_side * 2.0 - 1.0
    columns, rows = np.meshgrid(centers, -centers)
    points = np.column_stack([columns.ravel(), rows.ravel()])
    bits = np.zeros(len(points), dtype=bool)
    for polygon in outline:
        bits ^= Path(polygon @ distort.T).contains_points(points)  # even-odd rule: the hole of an A is outside
    fractions: NDArray[np.float64] = bits.reshape(size, _BLOCK, size, _BLOCK).mean(axis=(1, 3))
    return fractions
