"""Pairs of encoder and decoder by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from credo.architectures import DenseDecoder, DenseEncoder
from credo.architectures.dense import datum_shape
from credo.errors import InputError, unknown_name


class Pair(NamedTuple):
    """Data to a code, and a code to data."""

    encoder: nn.Module
    decoder: nn.Module


class Plan(NamedTuple):
    """What a preset is built from.

    Attributes:
        shape: of a datum.
        code: how many numbers the encoder puts out.
        latent: how many numbers the decoder takes.
        output: the shape that the decoder puts out: that of a datum, or with room for a log variance.
        hidden: widths of the hidden layers, or ``None`` for the preset's own.
    """

    shape: tuple[int, ...]
    code: int
    latent: int
    output: tuple[int, ...]
    hidden: tuple[int, ...] | None


def _dense(plan: Plan) -> Pair:
    hidden = plan.hidden or (200, 200)
    return Pair(DenseEncoder(plan.shape, plan.code, hidden), DenseDecoder(plan.latent, plan.output, hidden[::-1]))


PRESETS: dict[str, Callable[[Plan], Pair]] = {"dense": _dense}


def resolve(
    encoder: nn.Module | str,
    decoder: nn.Module | None,
    *,
    shape: Sequence[int] | None,
    code: int,
    latent: int,
    outputs: int,
    hidden: Sequence[int] | None,
) -> Pair:
    """The two networks as they were given, or those of a preset.

    Args:
        encoder: a network, or the name of a preset.
        decoder: a network; with a preset it may be left out, or replace the preset's own.
        shape: of a datum; only for a preset.
        code: how many numbers the encoder puts out.
        latent: how many numbers the decoder takes.
        outputs: how many numbers the likelihood needs for each of a datum, along its last dimension.
        hidden: widths of a preset's hidden layers.
    """
    if isinstance(encoder, nn.Module):
        if decoder is None:
            raise InputError("an encoder of your own needs a decoder beside it: pass decoder=...")
        if shape is not None or hidden is not None:
            raise InputError("shape and hidden are for presets: networks of your own have theirs already")
        return Pair(encoder, decoder)
    if encoder not in PRESETS:
        raise unknown_name("preset", encoder, PRESETS)
    if shape is None:
        raise InputError(
            f"the preset {encoder!r} needs to know the shape of a datum: pass shape=(1, 28, 28) or the like"
        )
    datum = datum_shape(shape)
    widths = None if hidden is None else tuple(hidden)
    built = PRESETS[encoder](Plan(datum, code, latent, (*datum[:-1], outputs * datum[-1]), widths))
    return built if decoder is None else Pair(built.encoder, decoder)
