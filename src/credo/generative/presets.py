"""Pairs of encoder and decoder by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from credo.architectures import (
    ConvDecoder,
    ConvEncoder,
    DenseDecoder,
    DenseEncoder,
    ResidualDecoder,
    ResidualEncoder,
)
from credo.architectures.dense import datum_shape
from credo.errors import InputError, unknown_name
from credo.likelihoods import Likelihood


class Pair(NamedTuple):
    """Data to a code, and a code to data."""

    encoder: nn.Module
    decoder: nn.Module


class Plan(NamedTuple):
    """What a preset is built from.

    Attributes:
        shape: of a datum.
        code: how many numbers the encoder outputs.
        latent: how many numbers the decoder takes.
        output: the shape that the decoder outputs: that of a datum, or with room for a log variance.
        hidden: widths of the hidden layers, or ``None`` for the preset's own.
    """

    shape: tuple[int, ...]
    code: int
    latent: int
    output: tuple[int, ...]
    hidden: tuple[int, ...] | None


def _dense(plan: Plan) -> Pair:
    hidden = (200, 200) if plan.hidden is None else plan.hidden
    return Pair(DenseEncoder(plan.shape, plan.code, hidden), DenseDecoder(plan.latent, plan.output, hidden[::-1]))


def _convolutional(plan: Plan) -> Pair:
    channels = (32, 64) if plan.hidden is None else plan.hidden
    _require_channels(plan)
    return Pair(ConvEncoder(plan.shape, plan.code, channels), ConvDecoder(plan.latent, plan.output, channels[::-1]))


def _residual(plan: Plan) -> Pair:
    channels = (64, 128) if plan.hidden is None else plan.hidden
    _require_channels(plan)
    return Pair(
        ResidualEncoder(plan.shape, plan.code, channels), ResidualDecoder(plan.latent, plan.output, channels[::-1])
    )


def _require_channels(plan: Plan) -> None:
    if plan.output[1:] != plan.shape[1:]:
        raise InputError(
            "a convolutional decoder puts log variances out as channels: make the likelihood "
            "credo.Gaussian(noise='heteroscedastic', output_dim=1)"
        )


PRESETS: dict[str, Callable[[Plan], Pair]] = {"dense": _dense, "convolutional": _convolutional}
"""A code is a vector."""
GRID_PRESETS = {**PRESETS, "residual": _residual}
"""A code is a vector, or a grid of vectors."""


def resolve(
    encoder: nn.Module | str,
    decoder: nn.Module | None,
    *,
    shape: Sequence[int] | None,
    code: int,
    latent: int,
    hidden: Sequence[int] | None,
    likelihood: Likelihood | None = None,
    presets: Mapping[str, Callable[[Plan], Pair]] = PRESETS,
) -> Pair:
    """The two networks as they were given, or those of a preset.

    Args:
        encoder: a network, or the name of a preset.
        decoder: a network; with a preset it may be left out, or replace the preset's own.
        shape: of a datum; only for a preset.
        code: how many numbers the encoder outputs.
        latent: how many numbers the decoder takes.
        hidden: widths of a preset's hidden layers; of a convolutional one, channels.
        likelihood: of the data, which may need a mean and a log variance of each of their numbers.
        presets: those to choose from.
    """
    if not isinstance(encoder, nn.Module | str):
        raise InputError(f"encoder must be a network or the name of a preset, got {type(encoder).__name__}")
    if decoder is not None and not isinstance(decoder, nn.Module):
        raise InputError(f"decoder must be a network, got {type(decoder).__name__}")
    if isinstance(encoder, nn.Module):
        if decoder is None:
            raise InputError("an encoder of your own needs a decoder beside it: pass decoder=...")
        if shape is not None or hidden is not None:
            raise InputError("shape and hidden are for presets: networks of your own have theirs already")
        return Pair(encoder, decoder)
    if encoder not in presets:
        raise unknown_name("preset", encoder, presets)
    if shape is None:
        raise InputError(
            f"the preset {encoder!r} needs to know the shape of a datum: pass shape=(1, 28, 28) or the like"
        )
    datum = datum_shape(shape)
    is_pair = getattr(likelihood, "noise", None) == "heteroscedastic"
    output = _doubled(datum, getattr(likelihood, "output_dim", -1)) if is_pair else datum
    plan = Plan(datum, code, latent, output, _widths(hidden))
    built = presets[encoder](plan)
    return built if decoder is None else Pair(built.encoder, decoder)


def _doubled(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """The ``shape`` of a datum with its size along ``dim`` of data ``[N, ...]`` doubled."""
    full = [0, *shape]
    if not -len(shape) <= dim < len(full) or dim == 0:
        raise InputError(f"output_dim={dim} of the likelihood names no dimension of data of shape {list(shape)}")
    full[dim] *= 2
    return tuple(full[1:])


def _widths(hidden: Sequence[int] | None) -> tuple[int, ...] | None:
    if hidden is None or isinstance(hidden, list | tuple):
        return None if hidden is None else tuple(hidden)
    raise InputError(f"hidden must be a list of the widths of the hidden layers, such as (200, 200), got {hidden!r}")
