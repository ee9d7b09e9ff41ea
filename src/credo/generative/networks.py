"""The networks of generative models: presets by name, calls with clear errors, and checks of the last layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from credo._arguments import check_option
from credo.architectures import (
    ConvDecoder,
    ConvEncoder,
    DenseDecoder,
    DenseEncoder,
    ProgressiveDiscriminator,
    ProgressiveGenerator,
    ResidualDecoder,
    ResidualEncoder,
    StyleDiscriminator,
    StyleGenerator,
)
from credo.architectures.dense import datum_shape
from credo.errors import CredoError, InputError
from credo.likelihoods import Likelihood
from credo.methods import NetworkMethod
from credo.model import Model
from credo.selection import check_has_values, is_compiled

_OUTPUT_RANGES = {nn.Tanh: (-1.0, 1.0), nn.Sigmoid: (0.0, 1.0)}


class _Preset(NamedTuple):
    encoder: Callable[..., nn.Module]
    decoder: Callable[..., nn.Module]
    hidden: tuple[int, ...]
    is_convolutional: bool


_PRESETS = {
    "dense": _Preset(DenseEncoder, DenseDecoder, (200, 200), False),
    "convolutional": _Preset(ConvEncoder, ConvDecoder, (32, 64), True),
    "residual": _Preset(ResidualEncoder, ResidualDecoder, (64, 128), True),
}
VECTOR_PRESETS = ("dense", "convolutional")
"""Presets whose code is a vector."""
GRID_PRESETS = (*VECTOR_PRESETS, "residual")
"""Presets whose code is a vector or a grid of vectors."""


def encoder_and_decoder(
    encoder: nn.Module | str,
    decoder: nn.Module | None,
    *,
    shape: Sequence[int] | None,
    code: int,
    latent: int,
    hidden: Sequence[int] | None,
    likelihood: Likelihood | None = None,
    presets: Collection[str] = VECTOR_PRESETS,
) -> tuple[nn.Module, nn.Module]:
    """The two networks as they were given, or those of a preset.

    Args:
        encoder: a network, or the name of a preset.
        decoder: a network; ``None``: that of the preset.
        shape: of a datum; only for a preset.
        code: number of outputs of the encoder per code.
        latent: number of inputs of the decoder per code.
        hidden: widths of a preset's hidden layers, or the channels of a convolutional one.
        likelihood: of the data; a heteroscedastic one needs a mean and a log variance of each number.
        presets: the names to choose from.

    Returns:
        The encoder and the decoder.
    """
    if not isinstance(encoder, nn.Module | str):
        raise InputError(f"encoder must be a network or the name of a preset, got {type(encoder).__name__}")
    if decoder is not None and not isinstance(decoder, nn.Module):
        raise InputError(f"decoder must be a network, got {type(decoder).__name__}")
    if isinstance(encoder, nn.Module):
        if decoder is None:
            raise InputError("an encoder of your own needs a decoder of your own: pass decoder=...")
        if shape is not None or hidden is not None:
            raise InputError("shape and hidden are for presets: leave them out if you pass an encoder")
        return encoder, decoder
    preset = _PRESETS[check_option(encoder, "preset", presets)]
    if shape is None:
        raise InputError(f"the preset {encoder!r} needs the shape of a datum: pass shape=(1, 28, 28) or the like")
    if hidden is not None and not isinstance(hidden, list | tuple):
        raise InputError(f"hidden must be a list of widths of hidden layers, such as (200, 200), got {hidden!r}")
    widths = preset.hidden if hidden is None else tuple(hidden)
    datum = datum_shape(shape)
    is_pair = getattr(likelihood, "noise", None) == "heteroscedastic"
    output = _double_size(datum, getattr(likelihood, "output_dim", -1)) if is_pair else datum
    if preset.is_convolutional and output[1:] != datum[1:]:
        raise InputError(
            "a convolutional decoder outputs log variances as channels: make the likelihood "
            "credo.Gaussian(noise='heteroscedastic', output_dim=1)"
        )
    built = preset.encoder(datum, code, widths)
    return built, preset.decoder(latent, output, widths[::-1]) if decoder is None else decoder


class _AdversarialPreset(NamedTuple):
    generator: Callable[..., nn.Module]
    discriminator: Callable[..., nn.Module]
    options: Mapping[str, Any]
    """The published arguments of the model."""


_ADVERSARIAL_PRESETS = {
    name: _AdversarialPreset(
        generator,
        discriminator,
        {"discriminator_steps": 1, "generator_lr": lr, "discriminator_lr": lr, "betas": (0.0, 0.99)},
    )
    for name, generator, discriminator, lr in (
        ("progressive", ProgressiveGenerator, ProgressiveDiscriminator, 1e-3),
        ("style", StyleGenerator, StyleDiscriminator, 2e-3),
    )
}


class AdversarialNetworks(NamedTuple):
    """A generator, a discriminator, and the arguments of the model that were published with them."""

    generator: nn.Module
    discriminator: nn.Module
    options: Mapping[str, Any]


def adversarial_networks(
    generator: nn.Module | str,
    discriminator: nn.Module | None,
    *,
    latent: int,
    shape: Sequence[int] | None,
    width: int | None,
) -> AdversarialNetworks:
    """The two networks as they were given, or those of a preset.

    Args:
        generator: a network, or the name of a preset.
        discriminator: a network; ``None``: that of the preset.
        latent: dimension of the noise.
        shape: of an image; only for a preset.
        width: channels at the full resolution; only for a preset; ``None``: its default.

    Returns:
        The networks, and the options of a preset.
    """
    if not isinstance(generator, str):
        if discriminator is None:
            raise InputError("a generator of your own needs a discriminator of your own: pass both")
        if shape is not None or width is not None:
            raise InputError("shape and width are for presets: leave them out if you pass a generator")
        return AdversarialNetworks(generator, discriminator, {})
    preset = _ADVERSARIAL_PRESETS[check_option(generator, "preset", _ADVERSARIAL_PRESETS)]
    if shape is None:
        raise InputError(f"the preset {generator!r} needs the shape of an image: pass shape=(1, 32, 32) or the like")
    if discriminator is not None:
        raise InputError(f"the preset {generator!r} has its own discriminator: leave yours out, or pass both networks")
    sizes = {"shape": shape} if width is None else {"shape": shape, "width": width}
    return AdversarialNetworks(preset.generator(latent, **sizes), preset.discriminator(**sizes), preset.options)


def _double_size(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """The ``shape`` of a datum with twice the size along ``dim`` of data ``[N, ...]``."""
    full = [0, *shape]
    if not -len(shape) <= dim < len(full) or dim == 0:
        raise InputError(f"output_dim={dim} of the likelihood is not a dimension of data of shape {list(shape)}")
    full[dim] *= 2
    return tuple(full[1:])


def require_plain_networks(**networks: object) -> None:
    """Raise ``InputError`` for a method, such as MCDropout, or a compiled network in place of a plain one."""
    for name, network in networks.items():
        if isinstance(network, Model):
            raise InputError(f"the {name} must be a network, not a {type(network).__name__} around one")
        if is_compiled(network):
            raise InputError(
                f"the {name} is compiled already: pass the plain network, and compile with fit(compile=True)"
            )
        if isinstance(network, nn.Module):
            check_has_values(network)


def network_of(network: nn.Module) -> nn.Module:
    """The network itself, or the one inside of a method with a posterior over its weights."""
    return network.net if isinstance(network, NetworkMethod) else network


def call_network(name: str, network: Callable[[Tensor], Any], x: Tensor) -> Any:
    """The output of ``network`` for ``x``; raises ``InputError`` if it cannot be called on it."""
    try:
        return network(x)
    except CredoError:
        raise
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"the {name} cannot be called on a batch of shape {list(x.shape)}: {error}") from error


def check_logits(name: str, network: nn.Module, reason: str) -> None:
    """Raise ``InputError`` for a network that ends in a sigmoid where logits, or unbounded scores, are needed."""
    if isinstance(_last_layer(network), nn.Sigmoid):
        raise InputError(f"the {name} ends in a sigmoid, but {reason}: leave the sigmoid out")


def output_range(network: nn.Module) -> tuple[float, float] | None:
    """The minimum and maximum of the outputs, if the last layer is bounded or has an ``output_range``."""
    last = _last_layer(network)
    declared: tuple[float, float] | None = getattr(last, "output_range", None)
    return _OUTPUT_RANGES.get(type(last)) if declared is None else declared


def _last_layer(network: nn.Module) -> nn.Module:
    """The last layer that changes values, inside of sequences."""
    if not isinstance(network, nn.Sequential):
        return network
    layers = [layer for layer in network if not isinstance(layer, nn.Flatten | nn.Unflatten | nn.Identity)]
    return _last_layer(layers[-1]) if layers else network
