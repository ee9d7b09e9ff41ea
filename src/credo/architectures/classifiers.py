"""Convolutional classifiers of images: LeNet, an all-convolutional network and a small ResNet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo._arguments import check_bool, check_integer
from credo.architectures._base import Architecture, check_rows, check_sizes, dropout_layers
from credo.errors import InputError


class LeNet(Architecture):
    """LeNet for square images: 20 and 50 filters of 5×5, then 500 units.

    Maps ``[B, in_channels, size, size]`` to logits ``[B, classes]``. This is the network of LeCun et al. (1998) as
    distributed with Caffe, which Gal & Ghahramani (2016) use: each convolution is followed by 2×2 max pooling only, and
    the one ReLU comes after the first fully connected layer. Images smaller than 16×16 (scikit-learn's 8×8 digits) are
    padded so that the convolutions keep their size.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        size: height and width of the image, 4 or more.
        dropout: drop rate of an ``nn.Dropout`` before each weight layer except the first, the "LeNet-all" of Gal &
            Ghahramani; ``None`` for no dropout.
        relu: whether a ReLU follows each pooling as well, where the network of 1998 has a sigmoid. The initial weights
            are then those of He et al. (2015), N(0, 2/fan in): with torch's default, networks of an ensemble start
            closer to each other and stay so on images unlike those of the training.

    Raises:
        InputError: if a size is not an integer of at least 1, or ``size`` is below 4.

    References:
        LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
        Gal, Ghahramani. Bayesian convolutional neural networks with Bernoulli approximate variational inference.
        ICLR workshop, 2016. arXiv:1506.02158.
        He, Zhang, Ren, Sun. Delving deep into rectifiers. ICCV, 2015. arXiv:1502.01852.

    Example:
        >>> import torch
        >>> LeNet(classes=10)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        in_channels: int = 1,
        size: int = 28,
        *,
        dropout: float | None = None,
        relu: bool = False,
    ) -> None:
        classes, in_channels = check_integer(classes, "classes", 1), check_integer(in_channels, "in_channels", 1)
        size = check_integer(size, "size", 1)
        if size < 4:
            raise InputError(f"size must be at least 4 for two rounds of 2×2 pooling, got {size}")
        relu = check_bool(relu, "relu")
        super().__init__(classes=classes, in_channels=in_channels, size=size, dropout=dropout, relu=relu)
        self.shape = (in_channels, size, size)
        padding = 2 if size < 16 else 0
        shrink = 4 - 2 * padding
        side = ((size - shrink) // 2 - shrink) // 2
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 20, 5, padding=padding),
            nn.MaxPool2d(2),
            *([nn.ReLU()] if relu else []),
            *dropout_layers(dropout),
            nn.Conv2d(20, 50, 5, padding=padding),
            nn.MaxPool2d(2),
            *([nn.ReLU()] if relu else []),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *dropout_layers(dropout),
            nn.Linear(50 * side * side, 500),
            nn.ReLU(),
            *dropout_layers(dropout),
            nn.Linear(500, classes),
        )
        if relu:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights: torch's default, or with ``relu`` those of He et al. (2015) and biases of 0."""
        for layer in (*self.features, *self.classifier):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()
                if self.config["relu"]:
                    _draw_he_weights(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: images ``[B, in_channels, size, size]``.

        Returns:
            Logits ``[B, classes]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        logits: Tensor = self.classifier(self.features(x))
        return logits


class AllConvNet(Architecture):
    """The all-convolutional network of Springenberg et al. (2015), for images of any size.

    Maps ``[B, in_channels, H, W]`` to logits ``[B, classes]``. Convolutions with stride 2 take the place of pooling,
    1×1 convolutions that of fully connected layers, and the logits are averages over positions. For each width there
    are two 3×3 convolutions and one with stride 2; then follow one 3×3 and two 1×1 convolutions. The default is
    All-CNN-C.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        widths: channels of each stage.
        dropout: drop rate of an ``nn.Dropout`` after each convolution with stride 2; ``None`` for no dropout.

    Raises:
        InputError: if a size is not an integer of at least 1, or there are no widths.

    References:
        Springenberg, Dosovitskiy, Brox, Riedmiller. Striving for simplicity: the all convolutional net. ICLR workshop,
        2015. arXiv:1412.6806.
        He, Zhang, Ren, Sun. Delving deep into rectifiers. ICCV, 2015. arXiv:1502.01852 (the initial weights).

    Example:
        >>> import torch
        >>> AllConvNet(widths=(16, 32))(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        in_channels: int = 1,
        widths: Sequence[int] = (96, 192),
        *,
        dropout: float | None = None,
    ) -> None:
        classes, in_channels = check_integer(classes, "classes", 1), check_integer(in_channels, "in_channels", 1)
        widths = _check_widths(widths)
        super().__init__(classes=classes, in_channels=in_channels, widths=widths, dropout=dropout)
        self.shape = (in_channels, "H", "W")
        layers: list[nn.Module] = []
        channels = in_channels
        for width in widths:
            for stride in (1, 1, 2):
                layers += [nn.Conv2d(channels, width, 3, stride=stride, padding=1), nn.ReLU()]
                channels = width
            layers += dropout_layers(dropout)
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 1), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Conv2d(channels, classes, 1))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as He et al. (2015): with torch's default the signal would fade over so many layers."""
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                _draw_he_weights(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: images ``[B, in_channels, H, W]``.

        Returns:
            Logits ``[B, classes]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        logits: Tensor = self.pool(self.features(x))
        return logits


class PreActivationBlock(nn.Module):
    """x ↦ shortcut + conv(relu(bn(conv(relu(bn(x)))))), both convolutions 3×3.

    The shortcut is the input itself, or a 1×1 convolution of the activated input if the shape changes.
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
        """Map ``[B, in_channels, H, W]`` to ``[B, channels, ⌈H/stride⌉, ⌈W/stride⌉]``."""
        active = self.enter(x)
        shortcut = x if self.project is None else self.project(active)
        return torch.add(shortcut, self.residual(active))


class ResNet(Architecture):
    """A pre-activation residual network with batch norm (He et al., 2016) for small images of any size.

    Maps ``[B, in_channels, H, W]`` to logits ``[B, classes]``. There is one stage for each width; every stage after the
    first halves height and width. Global average pooling makes the network independent of the image size.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        widths: channels of each stage.
        blocks: residual blocks per stage; 1, 3 and 9 with three widths are ResNet-8, -20 and -56.
        dropout: drop rate of an ``nn.Dropout`` before each 3×3 convolution except the first, and before the last layer;
            ``None`` for no dropout.

    Raises:
        InputError: if a size is not an integer of at least 1, or there are no widths.

    References:
        He, Zhang, Ren, Sun. Identity mappings in deep residual networks. ECCV, 2016. arXiv:1603.05027.

    Example:
        >>> import torch
        >>> ResNet(classes=10, in_channels=3)(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 10])
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
        classes, in_channels = check_integer(classes, "classes", 1), check_integer(in_channels, "in_channels", 1)
        widths, blocks = _check_widths(widths), check_integer(blocks, "blocks", 1)
        super().__init__(classes=classes, in_channels=in_channels, widths=widths, blocks=blocks, dropout=dropout)
        self.shape = (in_channels, "H", "W")
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
        """Classify images.

        Args:
            x: images ``[B, in_channels, H, W]``.

        Returns:
            Logits ``[B, classes]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        logits: Tensor = self.head(self.stages(self.stem(x)))
        return logits


def _draw_he_weights(layer: nn.Conv2d | nn.Linear) -> None:
    """Draw the weights as He et al. (2015), and set the biases to 0."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths of the stages as a tuple, if there is at least one."""
    checked = check_sizes(widths, "widths")
    if not checked:
        raise InputError("widths must hold at least one stage, got none")
    return checked
