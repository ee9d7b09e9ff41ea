"""ESPCN: images at a multiple of their resolution, by convolutions at the low one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_bool, check_integer
from credo.architectures._base import Architecture, activation_layer, check_drop_rate, check_rows, check_sizes
from credo.errors import InputError


class ESPCN(Architecture):
    r"""The efficient sub-pixel convolutional network of Shi et al. (2016), for images of any size.

    Maps ``[B, channels, H, W]`` to ``[B, channels, r·H, r·W]``, r the ``factor``. All convolutions work at the low
    resolution, the first with 5×5 filters and the others with 3×3. The last one has r² channels for each channel of
    the output, which become the pixels of an r×r block (the paper's periodic shuffling, ``nn.PixelShuffle``):

    .. math::

        y_{c,\,ri + a,\,rj + b} = T_{cr^2 + ra + b,\,i,\,j},    0 ≤ a, b < r.

    With ``residual``, the default, the network outputs the difference to the bicubic interpolation of its input, which
    it adds: zero weights are bicubic interpolation. Borders are continued by their own values, not by zeros.

    Args:
        factor: r, the ratio of the two resolutions.
        channels: channels of the image: 1 for luminance, as in the paper, 3 for colors.
        widths: channels of the hidden convolutions.
        activation: name of the activation, a key of ``credo.architectures.ACTIVATIONS``; the paper's is tanh.
        dropout: drop rate of an ``nn.Dropout2d``, which drops whole channels, before every convolution except the
            first; ``None`` for no dropout.
        residual: whether to add the bicubic interpolation of the input; the paper's network does not.
        heteroscedastic: whether the network also outputs the log variance of every pixel, ``[B, 2·channels, r·H,
            r·W]``, for ``credo.Gaussian("heteroscedastic", output_dim=1)``. It comes from a second branch of the same
            layers. With common features, the likelihood gives most of them to smooth regions, where the variance is
            lowest, and edges are lost: see Seitzer et al. (2022).

    Raises:
        InputError: if a size is not an integer of at least 1, there are no widths, or the activation is unknown.

    References:
        Shi, Caballero, Huszár, Totz, Aitken, Bishop, Rueckert, Wang. Real-time single image and video super-resolution
        using an efficient sub-pixel convolutional neural network. CVPR, 2016. arXiv:1609.05158.
        Kim, Lee, Lee. Accurate image super-resolution using very deep convolutional networks. CVPR, 2016.
        arXiv:1511.04587 (the difference to the bicubic interpolation).
        Seitzer, Tavakoli, Antic, Martius. On the pitfalls of heteroscedastic uncertainty estimation with probabilistic
        neural networks. ICLR, 2022. arXiv:2203.09168.

    Example:
        >>> import torch
        >>> ESPCN(3)(torch.zeros(2, 1, 10, 12)).shape
        torch.Size([2, 1, 30, 36])
    """

    def __init__(
        self,
        factor: int = 3,
        channels: int = 1,
        widths: Sequence[int] = (64, 32),
        *,
        activation: str = "tanh",
        dropout: float | None = None,
        residual: bool = True,
        heteroscedastic: bool = False,
    ) -> None:
        factor, channels = check_integer(factor, "factor", 1), check_integer(channels, "channels", 1)
        widths = check_sizes(widths, "widths")
        if not widths:
            raise InputError("widths must hold at least one hidden convolution, got none")
        super().__init__(
            factor=factor,
            channels=channels,
            widths=widths,
            activation=activation,
            dropout=dropout,
            residual=check_bool(residual, "residual"),
            heteroscedastic=check_bool(heteroscedastic, "heteroscedastic"),
        )
        self.factor, self.residual, self.shape = factor, residual, (channels, "H", "W")
        branches = ("mean", "log_variance") if heteroscedastic else ("mean",)
        self.branches = nn.ModuleDict(
            {name: _sub_pixel_layers(factor, channels, widths, activation, dropout) for name in branches}
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Predict images at the high resolution.

        Args:
            x: images ``[B, channels, H, W]``.

        Returns:
            Images ``[B, channels, r·H, r·W]``; if heteroscedastic ``[B, 2·channels, r·H, r·W]``, the images first.

        Raises:
            InputError: if the images have other channels.
        """
        check_rows(x, self.shape)
        outputs: list[Tensor] = [branch(x) for branch in self.branches.values()]
        if self.residual:
            outputs[0] = outputs[0] + bicubic(x, self.factor)
        return torch.cat(outputs, 1)


def bicubic(x: Tensor, factor: int) -> Tensor:
    """Return images ``[B, C, H, W]`` at ``factor`` times their resolution, by bicubic interpolation."""
    return F.interpolate(x, scale_factor=factor, mode="bicubic")


def _sub_pixel_layers(
    factor: int, channels: int, widths: Sequence[int], activation: str, dropout: float | None
) -> nn.Sequential:
    """Convolutions that keep height and width, and the shuffle of the last one's channels into pixels."""
    layers: list[nn.Module] = []
    width_in, kernel = channels, 5
    for width in widths:
        layers += [_convolution(width_in, width, kernel), activation_layer(activation)]
        layers += [] if dropout is None else [nn.Dropout2d(check_drop_rate(dropout, "dropout"))]
        width_in, kernel = width, 3
    return nn.Sequential(*layers, _convolution(width_in, channels * factor**2, 3), nn.PixelShuffle(factor))


def _convolution(width_in: int, width: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, kernel, padding=kernel // 2, padding_mode="replicate")
