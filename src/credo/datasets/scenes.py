"""Images with a class for every pixel: CamVid road scenes, and drawn streets that need no data file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_integer
from credo.datasets.files import arrays
from credo.errors import InputError

CAMVID_FILE = "camvid/camvid_120x160.npz"
Color = tuple[float, float, float]
"""Red, green and blue."""
_CAMVID_COLORS = (
    (128, 128, 128),
    (128, 0, 0),
    (192, 192, 128),
    (128, 64, 128),
    (60, 40, 222),
    (128, 128, 0),
    (192, 128, 128),
    (64, 64, 128),
    (64, 0, 128),
    (64, 64, 0),
    (0, 128, 192),
)  # those of the data set
_STREET_COLORS: tuple[Color, ...] = (
    (0.62, 0.75, 0.92),
    (0.62, 0.50, 0.42),
    (0.38, 0.38, 0.40),
    (0.24, 0.42, 0.22),
    (0.75, 0.22, 0.20),
)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images with a class for every pixel, in a training, a validation and a test part.

    Attributes:
        x_train: training images ``[N, 3, H, W]``, float32 in [0, 1].
        y_train: class of every pixel ``[N, H, W]``, int64; ``void`` where there is none.
        x_valid: validation images.
        y_valid: classes of their pixels.
        x_test: test images.
        y_test: classes of their pixels.
        classes: names of the C classes, 0 to C − 1.
        void: the label of pixels without a class, to be passed as ``ignore_index``.
        colors: red, green and blue of each class in figures, between 0 and 1.

    Example:
        >>> scenes = street_scenes(4)
        >>> scenes.x_train.shape, scenes.y_train.shape
        (torch.Size([4, 3, 48, 64]), torch.Size([4, 48, 64]))
    """

    x_train: Tensor
    y_train: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    void: int
    colors: tuple[Color, ...]

    def shrink(self, factor: int) -> Scenes:
        """Return the scenes at a lower resolution.

        Args:
            factor: images are averaged over ``factor × factor`` pixels; the label is that of a pixel near the middle of
                the block. Pixels that do not fill a block are left out.

        Returns:
            The scenes, of height ⌊H/factor⌋ and width ⌊W/factor⌋.

        Raises:
            InputError: if ``factor`` is below 1 or above the height or the width.
        """
        height, width = (size // check_integer(factor, "factor", 1) for size in self.x_train.shape[-2:])
        if not height or not width:
            raise InputError(f"factor must be at most the height and the width, got {factor}")
        middle = slice(factor // 2, None, factor)

        def labels(y: Tensor) -> Tensor:
            return y[:, middle, middle][:, :height, :width]

        return replace(
            self,
            x_train=F.avg_pool2d(self.x_train, factor),
            y_train=labels(self.y_train),
            x_valid=F.avg_pool2d(self.x_valid, factor),
            y_valid=labels(self.y_valid),
            x_test=F.avg_pool2d(self.x_test, factor),
            y_test=labels(self.y_test),
        )


def camvid() -> Scenes:
    """Read CamVid: 367 training, 101 validation and 233 test images of roads, 120×160, with 11 classes and void.

    The images are those of the SegNet papers, 360×480, averaged over blocks of 3×3 pixels; a label is that of the
    block's middle pixel. Scores are therefore not comparable with published ones, which are at full resolution.

    Returns:
        The scenes.

    Raises:
        InputError: if the file is missing or not the published one.

    References:
        Brostow, Fauqueur, Cipolla. Semantic object classes in video: A high-definition ground truth database. Pattern
        Recognition Letters, 2009.
    """
    stored = arrays(CAMVID_FILE)
    *classes, _ = (name.decode() if isinstance(name, bytes) else str(name) for name in stored["classes"])
    (x_train, y_train), (x_valid, y_valid), (x_test, y_test) = (
        (_images(stored[f"{part}_x"]), torch.from_numpy(stored[f"{part}_y"].astype(np.int64)))
        for part in ("train", "val", "test")
    )
    colors = tuple((red / 255, green / 255, blue / 255) for red, green, blue in _CAMVID_COLORS)
    return Scenes(x_train, y_train, x_valid, y_valid, x_test, y_test, tuple(classes), len(classes), colors)


def street_scenes(n: int = 40, height: int = 48, width: int = 64, seed: int = 0) -> Scenes:
    """Draw streets: sky, buildings, a road, trees and cars, in noisy and varying colors.

    A border of 1 pixel between two classes and a strip at the bottom, the hood of the observer's car, are void.

    Args:
        n: number of images in each of the three parts.
        height: height in pixels, 16 or more.
        width: width in pixels, 16 or more.
        seed: seed of the drawings.

    Returns:
        The scenes, with 5 classes.

    Raises:
        InputError: if ``n`` is below 1, or a size is below 16.
    """
    check_integer(n, "n", 1)
    check_integer(height, "height", 16)
    check_integer(width, "width", 16)
    random = np.random.default_rng(seed)
    (x_train, y_train), (x_valid, y_valid), (x_test, y_test) = (_streets(n, height, width, random) for _ in range(3))
    names = ("sky", "building", "road", "tree", "car")
    return Scenes(x_train, y_train, x_valid, y_valid, x_test, y_test, names, len(names), _STREET_COLORS)


def median_frequency_weights(y: Tensor, classes: int) -> Tensor:
    r"""Return the weight of each class that makes rare classes count as much as a class of median frequency.

        w_c = median(f) / f_c,    f_c = pixels of class c / pixels of the images in which class c appears

    (Eigen & Fergus, 2015), the class weights of the SegNet papers. Pixels without a class do not count.

    Args:
        y: class of every pixel ``[N, H, W]``; labels outside 0 to ``classes`` − 1 are void.
        classes: number of classes C.

    Returns:
        The weights, ``[C]``, for ``credo.Categorical(weight=...)``; 0 for a class that does not appear.

    Raises:
        InputError: if no pixel has a class.

    References:
        Eigen, Fergus. Predicting depth, surface normals and semantic labels with a common multi-scale convolutional
        architecture. ICCV, 2015. arXiv:1411.4734.
    """
    labels = y.flatten(1)
    valid = (labels >= 0) & (labels < check_integer(classes, "classes", 1))
    counts = torch.stack([(labels == c).sum(1) for c in range(classes)], 1).double()
    total = counts.sum(0)
    appears = total > 0
    if not bool(appears.any()):
        raise InputError("y must hold at least one pixel with a class, got none")
    frequency = total / ((counts > 0).double() * valid.sum(1, keepdim=True)).sum(0)
    weights = frequency[appears].quantile(0.5) / frequency
    return torch.where(appears, weights, 0.0).float()


def _images(pixels: NDArray[np.uint8]) -> Tensor:
    """Images ``[N, H, W, 3]`` in 0 to 255 as ``[N, 3, H, W]`` in [0, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255.0


def _streets(n: int, height: int, width: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Drawn streets ``[n, 3, height, width]`` and the classes of their pixels."""
    images, labels = zip(*(_street(height, width, random) for _ in range(n)), strict=True)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(np.stack(labels))


def _street(height: int, width: int, random: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """One drawn street: pixels ``[height, width, 3]`` and classes ``[height, width]``."""
    sky, building, road, tree, car = range(5)
    rows, columns = np.mgrid[:height, :width]
    horizon = int(random.uniform(0.4, 0.55) * height)
    label = np.full((height, width), sky)
    for left in np.arange(0, width, width // 6):
        roof = horizon * random.uniform(0.2, 0.9)
        label[(rows >= roof) & (rows < horizon) & (columns >= left) & (columns < left + width // 6)] = building
    label[horizon:] = building
    depth = (rows - horizon) / (height - horizon)
    center = width * (0.5 + random.uniform(-0.15, 0.15))
    label[(rows >= horizon) & (np.abs(columns - center) < width * (0.1 + 0.5 * depth))] = road
    for _ in range(random.integers(1, 4)):
        x, y, radius = random.uniform(0, width), horizon - random.uniform(0.0, 0.15) * height, height * 0.12
        label[(columns - x) ** 2 + (rows - y) ** 2 < radius**2] = tree
    for _ in range(random.integers(1, 3)):
        near = random.uniform(0.15, 0.7)
        x, bottom, half = center + random.uniform(-0.2, 0.2) * width, horizon + near * (height - horizon), 2 + 7 * near
        label[(np.abs(columns - x) < half * width / 64) & (rows <= bottom) & (rows > bottom - half * height / 48)] = car
    colors = np.array(_STREET_COLORS) + random.normal(0.0, 0.06, (5, 3))
    image = (colors[label] + random.normal(0.0, 0.05, (height, width, 3))).clip(0.0, 1.0).astype(np.float32)
    edge = np.zeros((height, width), bool)
    edge[:, 1:] |= label[:, 1:] != label[:, :-1]
    edge[1:] |= label[1:] != label[:-1]
    label[edge | (rows >= height - height // 16)] = len(_STREET_COLORS)
    return image, label.astype(np.int64)
