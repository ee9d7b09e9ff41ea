"""Generators and discriminators of the DCGAN and of InfoGAN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from credo._arguments import check_bool, check_integer
from credo.architectures._base import Architecture, check_rows
from credo.architectures.convolutional import HALVING, image_shape
from credo.errors import InputError

_INITIAL_SCALE = 0.02
_MIN_SIDE = 4
_INFOGAN_SLOPE = 0.1


class _NormalInit:
    """A layer with initial weights from N(0, 0.02²) and initial biases of 0."""

    weight: Tensor
    bias: Any

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight, 0.0, _INITIAL_SCALE)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Dense(_NormalInit, nn.Linear):
    """A fully connected layer."""


class HalvingConv(_NormalInit, nn.Conv2d):
    """A strided convolution that halves height and width."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        super().__init__(in_channels, out_channels, *HALVING, bias=bias)


class DoublingConv(_NormalInit, nn.ConvTranspose2d):
    """A transposed convolution that doubles height and width."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        super().__init__(in_channels, out_channels, *HALVING, bias=bias)


class DCGANGenerator(Architecture):
    """The generator of the DCGAN, from noise to images between −1 and 1.

    Maps ``[B, latent]`` to ``[B, C, H, W]``. As Radford et al. recommend, it has transposed convolutions and no hidden
    fully connected layer, batch norm before every ReLU but not at the output, and tanh at the end. The noise is mapped
    to H/4 × W/4, or to a half, a quarter and so on of that, down to 4 × 4; every convolution doubles the size and
    halves the channels. With a width of 128 and 64×64 images this is the network of the paper's Figure 1.

    Args:
        latent: dimension of the noise.
        shape: shape of an image, (C, H, W), with H and W multiples of 4.
        width: channels before the last convolution.

    Raises:
        InputError: if a size is not an integer of at least 1, or H or W is not a multiple of 4.

    References:
        A. Radford, L. Metz, S. Chintala. Unsupervised representation learning with deep convolutional generative
        adversarial networks. ICLR 2016. arXiv:1511.06434.

    Example:
        >>> import torch
        >>> DCGANGenerator(100, (1, 28, 28))(torch.randn(5, 100)).shape
        torch.Size([5, 1, 28, 28])
    """

    output_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self, latent: int = 100, shape: Sequence[int] = (1, 28, 28), width: int = 64) -> None:
        latent, width = check_integer(latent, "latent", 1), check_integer(width, "width", 1)
        shape = _strided_shape(shape)
        super().__init__(latent=latent, shape=shape, width=width)
        maps = _feature_maps(shape, width)
        smallest, channels = maps.smallest, maps.channels[::-1]
        layers: list[nn.Module] = [
            Dense(latent, math.prod(smallest), bias=False),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(smallest[0]),
            nn.ReLU(),
        ]
        for before, after in pairwise(channels):
            layers += [DoublingConv(before, after), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, DoublingConv(channels[-1], shape[0], bias=True), nn.Tanh())
        self.latent = latent

    def forward(self, z: Tensor) -> Tensor:
        """Generate images.

        Args:
            z: noise ``[B, latent]``.

        Returns:
            Images ``[B, C, H, W]`` between −1 and 1.

        Raises:
            InputError: if the noise has another size.
        """
        check_rows(z, (self.latent,), "noise")
        images: Tensor = self.layers(z)
        return images


class DCGANDiscriminator(Architecture):
    """The discriminator of the DCGAN, from images to one logit per row.

    Maps ``[B, C, H, W]`` to ``[B]``. The mirror image of :class:`DCGANGenerator`: strided convolutions, leaky ReLUs of
    slope 0.2, and batch norm everywhere but at the input and the output.

    Args:
        shape: shape of an image, (C, H, W), with H and W multiples of 4.
        width: channels after the first convolution.
        batch_norm: whether to use batch norm; ``False`` for a critic with a gradient penalty per row (Gulrajani et al.
            2017).

    Raises:
        InputError: if a size is not an integer of at least 1, or H or W is not a multiple of 4.

    Example:
        >>> import torch
        >>> DCGANDiscriminator((1, 28, 28))(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5])
    """

    def __init__(self, shape: Sequence[int] = (1, 28, 28), width: int = 64, *, batch_norm: bool = True) -> None:
        shape, width = _strided_shape(shape), check_integer(width, "width", 1)
        super().__init__(shape=shape, width=width, batch_norm=check_bool(batch_norm, "batch_norm"))
        self.shape, maps = shape, _feature_maps(shape, width)
        layers: list[nn.Module] = [HalvingConv(shape[0], width, bias=True), nn.LeakyReLU(0.2)]
        for before, after in pairwise(maps.channels):
            norm = [nn.BatchNorm2d(after)] if batch_norm else []
            layers += [HalvingConv(before, after, bias=not batch_norm), *norm, nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), Dense(math.prod(maps.smallest), 1))

    def forward(self, x: Tensor) -> Tensor:
        """Score images.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            Logits ``[B]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        scores: Tensor = self.layers(x)
        return scores.squeeze(1)


class InfoGANGenerator(Architecture):
    """The generator of InfoGAN, from noise and codes to images between 0 and 1 (Table 1 of the paper).

    Maps ``[B, latent]`` to ``[B, C, H, W]``: two fully connected layers and two transposed convolutions, with batch
    norm and ReLU after all but the last, which is followed by a sigmoid.

    Args:
        latent: dimension of the noise and all codes together; 74 in the paper.
        shape: shape of an image, (C, H, W), with H and W multiples of 4.

    Raises:
        InputError: if a size is not an integer of at least 1, or H or W is not a multiple of 4.

    References:
        X. Chen et al. InfoGAN: interpretable representation learning by information maximizing generative adversarial
        nets. NeurIPS 2016. arXiv:1606.03657.

    Example:
        >>> import torch
        >>> InfoGANGenerator()(torch.randn(5, 74)).shape
        torch.Size([5, 1, 28, 28])
    """

    output_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, latent: int = 74, shape: Sequence[int] = (1, 28, 28)) -> None:
        latent, shape = check_integer(latent, "latent", 1), _strided_shape(shape)
        super().__init__(latent=latent, shape=shape)
        channels, height, width = shape
        smallest = (128, height // 4, width // 4)
        self.layers = nn.Sequential(
            Dense(latent, 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            Dense(1024, math.prod(smallest), bias=False),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            DoublingConv(128, 64),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            DoublingConv(64, channels, bias=True),
            nn.Sigmoid(),
        )
        self.latent = latent

    def forward(self, z: Tensor) -> Tensor:
        """Generate images.

        Args:
            z: noise and codes ``[B, latent]``.

        Returns:
            Images ``[B, C, H, W]`` between 0 and 1.

        Raises:
            InputError: if the noise has another size.
        """
        check_rows(z, (self.latent,), "noise and codes")
        images: Tensor = self.layers(z)
        return images


class InfoGANDiscriminator(Architecture):
    """The discriminator of InfoGAN, from images to the logit of D and the parameters of Q(code | image).

    Maps ``[B, C, H, W]`` to ``[B, 1 + codes]``. D and Q share all convolutions and the first fully connected layer; Q
    has one more hidden layer.

    Args:
        codes: number of parameters of Q; by default ten logits and the means of two continuous codes.
        shape: shape of an image, (C, H, W), with H and W multiples of 4.

    Raises:
        InputError: if a size is not an integer of at least 1, or H or W is not a multiple of 4.

    Example:
        >>> import torch
        >>> InfoGANDiscriminator()(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 13])
    """

    def __init__(self, codes: int = 12, shape: Sequence[int] = (1, 28, 28)) -> None:
        codes, shape = check_integer(codes, "codes", 1), _strided_shape(shape)
        super().__init__(codes=codes, shape=shape)
        self.shape = shape
        channels, height, width = shape
        self.trunk = nn.Sequential(
            HalvingConv(channels, 64, bias=True),
            nn.LeakyReLU(_INFOGAN_SLOPE),
            HalvingConv(64, 128),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(_INFOGAN_SLOPE),
            nn.Flatten(),
            Dense(128 * (height // 4) * (width // 4), 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.LeakyReLU(_INFOGAN_SLOPE),
        )
        self.discriminate = Dense(1024, 1)
        self.recognize = nn.Sequential(
            Dense(1024, 128, bias=False), nn.BatchNorm1d(128), nn.LeakyReLU(_INFOGAN_SLOPE), Dense(128, codes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Score images and infer their codes.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            The logit of D, then the parameters of Q, ``[B, 1 + codes]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        features = self.trunk(x)
        return torch.cat([self.discriminate(features), self.recognize(features)], dim=1)


class _FeatureMaps(NamedTuple):
    """The sizes between an image and the smallest feature map."""

    channels: tuple[int, ...]
    """After each halving of the image."""
    smallest: tuple[int, int, int]


def _feature_maps(shape: tuple[int, int, int], width: int) -> _FeatureMaps:
    """At least two halvings, and more while both sides are even and stay at least 4."""
    rows, columns = shape[1] // 4, shape[2] // 4
    channels = [width, 2 * width]
    while rows % 2 == columns % 2 == 0 and min(rows, columns) >= 2 * _MIN_SIDE:
        rows, columns = rows // 2, columns // 2
        channels.append(2 * channels[-1])
    return _FeatureMaps(tuple(channels), (channels[-1], rows, columns))


def _strided_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return ``shape`` as (C, H, W), with H and W multiples of 4."""
    channels, height, width = image_shape(shape)
    if height % 4 or width % 4:
        raise InputError(
            f"height and width must be multiples of 4 for two strides of 2, got {height}×{width}: pad or resize the "
            f"images to {-(-height // 4) * 4}×{-(-width // 4) * 4}"
        )
    return channels, height, width
