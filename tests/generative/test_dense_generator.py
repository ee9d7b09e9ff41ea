"""The fully connected generator."""

from __future__ import annotations

import pytest
import torch

import credo
from credo.architectures import MLP, DenseGenerator, build, describe
from credo.errors import InputError
from credo.generative import GAN


@pytest.mark.parametrize(("output", "low"), [("sigmoid", 0.0), ("tanh", -1.0)])
def test_output_stays_in_its_range(output, low):
    torch.manual_seed(0)
    net = DenseGenerator(3, (2, 4), (16,), output)
    with torch.no_grad():
        data = net(100.0 * torch.randn(200, 3))
        net.layers[-3].weight *= 50.0
        wide = net(torch.randn(200, 3))
    assert data.shape == (200, 2, 4)
    assert net.output_range == (low, 1.0)
    assert low <= float(wide.min()) < low + 0.1
    assert 0.9 < float(wide.max()) <= 1.0


def test_data_outside_the_output_range_raise():
    model = GAN(DenseGenerator(3, (2,), (8,)), MLP(2, (8,), 1), latent=3)
    with pytest.raises(InputError, match="the generator outputs values from 0 to 1"):
        model.fit(torch.randn(12, 2), epochs=1)


def test_saved_gan_loads_without_networks(tmp_path):
    model = GAN(DenseGenerator(3, (1, 4, 4), ()), MLP(4, (8,), 1), latent=3)
    assert type(build(**describe(model.generator))) is DenseGenerator
    model.save(tmp_path / "run")
    assert torch.equal(credo.load(tmp_path / "run").sample(4, seed=0), model.sample(4, seed=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "tan"}, "unknown output 'tan': did you mean 'tanh'"),
        ({"latent": 0}, "latent must be an integer of at least 1"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be an integer"),
        ({"shape": 4}, "shape must be that of one datum"),
    ],
)
def test_bad_arguments_raise(arguments, message):
    with pytest.raises(InputError, match=message):
        DenseGenerator(**{"latent": 3, "shape": (2,), **arguments})
