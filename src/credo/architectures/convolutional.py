"""Convolutional encoders and decoders: images to a vector and back, by strides of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from credo.architectures._base import Architecture, activation_layer, require_positive, require_shape
from credo.architectures.dense import datum_shape
from credo.errors import InputError

HALVING = (4, 2, 1)
"""Kernel, stride and padding of a convolution that halves height and width, or doubles them when transposed."""
"""A kernel that the stride divides lets every output pixel see as many inputs as its neighbors: no chequerboard."""


class ConvEncoder(Architecture):
    """Images to a vector: ``[B, C, H, W]`` to ``[B, out_features]``.

    Every convolution halves height and width, rounded down; a linear layer reads what is left.

    Args:
        shape: of an image, (C, H, W); any height and width that can be halved once for each of ``channels``.
        out_features: size of the vector; twice the latent size for a Gaussian posterior.
        channels: of the convolutions.
        activation: name of the nonlinearity.
    """

    def __init__(
        self, shape: Sequence[int], out_features: int, channels: Sequence[int] = (32, 64), activation: str = "relu"
    ) -> None:
        super().__init__()
        self.shape = image_shape(shape)
        require_positive(out_features=out_features)
        *_, last = sizes = halved_sizes(self.shape, channels)
        self.config = {
            "shape": list(self.shape),
            "out_features": out_features,
            "channels": list(channels),
            "activation": activation,
        }
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before[0], after[0], *HALVING), activation_layer(activation)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(math.prod(last), out_features))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, out_features]``."""
        require_shape(x, self.shape)
        out: Tensor = self.layers(x)
        return out


class ConvDecoder(Architecture):
    """A vector to images: ``[..., in_features]`` to ``[..., C, H, W]``; the output is linear.

    The mirror image of :class:`ConvEncoder`: a linear layer, then transposed convolutions that double height and width,
    with a row or column more where the image's is odd.

    Args:
        in_features: size of the vector.
        shape: of an image, (C, H, W).
        channels: of the layers, from the vector to the image.
        activation: name of the nonlinearity.
    """

    def __init__(
        self, in_features: int, shape: Sequence[int], channels: Sequence[int] = (64, 32), activation: str = "relu"
    ) -> None:
        super().__init__()
        self.shape = image_shape(shape)
        require_positive(in_features=in_features)
        first, *_ = sizes = halved_sizes(self.shape, channels[::-1])[::-1]
        self.config = {
            "in_features": in_features,
            "shape": list(self.shape),
            "channels": list(channels),
            "activation": activation,
        }
        layers: list[nn.Module] = [nn.Linear(in_features, math.prod(first)), nn.Unflatten(1, first)]
        for before, after in pairwise(sizes):
            odd = (after[1] % 2, after[2] % 2)
            enlarge = nn.ConvTranspose2d(before[0], after[0], *HALVING, output_padding=odd)
            layers += [activation_layer(activation), enlarge]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., C, H, W]``."""
        images: Tensor = self.layers(z.reshape(-1, z.shape[-1]))
        return images.view(*z.shape[:-1], *self.shape)


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width)."""
    found = datum_shape(shape)
    if len(found) != 3:
        raise InputError(f"shape must be that of an image, (channels, height, width), got {tuple(shape)}")
    return found[0], found[1], found[2]


def halved_sizes(shape: tuple[int, int, int], channels: Sequence[int]) -> list[tuple[int, int, int]]:
    """(channels, height, width) of the image and after each convolution."""
    if not channels:
        raise InputError("channels must hold at least one width, got none: for a linear network use the dense ones")
    require_positive(**{f"channels[{i}]": width for i, width in enumerate(channels)})
    _, height, width = shape
    if min(height, width) < 2 ** len(channels):
        raise InputError(
            f"an image of {height}×{width} cannot be halved {len(channels)} times: give fewer channels than "
            f"{tuple(channels)}, or images of at least {2 ** len(channels)}×{2 ** len(channels)}"
        )
    return [shape, *((c, height >> i, width >> i) for i, c in enumerate(channels, 1))]
