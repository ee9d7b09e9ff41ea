"""Pairs of images at a low and a high resolution, from the photographs that come with scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from credo._arguments import check_integer
from credo.errors import InputError

MAX_CROP = 60
_ROWS = 420  # of the 427; 7 crops of 60
_TEST, _VALID, _TRAIN = (0, 180), (200, 260), (280, 640)  # columns of a photograph
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601


@dataclass(frozen=True, eq=False)
class ImagePairs:
    """Images at a low resolution and the same at a high one, in a training, a validation and a test part.

    Attributes:
        x_train: low resolution ``[N, 1, h, h]``, float32 in [0, 1].
        y_train: high resolution ``[N, 1, r·h, r·h]``.
        x_valid: low resolution, for the choice of hyper-parameters.
        y_valid: high resolution.
        x_test: low resolution.
        y_test: high resolution.
        factor: r, the ratio of the two.

    Example:
        >>> pairs = photographs(factor=2)
        >>> pairs.x_train.shape, pairs.y_train.shape
        (torch.Size([84, 1, 30, 30]), torch.Size([84, 1, 60, 60]))
    """

    x_train: Tensor
    y_train: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor
    factor: int


def photographs(factor: int = 2, crop: int = MAX_CROP) -> ImagePairs:
    """Cut scikit-learn's two photographs, a pagoda and a dahlia, into crops of their luminance.

    The parts are bands of both photographs, 640 pixels wide: columns 280 to 640 are for training, 200 to 260 for
    validation and 0 to 180 for the test. The 20 columns between two bands are left out. Crops do not overlap, so every
    pixel counts once, and each is reduced by :func:`blur_and_sample` on its own, so none has seen another.

    Args:
        factor: the ratio of the two resolutions.
        crop: height and width of a crop at the high resolution, a multiple of ``factor`` and at most 60.

    Returns:
        The pairs; with crops of 60 pixels, 84 for training, 14 for validation and 42 for the test, and half of each
        from the first photograph.

    Raises:
        InputError: if ``crop`` is above 60 or not a multiple of ``factor``, or Pillow, which reads the files and is
            installed with matplotlib, is missing.

    References:
        The photographs are china.jpg by danielbuechele and flower.jpg by vultilion, from Flickr, both under CC BY 2.0.
    """
    check_integer(factor, "factor", 1)
    if check_integer(crop, "crop", 1) > MAX_CROP or crop % factor:
        raise InputError(f"crop must be a multiple of the factor {factor} and at most {MAX_CROP}, got {crop}")
    images = _luminance()
    (x_train, y_train), (x_valid, y_valid), (x_test, y_test) = (
        (blur_and_sample(crops, factor), crops)
        for crops in (_cut(images[..., :_ROWS, left:right], crop) for left, right in (_TRAIN, _VALID, _TEST))
    )
    return ImagePairs(x_train, y_train, x_valid, y_valid, x_test, y_test, factor)


def blur_and_sample(images: Tensor, factor: int) -> Tensor:
    r"""Reduce the resolution of images: a Gaussian blur, and one sample of it per block of r×r pixels.

    The model of a camera in Shi et al. (2016). The Gaussian has a standard deviation of r/2 pixels, which leaves little
    to be aliased, and is sampled at the centers of the blocks. Borders are continued by their own values.

    Args:
        images: ``[N, C, H, W]``.
        factor: r; height and width must be multiples of it.

    Returns:
        The images, ``[N, C, H/r, W/r]``.

    Raises:
        InputError: if height or width is not a multiple of ``factor``.

    References:
        Shi et al. Real-time single image and video super-resolution using an efficient sub-pixel convolutional neural
        network. CVPR, 2016. arXiv:1609.05158.
    """
    check_integer(factor, "factor", 1)
    if images.ndim != 4 or images.shape[-2] % factor or images.shape[-1] % factor:
        raise InputError(
            f"images must have shape [N, C, H, W] with H and W multiples of {factor}, got {list(images.shape)}"
        )
    scale, margin = factor / 2, math.ceil(3 * factor / 2)
    size = factor + 2 * margin
    offset = torch.arange(size, dtype=images.dtype, device=images.device) - (size - 1) / 2
    kernel = torch.exp(-0.5 * (offset / scale).square())
    kernel = kernel / kernel.sum()
    channels = images.shape[1]
    padded = F.pad(images, (margin,) * 4, mode="replicate")
    weight = torch.outer(kernel, kernel).expand(channels, 1, size, size)
    return F.conv2d(padded, weight, stride=factor, groups=channels)


def _luminance() -> Tensor:
    """Both photographs, ``[2, 1, 427, 640]`` in [0, 1]."""
    from sklearn.datasets import load_sample_images

    try:
        photos = load_sample_images().images
    except ImportError as error:
        raise InputError("the photographs are JPEG files, which need Pillow: pip install pillow") from error
    colors = torch.stack([torch.tensor(photo) for photo in photos]).float() / 255.0
    return (colors @ torch.tensor(_LUMINANCE))[:, None]


def _cut(images: Tensor, crop: int) -> Tensor:
    """All whole crops of images ``[N, 1, H, W]``, image by image, ``[M, 1, crop, crop]``."""
    crops = images.unfold(2, crop, crop).unfold(3, crop, crop)
    return crops.reshape(-1, 1, crop, crop).contiguous()
