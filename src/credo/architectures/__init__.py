"""Ready-made networks; any other ``nn.Module`` works as well.

A network of this package can be rebuilt from a file: :func:`describe` returns its name and arguments, and :func:`build`
builds it from them. To add one, write a subclass of ``Architecture`` and add it to ``REGISTRY``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from credo.architectures._base import ACTIVATIONS, Architecture
from credo.architectures.adversarial import (
    DCGANDiscriminator,
    DCGANGenerator,
    InfoGANDiscriminator,
    InfoGANGenerator,
)
from credo.architectures.captioner import Captioner
from credo.architectures.classifiers import AllConvNet, LeNet, ResNet
from credo.architectures.convolutional import ConvDecoder, ConvEncoder, ResidualDecoder, ResidualEncoder
from credo.architectures.dense import MLP, DenseDecoder, DenseEncoder, DenseGenerator
from credo.architectures.progressive import ProgressiveDiscriminator, ProgressiveGenerator
from credo.architectures.recurrent import LanguageModel
from credo.architectures.segnet import SegNet
from credo.architectures.style import StyleDiscriminator, StyleGenerator
from credo.architectures.super_resolution import ESPCN
from credo.architectures.tabular import PiecewiseLinear, TabularMLP
from credo.architectures.transformer import TransformerLanguageModel, VisionTransformer
from credo.errors import InputError, unknown_name

__all__ = [
    "ACTIVATIONS",
    "REGISTRY",
    "AllConvNet",
    "Architecture",
    "Captioner",
    "ConvDecoder",
    "ConvEncoder",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "DenseDecoder",
    "DenseEncoder",
    "DenseGenerator",
    "ESPCN",
    "InfoGANDiscriminator",
    "InfoGANGenerator",
    "LanguageModel",
    "LeNet",
    "MLP",
    "PiecewiseLinear",
    "ProgressiveDiscriminator",
    "ProgressiveGenerator",
    "ResNet",
    "ResidualDecoder",
    "ResidualEncoder",
    "SegNet",
    "StyleDiscriminator",
    "StyleGenerator",
    "TabularMLP",
    "TransformerLanguageModel",
    "VisionTransformer",
    "build",
    "describe",
]

REGISTRY: dict[str, type[Architecture]] = {
    "all_conv_net": AllConvNet,
    "captioner": Captioner,
    "conv_decoder": ConvDecoder,
    "conv_encoder": ConvEncoder,
    "dcgan_discriminator": DCGANDiscriminator,
    "dcgan_generator": DCGANGenerator,
    "dense_decoder": DenseDecoder,
    "dense_encoder": DenseEncoder,
    "dense_generator": DenseGenerator,
    "espcn": ESPCN,
    "infogan_discriminator": InfoGANDiscriminator,
    "infogan_generator": InfoGANGenerator,
    "language_model": LanguageModel,
    "lenet": LeNet,
    "mlp": MLP,
    "progressive_discriminator": ProgressiveDiscriminator,
    "progressive_generator": ProgressiveGenerator,
    "residual_decoder": ResidualDecoder,
    "residual_encoder": ResidualEncoder,
    "resnet": ResNet,
    "segnet": SegNet,
    "style_discriminator": StyleDiscriminator,
    "style_generator": StyleGenerator,
    "tabular_mlp": TabularMLP,
    "transformer_language_model": TransformerLanguageModel,
    "vision_transformer": VisionTransformer,
}


def build(name: str, config: Mapping[str, Any] | None = None) -> Architecture:
    """Build a network with fresh weights from its registered name.

    Args:
        name: a key of ``REGISTRY``, such as ``"mlp"``.
        config: the constructor arguments; ``None`` for the defaults.

    Returns:
        The network.

    Raises:
        InputError: if the name is unknown, or the arguments are not valid.
    """
    if name not in REGISTRY:
        raise unknown_name("architecture", name, REGISTRY)
    try:
        return REGISTRY[name](**(config or {}))
    except TypeError as error:
        raise InputError(f"architecture {name!r} cannot be built from {dict(config or {})}: {error}") from error


def describe(net: nn.Module) -> dict[str, Any] | None:
    """Describe a network of this package as JSON values for :func:`build`.

    Args:
        net: any network.

    Returns:
        ``{"name": ..., "config": ...}``, so that ``build(**describe(net))`` has the same layers; ``None`` if the
        network is not one of this package. A subclass is not, because its forward may differ.
    """
    for name, architecture in REGISTRY.items():
        if type(net) is architecture:
            return {"name": name, "config": net.config}
    return None
