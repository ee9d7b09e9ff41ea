"""A small residual network with pre-activation and batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo.architectures._base import Architecture, dropout_layers, require_positive
from credo.errors import InputError


class PreActivationBlock(nn.Module):
    """x ↦ shortcut + conv(relu(bn(conv(relu(bn(x)))))), both convolutions 3×3.

    The shortcut is the input itself, or a 1×1 convolution of the activated input where the shape changes.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float | None) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU())
        self.residual = nn.Sequential(
            *dropout_layers(dropout),
            nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            *dropout_layers(dropout),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )
        same = stride == 1 and in_channels == channels
        self.project = None if same else nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to ``[B, channels, ⌈H/stride⌉, ⌈W/stride⌉]``."""
        active = self.enter(x)
        shortcut = x if self.project is None else self.project(active)
        return torch.add(shortcut, self.residual(active))


class ResNet(Architecture):
    """A pre-activation residual network (He et al., 2016) for small images of any size.

    One stage per width; every stage after the first halves the height and width. Global average pooling makes
    the network independent of the image size.

    Maps ``[B, in_channels, H, W]`` to logits ``[B, classes]``.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        widths: channels of each stage.
        blocks: residual blocks per stage; 1, 3 and 9 with three widths are ResNet-8, -20 and -56.
        dropout: drop rate of an ``nn.Dropout`` before each 3×3 convolution but the stem, and before the last
            layer; ``None`` for none.

    References:
        He, Zhang, Ren, Sun. Identity mappings in deep residual networks. ECCV, 2016. arXiv:1603.05027.
    """

    def __init__(
        self,
        classes: int = 10,
        in_channels: int = 1,
        widths: Sequence[int] = (16, 32, 64),
        blocks: int = 1,
        *,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        require_positive(classes=classes, in_channels=in_channels, blocks=blocks)
        require_positive(**{f"widths[{i}]": width for i, width in enumerate(widths)})
        if not widths:
            raise InputError("widths must name at least one stage, got none")
        self.config = {
            "classes": classes,
            "in_channels": in_channels,
            "widths": list(widths),
            "blocks": blocks,
            "dropout": dropout,
        }
        self.stem = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        channels = widths[0]
        stages: list[nn.Module] = []
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(PreActivationBlock(channels, width, stride, dropout))
                channels = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *dropout_layers(dropout),
            nn.Linear(channels, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        logits: Tensor = self.head(self.stages(self.stem(x)))
        return logits
