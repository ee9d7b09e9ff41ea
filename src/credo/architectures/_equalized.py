"""Layers of the progressive and of the style-based networks: equalized learning rates, normalization, resolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer
from credo.architectures.convolutional import image_shape
from credo.errors import InputError

_MIN_SIDE = 4
_MAX_CHANNELS = 512
_SLOPE = 0.2
_EPSILON = 1e-8


class EqualizedLinear(nn.Linear):
    """A fully connected layer with an equalized learning rate: y = c·W x + b, with W ~ N(0, 1) and c = 1/√in_features.

    Adam changes all parameters at about the same speed; with weights of unit variance that speed is the same relative
    to the scale of every layer.

    Args:
        in_features: number of inputs.
        out_features: number of outputs.
        initial_bias: initial value of b.
        rate: multiplies the learning rate of weights and biases, by storing them divided by it.

    References:
        T. Karras et al. Progressive growing of GANs for improved quality, stability, and variation. ICLR 2018.
        arXiv:1710.10196, section 4.1.
    """

    def __init__(self, in_features: int, out_features: int, *, initial_bias: float = 0.0, rate: float = 1.0) -> None:
        self.initial_bias, self.rate = initial_bias, rate
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight, 0.0, 1.0 / self.rate)
        nn.init.constant_(self.bias, self.initial_bias / self.rate)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, in_features]`` to ``[B, out_features]``."""
        return F.linear(x, self.weight * (self.rate / math.sqrt(self.in_features)), self.bias * self.rate)


class EqualizedConv2d(nn.Conv2d):
    """A convolution with an equalized learning rate, of an odd size that keeps height and width.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels.
        kernel_size: of the convolution, odd.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.scale = 1.0 / math.sqrt(in_channels * kernel_size**2)

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, in_channels, H, W]`` to ``[B, out_channels, H, W]``."""
        return F.conv2d(x, self.weight * self.scale, self.bias, padding=self.padding)


def scaled_leaky_relu(x: Tensor) -> Tensor:
    """√2 · leaky ReLU of slope 0.2, which about keeps the second moment of its input."""
    return math.sqrt(2.0) * F.leaky_relu(x, _SLOPE)


def pixel_norm(x: Tensor) -> Tensor:
    """Divide the vector of channels at every position by its root mean square; ``[B, C, ...]``."""
    return x * (x.square().mean(1, keepdim=True) + _EPSILON).rsqrt()


def append_minibatch_std(x: Tensor) -> Tensor:
    """Append a channel with the standard deviation over the minibatch, averaged over channels and positions.

    A minibatch of samples that are too much alike has a smaller one than a minibatch of data, which the discriminator
    can use.

    Args:
        x: features ``[B, C, H, W]``.

    Returns:
        ``[B, C + 1, H, W]``.
    """
    std = (x.var(0, unbiased=False) + _EPSILON).sqrt().mean()
    return torch.cat([x, std.expand(len(x), 1, *x.shape[2:])], dim=1)


def enlarge(x: Tensor, factor: int = 2) -> Tensor:
    """Repeat every pixel ``factor`` times in both directions."""
    return x if factor == 1 else F.interpolate(x, scale_factor=float(factor), mode="nearest")


def shrink(x: Tensor, factor: int = 2) -> Tensor:
    """Average blocks of ``factor`` × ``factor`` pixels."""
    return x if factor == 1 else F.avg_pool2d(x, factor)


class Level(NamedTuple):
    """One of the resolutions at which images are generated."""

    channels: int
    height: int
    width: int


def resolution_levels(shape: Sequence[int], width: int) -> tuple[Level, ...]:
    """The resolutions from the smallest to that of the image, each twice the one before.

    Args:
        shape: of an image, (C, H, W).
        width: channels at the full resolution; twice as many at each lower one, at most 512.

    Returns:
        Two levels or more; the smallest has at least 4 pixels on each side.

    Raises:
        InputError: ``shape`` is not that of an image with even sides of at least 8, or ``width`` no positive integer.
    """
    _, rows, columns = image_shape(shape)
    channels = check_integer(width, "width", 1)
    levels = [Level(channels, rows, columns)]
    while rows % 2 == columns % 2 == 0 and min(rows, columns) >= 2 * _MIN_SIDE:
        rows, columns, channels = rows // 2, columns // 2, max(min(2 * channels, _MAX_CHANNELS), width)
        levels.append(Level(channels, rows, columns))
    if len(levels) < 2:
        raise InputError(f"height and width must be even and at least {2 * _MIN_SIDE}, got {rows}×{columns}")
    return tuple(reversed(levels))


class DiscriminatorHead(nn.Module):
    """From features at the smallest resolution to one score: minibatch standard deviation and three layers."""

    def __init__(self, level: Level) -> None:
        super().__init__()
        self.conv = EqualizedConv2d(level.channels + 1, level.channels)
        self.hidden = EqualizedLinear(math.prod(level), level.channels)
        self.score = EqualizedLinear(level.channels, 1)

    def forward(self, h: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B]``."""
        h = scaled_leaky_relu(self.conv(append_minibatch_std(h)))
        scores: Tensor = self.score(scaled_leaky_relu(self.hidden(h.flatten(1))))
        return scores.squeeze(1)
