"""Convolutional encoders and decoders: image sizes, and rebuilding from JSON."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from credo import architectures
from credo.architectures import ConvDecoder, ConvEncoder, ResidualDecoder, ResidualEncoder
from credo.errors import InputError

SHAPE = (1, 8, 8)


@given(height=st.integers(4, 33), width=st.integers(4, 33), colors=st.integers(1, 3), rounds=st.integers(1, 2))
def test_decoder_returns_the_image_size_of_the_encoder(height, width, colors, rounds):
    shape, channels = (colors, height, width), (3, 5)[:rounds]
    encoder, decoder = ConvEncoder(shape, 4, channels), ConvDecoder(2, shape, channels[::-1])
    assert encoder(torch.zeros(2, *shape)).shape == (2, 4)
    assert decoder(torch.zeros(2, 2)).shape == (2, *shape)
    assert decoder(torch.zeros(3, 2, 2)).shape == (3, 2, *shape)
    smallest = next(layer for layer in encoder.layers if isinstance(layer, nn.Linear))
    assert smallest.in_features == channels[-1] * (height >> rounds) * (width >> rounds)


@pytest.mark.parametrize("net", [ConvEncoder((1, 9, 8), 4, (3,), "tanh"), ConvDecoder(2, (2, 9, 8), (5, 3), "elu")])
def test_build_from_json_description_gives_the_same_network(net):
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 9, 8) if isinstance(net, ConvEncoder) else torch.randn(2, 2)
    assert torch.equal(again(x), net(x))
    resettable = [m for m in net.modules() if hasattr(m, "reset_parameters")]
    assert {id(p) for m in resettable for p in m.parameters()} == {id(p) for p in net.parameters()}


def test_inner_output_pixels_depend_on_the_same_number_of_inputs():
    """No checkerboard: constant input, constant kernel, constant output away from the border."""
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
def test_invalid_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("shape", "channels", "grid"),
    [((1, 28, 28), (4, 8), (7, 7)), ((3, 12, 4), (6,), (6, 2)), (SHAPE, (4, 4, 4), (1, 1))],
)
def test_residual_shapes_and_rebuilding_from_json(shape, channels, grid):
    encoder, decoder = ResidualEncoder(shape, 5, channels, 1), ResidualDecoder(5, shape, channels[::-1], 3)
    z = encoder(torch.randn(2, *shape))
    assert z.shape == (2, 5, *grid)
    assert decoder(z).shape == (2, *shape)
    for net, x in ((encoder, torch.randn(2, *shape)), (decoder, z)):
        again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
        again.load_state_dict(net.state_dict())
        assert torch.equal(again(x), net(x))


def test_residual_block_with_zero_residual_is_the_identity():
    block = ResidualEncoder(SHAPE, 3, (4, 8)).layers[3]
    for parameter in block.residual[-1].parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResidualEncoder((1, 30, 28), 3), r"must be multiples of 4 to be halved 2 times, got 30×28: pad"),
        (lambda: ResidualDecoder(3, (1, 28, 30)), r"must be multiples of 4"),
        (lambda: ResidualEncoder((28, 28), 3), r"shape must be that of an image"),
        (lambda: ResidualEncoder(SHAPE, 0), "out_channels must be an integer of at least 1"),
        (lambda: ResidualEncoder(SHAPE, 3, ()), "channels must hold at least one width"),
        (lambda: ResidualDecoder(3, SHAPE, (4, 0)), r"channels\[1\] must be an integer"),
        (lambda: ResidualEncoder(SHAPE, 3)(torch.zeros(2, 1, 8, 4)), r"images must have shape \[N, 1, 8, 8\]"),
        (lambda: ResidualDecoder(3, SHAPE)(torch.zeros(2, 3, 1, 2)), r"vectors must have shape \[N, 3, 2, 2\]"),
    ],
)
def test_invalid_residual_sizes_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()
