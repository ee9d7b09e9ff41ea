"""Generator and discriminator of InfoGAN, for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from credo.architectures._base import Architecture, require_positive, require_shape
from credo.architectures.dcgan import Dense, DoublingConv, HalvingConv, strided_shape

_SLOPE = 0.1


class InfoGANGenerator(Architecture):
    """Noise and codes ``[B, latent]`` to images ``[B, C, H, W]`` between 0 and 1: the network of Table 1 of the paper.

    Two fully connected layers and two fractionally strided convolutions, batch norm and ReLU after all but the last,
    whose sigmoid gives the image.

    Args:
        latent: the dimension of the noise and all codes together; 74 in the paper.
        shape: of an image, (C, H, W), with H and W multiples of 4.

    References:
        X. Chen et al. InfoGAN: interpretable representation learning by information maximizing generative adversarial
        nets. NeurIPS 2016. arXiv:1606.03657.
    """

    output_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, latent: int = 74, shape: Sequence[int] = (1, 28, 28)) -> None:
        super().__init__()
        require_positive(latent=latent)
        channels, height, width = strided_shape(shape)
        self.config = {"latent": latent, "shape": [channels, height, width]}
        smallest = (128, height // 4, width // 4)
        self.layers = nn.Sequential(
            Dense(latent, 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            Dense(1024, 128 * smallest[1] * smallest[2], bias=False),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            DoublingConv(128, 64),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            DoublingConv(64, channels, bias=True),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """``[B, latent]`` to ``[B, C, H, W]``."""
        images: Tensor = self.layers(z)
        return images


class InfoGANDiscriminator(Architecture):
    """Images ``[B, C, H, W]`` to ``[B, 1 + codes]``: D's logit, then the parameters of Q(code | image).

    D and Q share all convolutions and the first fully connected layer; Q has one more hidden layer of its own.

    Args:
        codes: how many numbers describe Q; ten logits and the means of two continuous codes, where that is all.
        shape: of an image, (C, H, W), with H and W multiples of 4.
    """

    def __init__(self, codes: int = 12, shape: Sequence[int] = (1, 28, 28)) -> None:
        super().__init__()
        require_positive(codes=codes)
        self.shape = strided_shape(shape)
        self.config = {"codes": codes, "shape": list(self.shape)}
        channels, height, width = self.shape
        self.trunk = nn.Sequential(
            HalvingConv(channels, 64, bias=True),
            nn.LeakyReLU(_SLOPE),
            HalvingConv(64, 128),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(_SLOPE),
            nn.Flatten(),
            Dense(128 * (height // 4) * (width // 4), 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.LeakyReLU(_SLOPE),
        )
        self.discriminate = Dense(1024, 1)
        self.recognize = nn.Sequential(
            Dense(1024, 128, bias=False), nn.BatchNorm1d(128), nn.LeakyReLU(_SLOPE), Dense(128, codes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, 1 + codes]``."""
        require_shape(x, self.shape)
        features = self.trunk(x)
        return torch.cat([self.discriminate(features), self.recognize(features)], dim=1)
