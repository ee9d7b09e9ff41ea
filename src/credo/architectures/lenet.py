"""LeNet-5 in the form that the MC dropout papers use."""

from __future__ import annotations

from torch import Tensor, nn

from credo.architectures._base import Architecture, dropout_layers, require_positive
from credo.errors import InputError


class LeNet(Architecture):
    """A small convolutional network for square gray or color images: 20 and 50 filters of 5×5, then 500 units.

    The network of LeCun et al. (1998) as distributed with Caffe, and so of Gal & Ghahramani (2016): each
    convolution is followed by 2×2 max pooling alone, the one ReLU comes after the first fully connected layer.
    Images smaller than 16×16 (scikit-learn's 8×8 digits) are padded so that the convolutions keep their size.

    Maps ``[B, in_channels, size, size]`` to logits ``[B, classes]``.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        size: height and width of the image, 4 or more.
        dropout: drop rate of an ``nn.Dropout`` before each weight layer but the first, the "LeNet-all" of Gal &
            Ghahramani; ``None`` for none.

    References:
        LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
        Gal, Ghahramani. Bayesian convolutional neural networks with Bernoulli approximate variational inference.
        ICLR workshop, 2016. arXiv:1506.02158.
    """

    def __init__(
        self, classes: int = 10, in_channels: int = 1, size: int = 28, *, dropout: float | None = None
    ) -> None:
        super().__init__()
        require_positive(classes=classes, in_channels=in_channels, size=size)
        if size < 4:
            raise InputError(f"size must be 4 or more for two rounds of 2×2 pooling, got {size}")
        self.config = {"classes": classes, "in_channels": in_channels, "size": size, "dropout": dropout}
        padding = 2 if size < 16 else 0
        shrink = 4 - 2 * padding
        side = ((size - shrink) // 2 - shrink) // 2
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 20, 5, padding=padding),
            nn.MaxPool2d(2),
            *dropout_layers(dropout),
            nn.Conv2d(20, 50, 5, padding=padding),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *dropout_layers(dropout),
            nn.Linear(50 * side * side, 500),
            nn.ReLU(),
            *dropout_layers(dropout),
            nn.Linear(500, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, in_channels, size, size]`` to logits ``[B, classes]``."""
        logits: Tensor = self.classifier(self.features(x))
        return logits
