"""Scenes of two or three handwritten digits with a caption that names digit, size and place of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from credo._arguments import check_integer, check_option
from credo.datasets.digits import rotate
from credo.errors import InputError
from credo.seeding import check_seed, generator

STOP = "."
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SIZES = ("small", "large")
_ROWS, _COLUMNS = ("top", "bottom"), ("left", "right")
CAPTION_WORDS = (STOP, "and", *_SIZES, *_DIGITS, *_ROWS, *_COLUMNS)
PADDING = -1
DISTURBANCES = ("none", "occlusion", "rotation")

_MAX_DIGITS = 3
_PHRASE = 5
"""Words per digit: size, digit, row, column, and the word that follows, "and" or the stop."""
_SIDES = ((0.30, 0.38), (0.47, 0.55))
"""Side of the image of a small and of a large digit, as a fraction of that of the scene."""
_ROTATION = (60.0, 120.0)
_OCCLUDER = 0.5
_INK = 0.75
"""The part of the side of an image that a digit of MNIST fills, with a small margin."""
_CHUNK = 2048
"""Scenes that are drawn at once, which bounds the memory."""


@dataclass(frozen=True, eq=False)
class CaptionedScenes:
    """Scenes of digits and their captions, such as ``"large three top left and small zero bottom right ."``.

    Attributes:
        images: ``[N, 1, H, W]``, float32 in [0, 1].
        captions: indices of words ``[N, 15]``, int64; the stop ends a caption, ``padding`` fills the rest.
        disturbed: number of the digit that is occluded or rotated, in the order of the caption, ``[N]``; −1 for none.
        vocabulary: the words; the first is the stop, which also stands before the first word.
        padding: the label of positions after the end of a caption, to be passed as ``ignore_index``.

    Example:
        >>> from credo.datasets import captioned_scenes, load_digits
        >>> data = load_digits()
        >>> scenes = captioned_scenes(data.x_train, data.y_train, 4)
        >>> scenes.images.shape, scenes.captions.shape
        (torch.Size([4, 1, 48, 48]), torch.Size([4, 15]))
    """

    images: Tensor
    captions: Tensor
    disturbed: Tensor
    vocabulary: tuple[str, ...] = CAPTION_WORDS
    padding: int = PADDING

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, rows: slice | Tensor) -> Self:
        return replace(self, images=self.images[rows], captions=self.captions[rows], disturbed=self.disturbed[rows])

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """The input of a network that is told the caption so far: images, and the word before each, ``[N, 15]``."""
        before = self.captions.roll(1, dims=1).clamp(min=0)
        before[:, 0] = 0
        return self.images, before

    @property
    def about_disturbed(self) -> Tensor:
        """Which positions of a caption are about the disturbed digit: its size, name, row and column, ``[N, 15]``."""
        position = torch.arange(self.captions.shape[1])
        return (position // _PHRASE == self.disturbed[:, None]) & (position % _PHRASE < _PHRASE - 1)

    def describe(self, tokens: Tensor) -> str:
        """Return a caption as text.

        Args:
            tokens: indices of words, ``[T]``; what follows the stop is left out.

        Returns:
            The words, separated by spaces, without the stop.
        """
        words: list[str] = []
        for token in tokens.tolist():
            if token in (0, self.padding):
                break
            words.append(self.vocabulary[token])
        return " ".join(words)


def captioned_scenes(
    digits: Tensor, labels: Tensor, n: int, *, disturbance: str = "none", side: int = 48, seed: int = 0
) -> CaptionedScenes:
    """Draw scenes of two or three digits, in different quarters of the image, and caption them.

    A digit is small or large and lies at the top or bottom, left or right, with a random shift. The caption names size,
    digit, row and column of each, in reading order. With a disturbance, one digit of every scene is hard to read, and
    the caption still names what it is.

    Args:
        digits: images of single digits ``[M, 1, h, w]`` in [0, 1], with a margin such as that of MNIST.
        labels: which digit each is, 0 to 9, ``[M]``.
        n: number of scenes.
        disturbance: ``"none"``; ``"occlusion"``: a gray bar hides one half of the digit; ``"rotation"``: it is rotated
            by 60 to 120 degrees in either direction.
        side: height and width of a scene.
        seed: seed of the scenes.

    Returns:
        The scenes.

    Raises:
        InputError: if a size or shape is not valid, or the disturbance is unknown.
    """
    check_integer(n, "n", 1)
    check_integer(side, "side", 16)
    check_option(disturbance, "disturbance", DISTURBANCES)
    if digits.dim() != 4 or digits.shape[1] != 1 or labels.shape != digits.shape[:1]:
        raise InputError(
            f"digits must have shape [M, 1, h, w] and labels [M], got {list(digits.shape)} and {list(labels.shape)}"
        )
    random = generator(torch.device("cpu"), check_seed(seed))
    count = torch.randint(2, _MAX_DIGITS + 1, (n, 1), generator=random)
    cell = torch.rand(n, 4, generator=random).argsort(1)[:, :_MAX_DIGITS]
    is_there = torch.arange(_MAX_DIGITS) < count
    cell = torch.where(is_there, cell, 4).sort(1).values  # reading order; 4 is nowhere
    source = torch.randint(len(digits), (n, _MAX_DIGITS), generator=random)
    size = torch.randint(2, (n, _MAX_DIGITS), generator=random)
    low, high = torch.tensor(_SIDES).unbind(1)
    extent = low[size] + (high - low)[size] * torch.rand(n, _MAX_DIGITS, generator=random)
    slack = (0.5 - _INK * extent).clamp(min=0.02)
    shift = slack[..., None] * (torch.rand(n, _MAX_DIGITS, 2, generator=random) - 0.5)
    center = torch.stack([cell % 2, cell // 2], -1) * 0.5 + 0.25 + shift
    disturbed = torch.full((n,), -1)
    if disturbance != "none":
        disturbed = (torch.rand(n, generator=random) * count[:, 0]).long()
    angle = torch.empty(n).uniform_(*_ROTATION, generator=random)
    angle *= torch.randint(2, (n,), generator=random) * 2 - 1
    covered = torch.randint(4, (n,), generator=random)

    images = torch.zeros(n, 1, side, side)
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        for k in range(_MAX_DIGITS):
            pictures = digits[source[rows, k]] * is_there[rows, k, None, None, None]
            is_disturbed = disturbed[rows] == k
            if disturbance == "rotation":
                pictures = rotate(pictures, angle[rows] * is_disturbed)
            images[rows] = torch.maximum(images[rows], _place(pictures, center[rows, k], extent[rows, k], side))
            if disturbance == "occlusion":
                bar = _bars(center[rows, k], extent[rows, k], covered[rows], side) & is_disturbed[:, None, None, None]
                images[rows].masked_fill_(bar, _OCCLUDER)
    return CaptionedScenes(images, _caption(labels[source], size, cell, count), disturbed)


def _place(pictures: Tensor, center: Tensor, extent: Tensor, side: int) -> Tensor:
    """Scenes ``[B, 1, side, side]`` with one picture each, by its center and side as fractions of the scene.

    Interpolation is linear along each axis, with weights as wide as a pixel of the scene where that is the larger one,
    so that small pictures are averaged and not sampled.
    """
    height, width = pictures.shape[-2:]
    rows = _interpolation(center[:, 1], extent, height, side)
    columns = _interpolation(center[:, 0], extent, width, side)
    return (rows @ pictures[:, 0] @ columns.mT)[:, None]


def _interpolation(center: Tensor, extent: Tensor, pixels: int, side: int) -> Tensor:
    """Weights ``[B, side, pixels]`` of a picture's pixels in each pixel of a scene, along one axis."""
    positions = (torch.arange(side) + 0.5) / side
    at = ((positions - center[:, None]) / extent[:, None] + 0.5) * pixels - 0.5
    reach = (pixels / (extent * side)).clamp(min=1.0)[:, None, None]
    weights = (1.0 - (at[..., None] - torch.arange(pixels)).abs() / reach).clamp(min=0.0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def _bars(center: Tensor, extent: Tensor, covered: Tensor, side: int) -> Tensor:
    """Which pixels a bar hides, ``[B, 1, side, side]``: the left, right, upper or lower half of a digit."""
    pixels = (torch.arange(side) + 0.5) / side
    x, y = (pixels - center[:, :1])[:, None, None, :], (pixels - center[:, 1:])[:, None, :, None]
    half = (0.5 * _INK * extent)[:, None, None, None]
    sign = (covered % 2 * 2 - 1)[:, None, None, None]
    across = torch.where((covered < 2)[:, None, None, None], x, y) * sign
    return (x.abs() < half) & (y.abs() < half) & (across > 0)


def _caption(labels: Tensor, size: Tensor, cell: Tensor, count: Tensor) -> Tensor:
    """The words of each caption ``[N, 15]``, from label, size and cell of every digit ``[N, 3]``."""
    index = {word: i for i, word in enumerate(CAPTION_WORDS)}
    number = torch.arange(_MAX_DIGITS)
    after = torch.where(number == count - 1, index[STOP], index["and"])
    words = torch.stack(
        [
            index[_SIZES[0]] + size,
            index[_DIGITS[0]] + labels,
            index[_ROWS[0]] + cell // 2,
            index[_COLUMNS[0]] + cell % 2,
            after,
        ],
        -1,
    )
    return words.masked_fill(number[:, None] >= count[..., None], PADDING).flatten(1)
