"""Residual encoders and decoders that keep the plane: images to a grid of vectors and back, as in the VQ-VAE."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from credo.architectures._base import Architecture, require_positive, require_shape
from credo.architectures.convolutional import HALVING, image_shape
from credo.errors import InputError


class ResidualBlock(nn.Module):
    """x ↦ x + conv1×1(relu(conv3×3(relu(x)))), all with the same number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, channels, H, W]`` to the same shape."""
        return torch.add(x, self.residual(x))


class ResidualEncoder(Architecture):
    """Images to a grid of vectors: ``[B, C, H, W]`` to ``[B, out_channels, H/4, W/4]`` with two ``channels``.

    The encoder of van den Oord et al. (2017): convolutions of 4×4 with stride 2, residual blocks, and a 1×1 convolution
    to the vectors.

    Args:
        shape: of an image, (C, H, W); H and W must be divisible by 2 once for each of ``channels``.
        out_channels: size of the vectors.
        channels: of the strided convolutions; the last also of the residual blocks. The paper has (256, 256).
        blocks: number of residual blocks.

    References:
        van den Oord, Vinyals, Kavukcuoglu. Neural discrete representation learning. NeurIPS, 2017. arXiv:1711.00937.
    """

    def __init__(
        self, shape: Sequence[int], out_channels: int, channels: Sequence[int] = (64, 128), blocks: int = 2
    ) -> None:
        super().__init__()
        self.shape = image_shape(shape)
        require_positive(out_channels=out_channels, blocks=blocks)
        grid_size(self.shape, channels)
        self.config = {
            "shape": list(self.shape),
            "out_channels": out_channels,
            "channels": list(channels),
            "blocks": blocks,
        }
        layers: list[nn.Module] = [nn.Conv2d(self.shape[0], channels[0], *HALVING)]
        for before, after in pairwise(channels):
            layers += [nn.ReLU(), nn.Conv2d(before, after, *HALVING)]
        layers += [ResidualBlock(channels[-1]) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels[-1], out_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, out_channels, H/4, W/4]``."""
        require_shape(x, self.shape)
        out: Tensor = self.layers(x)
        return out


class ResidualDecoder(Architecture):
    """A grid of vectors to images: ``[B, in_channels, H/4, W/4]`` to ``[B, C, H, W]``; the output is linear.

    The mirror image of :class:`ResidualEncoder`: a 3×3 convolution, residual blocks, and transposed convolutions of 4×4
    with stride 2.

    Args:
        in_channels: size of the vectors.
        shape: of an image, (C, H, W).
        channels: of the layers, from the vectors to the image.
        blocks: number of residual blocks.
    """

    def __init__(
        self, in_channels: int, shape: Sequence[int], channels: Sequence[int] = (128, 64), blocks: int = 2
    ) -> None:
        super().__init__()
        self.shape = image_shape(shape)
        require_positive(in_channels=in_channels, blocks=blocks)
        self.in_shape = (in_channels, *grid_size(self.shape, channels))
        self.config = {
            "in_channels": in_channels,
            "shape": list(self.shape),
            "channels": list(channels),
            "blocks": blocks,
        }
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels[0], 3, padding=1)]
        layers += [ResidualBlock(channels[0]) for _ in range(blocks)]
        for before, after in pairwise((*channels, self.shape[0])):
            layers += [nn.ReLU(), nn.ConvTranspose2d(before, after, *HALVING)]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """``[B, in_channels, H/4, W/4]`` to ``[B, C, H, W]``."""
        require_shape(z, self.in_shape, "vectors")
        images: Tensor = self.layers(z)
        return images


def grid_size(shape: tuple[int, int, int], channels: Sequence[int]) -> tuple[int, int]:
    """Height and width of an image of ``shape`` after one halving for each of ``channels``."""
    if not channels:
        raise InputError("channels must hold at least one width, got none")
    require_positive(**{f"channels[{i}]": width for i, width in enumerate(channels)})
    _, height, width = shape
    factor = 2 ** len(channels)
    if height % factor or width % factor:
        raise InputError(
            f"height and width of an image must be multiples of {factor} to be halved {len(channels)} times, got "
            f"{height}×{width}: pad or crop the images, or give fewer channels"
        )
    return height // factor, width // factor
