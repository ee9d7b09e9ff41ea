"""Convolutional encoders and decoders: images to a vector, or to a grid of vectors, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from credo._arguments import check_integer
from credo.architectures._base import Architecture, activation_layer, check_channels, check_rows
from credo.architectures.dense import datum_shape
from credo.errors import InputError

HALVING = (4, 2, 1)
"""Kernel, stride and padding of a convolution that halves height and width, or doubles them when transposed.

The kernel is a multiple of the stride, so every output pixel depends on the same number of inputs: no checkerboard.
"""


class ConvEncoder(Architecture):
    """A convolutional encoder from images to a vector.

    Maps ``[B, C, H, W]`` to ``[B, out_features]``. Every convolution halves height and width, rounded down; a linear
    layer follows.

    Args:
        shape: shape of an image, (C, H, W), with H and W that can be halved once for each of ``channels``.
        out_features: size of the vector; twice the latent size for a Gaussian posterior.
        channels: channels of the convolutions.
        activation: name of the activation.

    Raises:
        InputError: if a size is not valid, the image is too small, or the activation is unknown.

    Example:
        >>> import torch
        >>> ConvEncoder((1, 28, 28), 4)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, shape: Sequence[int], out_features: int, channels: Sequence[int] = (32, 64), activation: str = "relu"
    ) -> None:
        shape, out_features = image_shape(shape), check_integer(out_features, "out_features", 1)
        channels = check_channels(channels)
        super().__init__(shape=shape, out_features=out_features, channels=channels, activation=activation)
        self.shape = shape
        *_, last = sizes = _halved_sizes(shape, channels)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before[0], after[0], *HALVING), activation_layer(activation)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(math.prod(last), out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Encode images.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            Vectors ``[B, out_features]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        out: Tensor = self.layers(x)
        return out


class ConvDecoder(Architecture):
    """A convolutional decoder from a vector to images, the mirror image of :class:`ConvEncoder`.

    Maps ``[..., in_features]`` to ``[..., C, H, W]``; the output layer is linear. A linear layer is followed by
    transposed convolutions that double height and width, with one row or column more where that of the image is odd.

    Args:
        in_features: size of the vector.
        shape: shape of an image, (C, H, W).
        channels: channels of the layers, from the vector to the image.
        activation: name of the activation.

    Raises:
        InputError: if a size is not valid, the image is too small, or the activation is unknown.

    Example:
        >>> import torch
        >>> ConvDecoder(2, (1, 28, 28))(torch.zeros(5, 2)).shape
        torch.Size([5, 1, 28, 28])
    """

    def __init__(
        self, in_features: int, shape: Sequence[int], channels: Sequence[int] = (64, 32), activation: str = "relu"
    ) -> None:
        in_features, shape = check_integer(in_features, "in_features", 1), image_shape(shape)
        channels = check_channels(channels)
        super().__init__(in_features=in_features, shape=shape, channels=channels, activation=activation)
        self.shape = shape
        first, *_ = sizes = _halved_sizes(shape, channels[::-1])[::-1]
        layers: list[nn.Module] = [nn.Linear(in_features, math.prod(first)), nn.Unflatten(1, first)]
        for before, after in pairwise(sizes):
            odd = (after[1] % 2, after[2] % 2)
            enlarge = nn.ConvTranspose2d(before[0], after[0], *HALVING, output_padding=odd)
            layers += [activation_layer(activation), enlarge]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """Decode vectors.

        Args:
            z: vectors ``[..., in_features]``.

        Returns:
            Images ``[..., C, H, W]``.
        """
        images: Tensor = self.layers(z.reshape(-1, z.shape[-1]))
        return images.view(*z.shape[:-1], *self.shape)


class ResidualBlock(nn.Module):
    """x ↦ x + conv1×1(relu(conv3×3(relu(x)))), all with the same number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, channels, H, W]`` to the same shape."""
        return torch.add(x, self.residual(x))


class ResidualEncoder(Architecture):
    """A residual encoder from images to a grid of vectors, as in the VQ-VAE.

    Maps ``[B, C, H, W]`` to ``[B, out_channels, H/4, W/4]`` with two ``channels``: 4×4 convolutions with stride 2,
    residual blocks, and a 1×1 convolution.

    Args:
        shape: shape of an image, (C, H, W); H and W must be divisible by 2 once for each of ``channels``.
        out_channels: size of the vectors.
        channels: channels of the strided convolutions; the last one also of the residual blocks. The paper has
            (256, 256).
        blocks: number of residual blocks.

    Raises:
        InputError: if a size is not valid, or H or W is not divisible.

    References:
        van den Oord, Vinyals, Kavukcuoglu. Neural discrete representation learning. NeurIPS, 2017. arXiv:1711.00937.

    Example:
        >>> import torch
        >>> ResidualEncoder((1, 28, 28), 16)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 16, 7, 7])
    """

    def __init__(
        self, shape: Sequence[int], out_channels: int, channels: Sequence[int] = (64, 128), blocks: int = 2
    ) -> None:
        shape, channels = image_shape(shape), check_channels(channels)
        out_channels, blocks = check_integer(out_channels, "out_channels", 1), check_integer(blocks, "blocks", 1)
        super().__init__(shape=shape, out_channels=out_channels, channels=channels, blocks=blocks)
        self.shape = shape
        _grid_size(shape, channels)
        layers: list[nn.Module] = [nn.Conv2d(shape[0], channels[0], *HALVING)]
        for before, after in pairwise(channels):
            layers += [nn.ReLU(), nn.Conv2d(before, after, *HALVING)]
        layers += [ResidualBlock(channels[-1]) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels[-1], out_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Encode images.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            Grids of vectors ``[B, out_channels, H/4, W/4]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        out: Tensor = self.layers(x)
        return out


class ResidualDecoder(Architecture):
    """A residual decoder from a grid of vectors to images, the mirror image of :class:`ResidualEncoder`.

    Maps ``[B, in_channels, H/4, W/4]`` to ``[B, C, H, W]`` with two ``channels``: a 3×3 convolution, residual blocks,
    and transposed 4×4 convolutions with stride 2. The output layer is linear.

    Args:
        in_channels: size of the vectors.
        shape: shape of an image, (C, H, W).
        channels: channels of the layers, from the vectors to the image.
        blocks: number of residual blocks.

    Raises:
        InputError: if a size is not valid, or H or W is not divisible.

    Example:
        >>> import torch
        >>> ResidualDecoder(16, (1, 28, 28))(torch.zeros(5, 16, 7, 7)).shape
        torch.Size([5, 1, 28, 28])
    """

    def __init__(
        self, in_channels: int, shape: Sequence[int], channels: Sequence[int] = (128, 64), blocks: int = 2
    ) -> None:
        shape, channels = image_shape(shape), check_channels(channels)
        in_channels, blocks = check_integer(in_channels, "in_channels", 1), check_integer(blocks, "blocks", 1)
        super().__init__(in_channels=in_channels, shape=shape, channels=channels, blocks=blocks)
        self.shape, self.in_shape = shape, (in_channels, *_grid_size(shape, channels))
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels[0], 3, padding=1)]
        layers += [ResidualBlock(channels[0]) for _ in range(blocks)]
        for before, after in pairwise((*channels, shape[0])):
            layers += [nn.ReLU(), nn.ConvTranspose2d(before, after, *HALVING)]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """Decode grids of vectors.

        Args:
            z: grids of vectors ``[B, in_channels, H/4, W/4]``.

        Returns:
            Images ``[B, C, H, W]``.

        Raises:
            InputError: if the shape of the grids does not match.
        """
        check_rows(z, self.in_shape, "vectors")
        images: Tensor = self.layers(z)
        return images


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return ``shape`` as (channels, height, width)."""
    sizes = datum_shape(shape)
    if len(sizes) != 3:
        raise InputError(f"shape must be that of an image, (channels, height, width), got {tuple(shape)}")
    return sizes[0], sizes[1], sizes[2]


def _halved_sizes(shape: tuple[int, int, int], channels: Sequence[int]) -> list[tuple[int, int, int]]:
    """(channels, height, width) of the image and after each convolution, sizes rounded down."""
    _, height, width = shape
    if min(height, width) < 2 ** len(channels):
        raise InputError(
            f"an image of {height}×{width} cannot be halved {len(channels)} times: give fewer channels than "
            f"{tuple(channels)}, or images of at least {2 ** len(channels)}×{2 ** len(channels)}"
        )
    return [shape, *((c, height >> i, width >> i) for i, c in enumerate(channels, 1))]


def _grid_size(shape: tuple[int, int, int], channels: Sequence[int]) -> tuple[int, int]:
    """Height and width of the image after one exact halving for each of ``channels``."""
    _, height, width = shape
    factor = 2 ** len(channels)
    if height % factor or width % factor:
        raise InputError(
            f"height and width of an image must be multiples of {factor} to be halved {len(channels)} times, got "
            f"{height}×{width}: pad or crop the images, or give fewer channels"
        )
    return height // factor, width // factor
