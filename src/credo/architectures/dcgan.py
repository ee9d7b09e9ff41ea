"""Generator and discriminator of the deep convolutional GAN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from credo.architectures._base import Architecture, require_positive, require_shape
from credo.architectures.convolutional import HALVING, image_shape
from credo.errors import InputError

_STANDARD_DEVIATION = 0.02
_SMALLEST = 4


class _SmallWeights:
    """A layer whose weights start from N(0, 0.02²) and its biases from 0, whenever it is reset."""

    weight: Tensor
    bias: Any

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.normal_(self.weight, 0.0, _STANDARD_DEVIATION)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Dense(_SmallWeights, nn.Linear):
    """A fully connected layer."""


class HalvingConv(_SmallWeights, nn.Conv2d):
    """A convolution that halves height and width, in place of pooling."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        super().__init__(in_channels, out_channels, *HALVING, bias=bias)


class DoublingConv(_SmallWeights, nn.ConvTranspose2d):
    """A fractionally strided convolution that doubles height and width."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        super().__init__(in_channels, out_channels, *HALVING, bias=bias)


class DCGANGenerator(Architecture):
    """Noise ``[B, latent]`` to images ``[B, C, H, W]`` between −1 and 1.

    By the guidelines of Radford et al.: fractionally strided convolutions and no hidden fully connected layer, batch
    norm before every ReLU but none at the output, tanh at the end. A vector becomes a map of H/4 × W/4, or of a half,
    a quarter and so on of that, down to 4 × 4; every convolution doubles it and halves its channels. With a width of
    128 and 64×64 images this is the network of the paper's Figure 1.

    Args:
        latent: the dimension of the noise.
        shape: of an image, (C, H, W), with H and W multiples of 4.
        width: channels before the last convolution.

    References:
        A. Radford, L. Metz, S. Chintala. Unsupervised representation learning with deep convolutional generative
        adversarial networks. ICLR 2016. arXiv:1511.06434.
    """

    output_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self, latent: int = 100, shape: Sequence[int] = (1, 28, 28), width: int = 64) -> None:
        super().__init__()
        require_positive(latent=latent, width=width)
        plan = _plan(strided_shape(shape), width)
        self.config = {"latent": latent, "shape": list(plan.shape), "width": width}
        smallest, channels = plan.smallest, plan.channels[::-1]
        layers: list[nn.Module] = [
            Dense(latent, math.prod(smallest), bias=False),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(smallest[0]),
            nn.ReLU(),
        ]
        for before, after in pairwise(channels):
            layers += [DoublingConv(before, after), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, DoublingConv(channels[-1], plan.shape[0], bias=True), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        """``[B, latent]`` to ``[B, C, H, W]``."""
        images: Tensor = self.layers(z)
        return images


class DCGANDiscriminator(Architecture):
    """Images ``[B, C, H, W]`` to one number each, ``[B]``.

    The mirror image of :class:`DCGANGenerator`: strided convolutions, leaky ReLUs of slope 0.2, batch norm everywhere
    but at the input and the output.

    Args:
        shape: of an image, (C, H, W), with H and W multiples of 4.
        width: channels after the first convolution.
        batch_norm: leave it out for a critic whose gradient is punished datum by datum (Gulrajani et al. 2017).
    """

    def __init__(self, shape: Sequence[int] = (1, 28, 28), width: int = 64, *, batch_norm: bool = True) -> None:
        super().__init__()
        require_positive(width=width)
        plan = _plan(strided_shape(shape), width)
        self.shape = plan.shape
        self.config = {"shape": list(self.shape), "width": width, "batch_norm": batch_norm}
        layers: list[nn.Module] = [HalvingConv(self.shape[0], width, bias=True), nn.LeakyReLU(0.2)]
        for before, after in pairwise(plan.channels):
            norm = [nn.BatchNorm2d(after)] if batch_norm else []
            layers += [HalvingConv(before, after, bias=not batch_norm), *norm, nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), Dense(math.prod(plan.smallest), 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B]``."""
        require_shape(x, self.shape)
        scores: Tensor = self.layers(x)
        return scores.squeeze(1)


class _Plan(NamedTuple):
    """Which maps an image goes through."""

    shape: tuple[int, int, int]
    channels: tuple[int, ...]
    """After each halving of the image."""
    smallest: tuple[int, int, int]


def _plan(shape: tuple[int, int, int], width: int) -> _Plan:
    """At least two halvings, and more while both sides stay even and of 4 or more."""
    height, breadth = shape[1] // 4, shape[2] // 4
    channels = [width, 2 * width]
    while height % 2 == breadth % 2 == 0 and min(height, breadth) >= 2 * _SMALLEST:
        height, breadth = height // 2, breadth // 2
        channels.append(2 * channels[-1])
    return _Plan(shape, tuple(channels), (channels[-1], height, breadth))


def strided_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """``shape`` as (C, H, W), of which two strides of 2 must divide H and W."""
    channels, height, width = image_shape(shape)
    if height % 4 or width % 4:
        raise InputError(
            f"height and width must be multiples of 4 for two strides of 2, got {height}×{width}: pad or resize the "
            f"images to {-(-height // 4) * 4}×{-(-width // 4) * 4}"
        )
    return channels, height, width
