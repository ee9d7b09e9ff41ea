"""The deep convolutional GAN: published guidelines, sizes and initialization."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from credo import architectures
from credo.architectures import DCGANDiscriminator, DCGANGenerator, InfoGANDiscriminator, InfoGANGenerator
from credo.errors import InputError
from credo.generative import DCGAN
from credo.seeding import seeded

CPU = torch.device("cpu")
NETWORKS = {
    "generator 28": (lambda: DCGANGenerator(5, (1, 28, 28), 4), (3, 5), (3, 1, 28, 28)),
    "generator 32": (lambda: DCGANGenerator(5, (3, 32, 32), 4), (3, 5), (3, 3, 32, 32)),
    "generator 12×20": (lambda: DCGANGenerator(5, (1, 12, 20), 4), (3, 5), (3, 1, 12, 20)),
    "discriminator 28": (lambda: DCGANDiscriminator((1, 28, 28), 4), (3, 1, 28, 28), (3,)),
    "discriminator 32": (lambda: DCGANDiscriminator((3, 32, 32), 4), (3, 3, 32, 32), (3,)),
    "critic": (lambda: DCGANDiscriminator((1, 8, 8), 4, batch_norm=False), (3, 1, 8, 8), (3,)),
    "InfoGAN's generator": (lambda: InfoGANGenerator(9, (1, 8, 8)), (3, 9), (3, 1, 8, 8)),
    "InfoGAN's discriminator": (lambda: InfoGANDiscriminator(5, (3, 8, 12)), (3, 3, 8, 12), (3, 6)),
}
every_network = pytest.mark.parametrize(("make", "in_shape", "out_shape"), NETWORKS.values(), ids=NETWORKS)


@every_network
def test_network_has_expected_shapes_and_is_rebuilt_from_json(make, in_shape, out_shape):
    net = make()
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = torch.randn(in_shape)
    assert net.eval()(x).shape == out_shape
    assert torch.equal(net(x), again.eval()(x))


@every_network
def test_reset_parameters_gives_the_published_initialization(make, in_shape, out_shape):
    net = make()
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            for _ in range(2):
                # The standard deviation of n draws of N(0, 0.02²) has the standard error 0.02/√(2n).
                n = module.weight.numel()
                assert module.weight.std().item() == pytest.approx(0.02, abs=4 * 0.02 / (2 * n) ** 0.5)
                assert module.bias is None or not module.bias.any()
                module.reset_parameters()


@pytest.mark.parametrize(
    ("size", "smallest", "doublings"),
    [(4, 1, 2), (8, 2, 2), (12, 3, 2), (28, 7, 2), (32, 4, 3), (36, 9, 2), (64, 4, 4)],
)
def test_feature_maps_double_in_size(size, smallest, doublings):
    net = DCGANGenerator(3, (1, size, size), 2)
    convolutions = [m for m in net.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert len(convolutions) == doublings
    assert net.layers[1].unflattened_size == (2 * 2 ** (doublings - 1), smallest, smallest)


def test_generator_for_64_pixels_matches_the_paper():
    """Figure 1: 100 → 4×4×1024 → 512 → 256 → 128 → 64×64×3."""
    net = DCGANGenerator(100, (3, 64, 64), 128)
    assert net.layers[1].unflattened_size == (1024, 4, 4)
    channels = [m.out_channels for m in net.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert channels == [512, 256, 128, 3]


def test_networks_follow_the_guidelines_of_the_paper():
    generator, discriminator = DCGANGenerator(), DCGANDiscriminator()
    for net in (generator, discriminator):
        assert not any(isinstance(m, nn.MaxPool2d | nn.AvgPool2d) for m in net.modules())
        assert all(m.stride == (2, 2) for m in net.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d))
    kinds = [type(m).__name__ for m in generator.layers]
    assert kinds[-2:] == ["DoublingConv", "Tanh"]
    assert kinds.count("BatchNorm2d") == kinds.count("ReLU") == 2
    kinds = [type(m).__name__ for m in discriminator.layers]
    assert kinds[:2] == ["HalvingConv", "LeakyReLU"]
    assert kinds.count("BatchNorm2d") == 1
    assert all(m.negative_slope == 0.2 for m in discriminator.modules() if isinstance(m, nn.LeakyReLU))


def test_default_hyperparameters_are_those_of_the_paper():
    model = DCGAN((1, 8, 8), width=2)
    assert model.latent == 100
    for group in model._training_task().parameter_groups(0.0).values():
        assert group[0]["lr"] == 2e-4
        assert group[0]["betas"] == (0.5, 0.999)
    groups = DCGAN((1, 8, 8), width=2, generator_lr=None)._training_task().parameter_groups(0.0)
    assert groups["generator"][0].keys().isdisjoint({"lr"})


def test_training_updates_running_statistics_of_both_networks():
    with seeded(0, CPU):
        model = DCGAN((1, 8, 8), latent=4, width=2)
        x = 2.0 * torch.rand(12, 1, 8, 8) - 1.0
    model.fit(x, epochs=2, batch_size=6, seed=0)
    # Four minibatches: the generator is called twice on each, the discriminator three times.
    assert model.generator.layers[2].num_batches_tracked.item() == 8
    assert model.discriminator.layers[3].num_batches_tracked.item() == 12
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DCGAN(), "give either shape="),
        (lambda: DCGAN((1, 8, 8), generator=DCGANGenerator()), "give either shape="),
        (lambda: DCGAN((28, 28)), r"\(channels, height, width\), got \(28, 28\)"),
        (lambda: DCGAN((1, 27, 28)), "multiples of 4 .* got 27×28: pad or resize the images to 28×28"),
        (lambda: DCGAN((1, 8, 8), width=0), "width must be an integer of at least 1, got 0"),
        (lambda: DCGAN((1, 8, 8), latent=0), "latent must be an integer of at least 1, got 0"),
        (lambda: DCGAN((1, 8, 8), width=2).fit(torch.zeros(4, 1, 12, 12)), r"but the data have shape \[1, 12, 12\]"),
        (lambda: DCGANDiscriminator((1, 8, 8))(torch.zeros(2, 1, 12, 12)), r"images must have shape \[N, 1, 8, 8\]"),
        (lambda: DCGAN((1, 8, 8), width=2).fit(255 * torch.rand(4, 1, 8, 8)), "outputs values from -1 to 1, but"),
    ],
)
def test_bad_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()
