"""What a likelihood asks of the data, and of the network that outputs its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from credo.errors import InputError
from credo.generative.rows import check_finite, check_shares
from credo.likelihoods import Bernoulli, Likelihood

_RANGES = {nn.Tanh: (-1.0, 1.0), nn.Sigmoid: (0.0, 1.0)}


def observe(x: Tensor, likelihood: Likelihood) -> Tensor:
    """Binary images, drawn from gray values, where the likelihood is of binary data; else the data as they are."""
    if not isinstance(likelihood, Bernoulli):
        return x
    try:
        return torch.bernoulli(x)
    except RuntimeError as error:  # values are not looked at before, which would make a GPU wait
        check_observable(x, likelihood)
        raise InputError(f"data must be floating-point numbers between 0 and 1, got {x.dtype}") from error


def check_observable(x: Tensor, likelihood: Likelihood) -> None:
    """Raise ``InputError`` for values that the likelihood cannot have drawn."""
    check_finite(x)
    if isinstance(likelihood, Bernoulli):
        check_shares(x, "a Bernoulli likelihood", "likelihood=credo.Gaussian(noise='learned')")


def check_output(output: Tensor, x: Tensor, likelihood: Likelihood) -> None:
    """Raise ``InputError`` for a decoder's output that does not fit the data."""
    try:
        likelihood.check(output, observe(x, likelihood))
    except InputError as error:
        remedy = ""
        if isinstance(output, Tensor) and output.shape != x.shape and output.numel() == x.numel():
            remedy = f" Let it end in nn.Unflatten(1, {tuple(x.shape[1:])})."
        raise InputError(f"the decoder's output does not fit data of shape {list(x.shape)}: {error}{remedy}") from error


def check_decoder(decoder: nn.Module, likelihood: Likelihood) -> None:
    """Raise ``InputError`` for a decoder that squashes what the likelihood takes for logits."""
    if isinstance(likelihood, Bernoulli):
        check_logits("decoder", decoder, "a Bernoulli likelihood takes logits")


def check_logits(name: str, network: nn.Module, why: str) -> None:
    """Raise ``InputError`` for a network that ends in a sigmoid where logits, or scores without bounds, are needed."""
    if isinstance(_last_layer(network), nn.Sigmoid):
        raise InputError(f"the {name} ends in a sigmoid, but {why}: leave the sigmoid out")


def output_range(network: nn.Module) -> tuple[float, float] | None:
    """The least and the largest value that ``network`` can output, where its attributes or last layer tell."""
    last = _last_layer(network)
    declared: tuple[float, float] | None = getattr(last, "output_range", None)
    return _RANGES.get(type(last)) if declared is None else declared


def _last_layer(network: nn.Module) -> nn.Module:
    """The last layer that changes values, inside of sequences."""
    if not isinstance(network, nn.Sequential):
        return network
    layers = [layer for layer in network if not isinstance(layer, nn.Flatten | nn.Unflatten | nn.Identity)]
    return _last_layer(layers[-1]) if layers else network
