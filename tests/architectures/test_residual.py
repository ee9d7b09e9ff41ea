"""Residual networks that map images to a grid of vectors and back."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from credo import architectures
from credo.architectures import ResidualDecoder, ResidualEncoder
from credo.errors import InputError

SHAPE = (1, 8, 8)


@pytest.mark.parametrize(
    ("shape", "channels", "grid"),
    [((1, 28, 28), (4, 8), (7, 7)), ((3, 12, 4), (6,), (6, 2)), (SHAPE, (4, 4, 4), (1, 1))],
)
def test_shapes_and_rebuilding_from_json(shape, channels, grid):
    encoder, decoder = ResidualEncoder(shape, 5, channels, 1), ResidualDecoder(5, shape, channels[::-1], 3)
    z = encoder(torch.randn(2, *shape))
    assert z.shape == (2, 5, *grid)
    assert decoder(z).shape == (2, *shape)
    for net, x in ((encoder, torch.randn(2, *shape)), (decoder, z)):
        again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
        again.load_state_dict(net.state_dict())
        assert torch.equal(again(x), net(x))


def test_a_block_without_residual_is_the_identity():
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
def test_wrong_sizes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
