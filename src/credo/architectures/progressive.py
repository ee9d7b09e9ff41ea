"""A generator and a discriminator that grow during training from small images to large ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from credo._arguments import check_integer, check_number
from credo.architectures._base import Architecture, check_rows
from credo.architectures._equalized import (
    DiscriminatorHead,
    EqualizedConv2d,
    EqualizedLinear,
    enlarge,
    pixel_norm,
    resolution_levels,
    scaled_leaky_relu,
    shrink,
)
from credo.architectures.convolutional import image_shape
from credo.errors import InputError

_UNITS = 2**30
"""Progress is an integer, a share of the training in units of 1/2³⁰, which a change of precision does not touch."""
_ROUNDING = 1e-6
"""Of a phase, so that one that begins with a step does not begin a step later."""


class GrowingNetwork(Architecture):
    """A network of images whose resolution is doubled several times during training.

    The first part of the training, a share ``growth`` of its steps, has 2(L − 1) phases of equal length for L
    resolutions: training at the smallest, fading in the next, training at it, and so on. While a resolution fades in,
    images are (1 − α)·(those of the resolution before) + α·(those of the new one), with α from 0 to 1. Images outside
    of the network always have the full size: smaller ones are repeated pixel by pixel, so that the same data and losses
    serve all phases.

    Args:
        shape: of an image, (C, H, W), with even H and W of at least 8.
        width: channels at the full resolution.
        growth: share of the training after which the full resolution is reached, above 0 and at most 1.
        **config: further arguments of the subclass.

    Attributes:
        levels: the resolutions from the smallest to the full one.
        progress: the share of the training that is over, an integer in units of 1/2³⁰.
    """

    progress: Tensor

    def __init__(self, shape: Sequence[int], width: int, growth: float, **config: Any) -> None:
        levels = resolution_levels(shape, width)
        if not 0.0 < check_number(growth, "growth") <= 1.0:
            raise InputError(f"growth must be a number above 0 and at most 1, got {growth}")
        super().__init__(shape=image_shape(shape), width=width, growth=growth, **config)
        self.levels, self.shape, self.growth = levels, image_shape(shape), growth
        self.register_buffer("progress", torch.zeros((), dtype=torch.int64))
        self._known_phase: tuple[Tensor, int, int] | None = None

    def grow(self, fraction: float) -> None:
        """Set the phase.

        Args:
            fraction: share of the training that is over, from 0 to 1.

        Raises:
            InputError: ``fraction`` is not between 0 and 1.
        """
        if not 0.0 <= check_number(fraction, "fraction") <= 1.0:
            raise InputError(f"fraction must be a number from 0 to 1, got {fraction}")
        done = round(fraction * _UNITS)
        self.progress.fill_(done)
        self._known_phase = self.progress, self.progress._version, self._phase_of(done)

    @property
    def fraction(self) -> float:
        """The share of the training that is over."""
        return int(self.progress) / _UNITS

    @property
    def phase(self) -> int:
        """The number of the phase, from 0; even ones train one resolution, odd ones fade in the next."""
        known = self._known_phase
        if known is None or known[0] is not self.progress or known[1] != self.progress._version:  # loaded or moved
            known = self.progress, self.progress._version, self._phase_of(int(self.progress))
            self._known_phase = known
        return known[2]

    @property
    def level(self) -> int:
        """The index of the largest resolution in use."""
        return (self.phase + 1) // 2

    def _phase_of(self, done: int) -> int:
        return min(int(done / _UNITS / self.growth * self._phases + _ROUNDING), self._phases)

    @property
    def _phases(self) -> int:
        """The number of phases before the last, which has no end."""
        return 2 * (len(self.levels) - 1)

    @property
    def _alpha(self) -> Tensor | None:
        """The weight of the newest resolution while it fades in, a scalar; ``None`` otherwise."""
        if self.phase % 2 == 0:
            return None
        return (self.progress.float() * (self._phases / _UNITS / self.growth) - self.phase).clamp(0.0, 1.0)

    def _blend(self, old: Tensor, new: Tensor, alpha: Tensor) -> Tensor:
        return torch.lerp(old, new, alpha.to(new.dtype))

    @property
    def _factor(self) -> int:
        """How many times larger the full images are than those of the level."""
        return int(2 ** (len(self.levels) - 1 - self.level))

    def reduce(self, x: Tensor) -> Tensor:
        """Data with the detail of the present phase, for a fair comparison with samples.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            The average of blocks of pixels, blended while a resolution fades in, ``[B, C, H, W]``.
        """
        small, alpha = shrink(x, self._factor), self._alpha
        if alpha is not None:
            small = self._blend(enlarge(shrink(small)), small, alpha)
        return enlarge(small, self._factor)


class ProgressiveGenerator(GrowingNetwork):
    """A generator that grows from 4×4 pixels or a little more to the full size, layer by layer.

    Maps ``[B, latent]`` to ``[B, C, H, W]``, of unbounded values: data between −1 and 1 are near the outputs of the
    untrained network. Noise is normalized to length √latent; every convolution has an equalized learning rate and is
    followed by a leaky ReLU and a normalization of every pixel.

    Args:
        latent: dimension of the noise.
        shape: of an image, (C, H, W), with even H and W of at least 8.
        width: channels at the full resolution; twice as many at each lower one, at most 512.
        growth: share of the training after which the full resolution is reached.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        T. Karras et al. Progressive growing of GANs for improved quality, stability, and variation. ICLR 2018.
        arXiv:1710.10196.

    Example:
        >>> import torch
        >>> net = ProgressiveGenerator(16, (1, 32, 32), width=8)
        >>> net(torch.randn(5, 16)).shape, len(net.levels)
        (torch.Size([5, 1, 32, 32]), 4)
    """

    def __init__(
        self, latent: int = 64, shape: Sequence[int] = (1, 32, 32), width: int = 32, growth: float = 0.6
    ) -> None:
        super().__init__(shape, width, growth, latent=check_integer(latent, "latent", 1))
        first, channels = self.levels[0], [level.channels for level in self.levels]
        self.stem = EqualizedLinear(latent, math.prod(first))
        self.first = EqualizedConv2d(first.channels, first.channels)
        self.blocks = nn.ModuleList(
            nn.ModuleList([EqualizedConv2d(before, after), EqualizedConv2d(after, after)])
            for before, after in pairwise(channels)
        )
        self.to_image = nn.ModuleList(EqualizedConv2d(c, self.shape[0], 1) for c in channels)

    def forward(self, z: Tensor) -> Tensor:
        """Generate images at the resolution of the present phase.

        Args:
            z: noise ``[B, latent]``.

        Returns:
            Images ``[B, C, H, W]``.

        Raises:
            InputError: if the noise has another size.
        """
        check_rows(z, (self.stem.in_features,), "noise")
        level, alpha = self.level, self._alpha
        h = pixel_norm(scaled_leaky_relu(self.stem(pixel_norm(z))).unflatten(1, self.levels[0]))
        h = before = pixel_norm(scaled_leaky_relu(self.first(h)))
        for block in list(self.blocks)[:level]:
            before, h = h, enlarge(h)
            for conv in block:  # type: ignore[attr-defined]
                h = pixel_norm(scaled_leaky_relu(conv(h)))
        image: Tensor = self.to_image[level](h)
        if alpha is not None:
            image = self._blend(enlarge(self.to_image[level - 1](before)), image, alpha)
        return enlarge(image, self._factor)


class ProgressiveDiscriminator(GrowingNetwork):
    """The mirror image of :class:`ProgressiveGenerator`, from images to one logit or score per row.

    Maps ``[B, C, H, W]`` to ``[B]``. Images are reduced to the resolution of the present phase; at the smallest one the
    standard deviation over the minibatch is appended to the features.

    Args:
        shape: of an image, (C, H, W), with even H and W of at least 8.
        width: channels at the full resolution; twice as many at each lower one, at most 512.
        growth: share of the training after which the full resolution is reached.

    Raises:
        InputError: an argument has a wrong type or value.

    Example:
        >>> import torch
        >>> ProgressiveDiscriminator((1, 32, 32), width=8)(torch.zeros(5, 1, 32, 32)).shape
        torch.Size([5])
    """

    def __init__(self, shape: Sequence[int] = (1, 32, 32), width: int = 32, growth: float = 0.6) -> None:
        super().__init__(shape, width, growth)
        first, channels = self.levels[0], [level.channels for level in self.levels]
        self.from_image = nn.ModuleList(EqualizedConv2d(self.shape[0], c, 1) for c in channels)
        self.blocks = nn.ModuleList(
            nn.ModuleList([EqualizedConv2d(before, before), EqualizedConv2d(before, after)])
            for after, before in pairwise(channels)
        )
        self.head = DiscriminatorHead(first)

    def forward(self, x: Tensor) -> Tensor:
        """Score images.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            Logits or scores ``[B]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        level, alpha = self.level, self._alpha
        x = shrink(x, self._factor)
        h = scaled_leaky_relu(self.from_image[level](x))
        for i in range(level - 1, -1, -1):
            for conv in self.blocks[i]:  # type: ignore[attr-defined]
                h = scaled_leaky_relu(conv(h))
            h = shrink(h)
            if alpha is not None and i == level - 1:
                h = self._blend(scaled_leaky_relu(self.from_image[i](shrink(x))), h, alpha)
        scores: Tensor = self.head(h)
        return scores
