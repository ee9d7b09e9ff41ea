"""SegNet: a class for every pixel of an image."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_bool, check_integer
from credo.architectures._base import Architecture, check_rows, check_sizes, dropout_layers
from credo.errors import InputError


class SegNet(Architecture):
    r"""An encoder and a decoder that returns every maximum to the pixel it came from (Badrinarayanan et al., 2017).

    Maps ``[B, in_channels, H, W]`` to logits ``[B, classes, H, W]``, for images of any size that can be halved once per
    width. An encoder block is ``convolutions`` times (3×3 convolution, batch norm, ReLU), then 2×2 max pooling, whose
    indices are kept. The decoder mirrors it: each block places its inputs at the pixels that were the maxima, zeros
    elsewhere, and convolves the sparse maps. So edges stay sharp, although the decoder sees the innermost maps only.

    With ``dropout`` this is Bayesian SegNet (Kendall et al., 2017): dropout follows the innermost encoder and decoder
    blocks, where features are abstract, and not the outer ones, whose edges and corners every image shares. Of the
    placements that the paper compares, this one fits best. :class:`credo.MCDropout` draws its masks at prediction.

    Args:
        in_channels: channels of the image.
        classes: number of classes.
        widths: channels of each encoder block, from the image inwards; the decoder has them in reverse. The paper's
            network has (64, 128, 256, 512, 512) at 360×480; the default has a block less, for 120×160.
        convolutions: convolutions per block; 1 is similar to SegNet-Basic.
        dropout: drop rate of the ``nn.Dropout`` layers; ``None`` for no dropout.
        dropout_blocks: number of innermost blocks, in the encoder and again in the decoder, that dropout follows;
            ``None`` for half of the blocks, rounded up: 3 of the paper's 5.
        logit_noise: whether the network also outputs a log variance of every logit, ``[B, 2·classes, H, W]``, for
            ``credo.Categorical(logit_noise=True, class_dim=1)``.

    Raises:
        InputError: if a size is not an integer of at least 1, there are no widths, or ``dropout_blocks`` exceeds them.

    References:
        Badrinarayanan, Kendall, Cipolla. SegNet: A deep convolutional encoder-decoder architecture for image
        segmentation. PAMI, 2017. arXiv:1511.00561.
        Kendall, Badrinarayanan, Cipolla. Bayesian SegNet: Model uncertainty in deep convolutional encoder-decoder
        architectures for scene understanding. BMVC, 2017. arXiv:1511.02680.

    Example:
        >>> import torch
        >>> SegNet(3, 11, widths=(16, 32))(torch.zeros(2, 3, 30, 40)).shape
        torch.Size([2, 11, 30, 40])
    """

    def __init__(
        self,
        in_channels: int = 3,
        classes: int = 11,
        widths: Sequence[int] = (64, 128, 256, 512),
        *,
        convolutions: int = 2,
        dropout: float | None = 0.5,
        dropout_blocks: int | None = None,
        logit_noise: bool = False,
    ) -> None:
        in_channels, classes = check_integer(in_channels, "in_channels", 1), check_integer(classes, "classes", 1)
        widths, convolutions = check_sizes(widths, "widths"), check_integer(convolutions, "convolutions", 1)
        if not widths:
            raise InputError("widths must hold at least one block, got none")
        blocks = len(widths)
        if dropout_blocks is not None and check_integer(dropout_blocks, "dropout_blocks", 0) > blocks:
            raise InputError(f"dropout_blocks must be at most the number of blocks, {blocks}, got {dropout_blocks}")
        super().__init__(
            in_channels=in_channels,
            classes=classes,
            widths=widths,
            convolutions=convolutions,
            dropout=dropout,
            dropout_blocks=dropout_blocks,
            logit_noise=check_bool(logit_noise, "logit_noise"),
        )
        self.shape = (in_channels, "H", "W")
        dropped = (blocks + 1) // 2 if dropout_blocks is None else dropout_blocks
        outer = (in_channels, *widths[:-1])
        rates = [dropout if depth >= blocks - dropped else None for depth in range(blocks)]
        self.encoder = nn.ModuleList(
            EncoderBlock(width_in, width, convolutions, rate)
            for width_in, width, rate in zip(outer, widths, rates, strict=True)
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(width, width_out, convolutions, rate)
            for width, width_out, rate in reversed(list(zip(widths, (widths[0], *widths[:-1]), rates, strict=True)))
        )
        self.classifier = nn.Conv2d(widths[0], 2 * classes if logit_noise else classes, 1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Classify every pixel.

        Args:
            x: images ``[B, in_channels, H, W]``.

        Returns:
            Logits ``[B, classes, H, W]``; with ``logit_noise`` ``[B, 2·classes, H, W]``, logits first.

        Raises:
            InputError: if the images have other channels, or are too small for the number of blocks.
        """
        check_rows(x, self.shape)
        height, width = x.shape[-2:]
        if min(height, width) < 2 ** len(self.encoder):
            raise InputError(
                f"an image of {height}×{width} cannot be halved {len(self.encoder)} times: give fewer widths"
            )
        indices, sizes = [], []
        for block in self.encoder:
            sizes.append(x.shape[-2:])
            x, index = block(x)
            indices.append(index)
        for block, index, size in zip(self.decoder, reversed(indices), reversed(sizes), strict=True):
            x = block(x, index, list(size))
        logits: Tensor = self.classifier(x)
        return logits


class EncoderBlock(nn.Module):
    """Convolutions, 2×2 max pooling with its indices, and dropout."""

    def __init__(self, in_channels: int, channels: int, convolutions: int, dropout: float | None) -> None:
        super().__init__()
        self.convolutions = _convolutions(in_channels, [channels] * convolutions)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.dropout = nn.Sequential(*dropout_layers(dropout))

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return pooled features and the indices of the maxima, ``[B, channels, ⌊H/2⌋, ⌊W/2⌋]`` each."""
        pooled, index = self.pool(self.convolutions(x))
        return self.dropout(pooled), index


class DecoderBlock(nn.Module):
    """Unpooling to the pixels of the maxima, convolutions, and dropout."""

    def __init__(self, channels: int, out_channels: int, convolutions: int, dropout: float | None) -> None:
        super().__init__()
        self.unpool = nn.MaxUnpool2d(2)
        self.convolutions = _convolutions(channels, [channels] * (convolutions - 1) + [out_channels])
        self.dropout = nn.Sequential(*dropout_layers(dropout))

    @override
    def forward(self, x: Tensor, index: Tensor, size: list[int]) -> Tensor:
        """Return features of the given height and width, ``[B, out_channels, *size]``."""
        features: Tensor = self.dropout(self.convolutions(self.unpool(x, index, size)))
        return features


def _convolutions(in_channels: int, widths: Sequence[int]) -> nn.Sequential:
    """3×3 convolutions of the given widths, each with batch norm, which makes a bias redundant, and ReLU."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        in_channels = width
    return nn.Sequential(*layers)
