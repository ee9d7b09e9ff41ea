"""Strided encoders and decoders: every size comes back, and is rebuilt from JSON."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from credo import architectures
from credo.architectures import ConvDecoder, ConvEncoder
from credo.errors import InputError


@given(height=st.integers(4, 33), width=st.integers(4, 33), colors=st.integers(1, 3), rounds=st.integers(1, 2))
def test_decoder_undoes_the_encoders_sizes(height, width, colors, rounds):
    shape, channels = (colors, height, width), (3, 5)[:rounds]
    encoder, decoder = ConvEncoder(shape, 4, channels), ConvDecoder(2, shape, channels[::-1])
    assert encoder(torch.zeros(2, *shape)).shape == (2, 4)
    assert decoder(torch.zeros(2, 2)).shape == (2, *shape)
    assert decoder(torch.zeros(3, 2, 2)).shape == (3, 2, *shape)
    smallest = next(layer for layer in encoder.layers if isinstance(layer, nn.Linear))
    assert smallest.in_features == channels[-1] * (height >> rounds) * (width >> rounds)


@pytest.mark.parametrize("net", [ConvEncoder((1, 9, 8), 4, (3,), "tanh"), ConvDecoder(2, (2, 9, 8), (5, 3), "elu")])
def test_is_rebuilt_from_its_description_after_json(net):
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 9, 8) if isinstance(net, ConvEncoder) else torch.randn(2, 2)
    assert torch.equal(again(x), net(x))
    resettable = [m for m in net.modules() if hasattr(m, "reset_parameters")]
    assert {id(p) for m in resettable for p in m.parameters()} == {id(p) for p in net.parameters()}


def test_every_output_pixel_inside_sees_as_many_inputs():
    """What a chequerboard would break: constant input, constant kernel, constant output away from the border."""
    decoder = ConvDecoder(1, (1, 16, 16), (1,), "relu")
    for parameter in decoder.parameters():
        nn.init.ones_(parameter)
    inside = decoder(torch.ones(1, 1))[0, 0, 2:-2, 2:-2]
    assert inside.max() == inside.min()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvEncoder((28, 28), 4), r"\(channels, height, width\), got \(28, 28\)"),
        (lambda: ConvEncoder((1, 3, 28), 4), "an image of 3×28 cannot be halved 2 times: give fewer channels"),
        (lambda: ConvDecoder(2, (1, 28, 2)), "at least 4×4"),
        (lambda: ConvEncoder((1, 8, 8), 4, ()), "channels must hold at least one width"),
        (lambda: ConvEncoder((1, 8, 8), 4, (0,)), r"channels\[0\] must be an integer"),
        (lambda: ConvEncoder((1, 8, 8), 0), "out_features must be"),
        (lambda: ConvDecoder(0, (1, 8, 8)), "in_features must be"),
        (lambda: ConvEncoder((1, 8, 8), 4, activation="rely"), "unknown activation 'rely'"),
        (lambda: ConvEncoder((1, 8, 8), 4)(torch.zeros(2, 1, 8, 9)), r"images must have shape \[N, 1, 8, 8\]"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
