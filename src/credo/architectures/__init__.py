"""Networks to start from; any other ``nn.Module`` serves as well.

A network of this package can be named in a file: :func:`describe` gives its name and arguments, :func:`build` makes
it anew from them. Adding one is a file with a subclass of ``Architecture`` and a line in ``REGISTRY``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from credo.architectures._base import ACTIVATIONS, Architecture
from credo.architectures.convolutional import ConvDecoder, ConvEncoder
from credo.architectures.dcgan import DCGANDiscriminator, DCGANGenerator
from credo.architectures.dense import DenseDecoder, DenseEncoder, DenseGenerator
from credo.architectures.infogan import InfoGANDiscriminator, InfoGANGenerator
from credo.architectures.lenet import LeNet
from credo.architectures.mlp import MLP
from credo.architectures.residual import ResidualDecoder, ResidualEncoder
from credo.architectures.resnet import ResNet
from credo.errors import InputError, unknown_name

__all__ = [
    "ACTIVATIONS",
    "REGISTRY",
    "Architecture",
    "ConvDecoder",
    "ConvEncoder",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "DenseDecoder",
    "DenseEncoder",
    "DenseGenerator",
    "InfoGANDiscriminator",
    "InfoGANGenerator",
    "LeNet",
    "MLP",
    "ResNet",
    "ResidualDecoder",
    "ResidualEncoder",
    "build",
    "describe",
]

REGISTRY: dict[str, type[Architecture]] = {
    "conv_decoder": ConvDecoder,
    "conv_encoder": ConvEncoder,
    "dcgan_discriminator": DCGANDiscriminator,
    "dcgan_generator": DCGANGenerator,
    "dense_decoder": DenseDecoder,
    "dense_encoder": DenseEncoder,
    "dense_generator": DenseGenerator,
    "infogan_discriminator": InfoGANDiscriminator,
    "infogan_generator": InfoGANGenerator,
    "lenet": LeNet,
    "mlp": MLP,
    "residual_decoder": ResidualDecoder,
    "residual_encoder": ResidualEncoder,
    "resnet": ResNet,
}


def build(name: str, config: Mapping[str, Any] | None = None) -> Architecture:
    """A network with fresh weights, from its registered name and its constructor arguments."""
    if name not in REGISTRY:
        raise unknown_name("architecture", name, REGISTRY)
    try:
        return REGISTRY[name](**(config or {}))
    except TypeError as error:
        raise InputError(f"architecture {name!r} cannot be built from {dict(config or {})}: {error}") from error


def describe(net: nn.Module) -> dict[str, Any] | None:
    """``{"name": ..., "config": ...}`` such that ``build(**describe(net))`` has the same layers, or ``None``.

    ``None`` means that the network is not one of this package (a subclass is not: its forward may differ).
    """
    for name, architecture in REGISTRY.items():
        if type(net) is architecture:
            return {"name": name, "config": net.config}
    return None
