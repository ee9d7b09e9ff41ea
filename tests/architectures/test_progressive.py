"""Networks that grow: phases, fading in, the reduction of data, and the layers by hand."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from credo import architectures
from credo.architectures import ProgressiveDiscriminator, ProgressiveGenerator
from credo.architectures._equalized import Level, append_minibatch_std, pixel_norm, resolution_levels
from credo.errors import InputError
from credo.seeding import seeded

CPU = torch.device("cpu")
END = 1.0 - 1e-7
"""As near to the end of a phase as progress, in units of 1/2³⁰, can tell."""


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    with seeded(0, CPU):
        yield


def generator(growth: float = 0.6) -> ProgressiveGenerator:
    return ProgressiveGenerator(5, (1, 32, 32), 2, growth)


def discriminator() -> ProgressiveDiscriminator:
    return ProgressiveDiscriminator((1, 32, 32), 2)


def to_phase(net: ProgressiveGenerator | ProgressiveDiscriminator, phase: int, alpha: float = 0.0) -> None:
    """Set the phase, one of 0 to 6, and the share of it that is over."""
    net.grow((phase + alpha) / 6 * 0.6)


def test_levels_double_and_channels_halve() -> None:
    assert resolution_levels((1, 32, 32), 8) == (Level(64, 4, 4), Level(32, 8, 8), Level(16, 16, 16), Level(8, 32, 32))
    assert resolution_levels((1, 28, 12), 8) == (Level(16, 14, 6), Level(8, 28, 12))
    assert [level.channels for level in resolution_levels((3, 64, 64), 128)] == [512, 512, 512, 256, 128]
    assert [level.channels for level in resolution_levels((3, 16, 16), 600)] == [600, 600, 600]


@pytest.mark.parametrize(
    ("fraction", "phase", "level"),
    [
        (0.0, 0, 0),
        (0.09, 0, 0),
        (0.1, 1, 1),
        (0.21, 2, 1),
        (0.3, 3, 2),
        (0.49, 4, 2),
        (0.55, 5, 3),
        (0.6, 6, 3),
        (1.0, 6, 3),
    ],
)
def test_phases_share_the_first_part_of_the_training_evenly(fraction: float, phase: int, level: int) -> None:
    net = generator()
    net.grow(fraction)
    assert (net.phase, net.level) == (phase, level)
    assert net.fraction == pytest.approx(fraction, abs=2**-30)


def images_by_level(net: ProgressiveGenerator, z: Tensor) -> list[Tensor]:
    """The images of all resolutions, at their own size."""
    h = pixel_norm(2**0.5 * F.leaky_relu(net.stem(pixel_norm(z)), 0.2).unflatten(1, net.levels[0]))
    h = pixel_norm(2**0.5 * F.leaky_relu(net.first(h), 0.2))
    images = [net.to_image[0](h)]
    for block, to_image in zip(net.blocks, list(net.to_image)[1:], strict=True):
        h = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
        for conv in block:
            h = pixel_norm(2**0.5 * F.leaky_relu(conv(h), 0.2))
        images.append(to_image(h))
    return images


@pytest.mark.parametrize("level", [1, 2, 3])
def test_new_resolution_fades_in_from_the_old_one(level: int) -> None:
    """In float64; α itself is in float32, and phase + α up to 6 is exact to 4·10⁻⁷."""
    net, z = generator().double(), torch.randn(3, 5).double()

    def enlarged(image: Tensor) -> Tensor:
        factor = 32 // image.shape[-1]
        return image.repeat_interleave(factor, 2).repeat_interleave(factor, 3)

    old, new = (enlarged(image) for image in images_by_level(net, z)[level - 1 : level + 1])
    for alpha in (0.0, 0.25, END):
        to_phase(net, 2 * level - 1, alpha)
        torch.testing.assert_close(net(z), (1 - alpha) * old + alpha * new, rtol=1e-5, atol=2e-6)
    to_phase(net, 2 * level - 2, 0.5)
    torch.testing.assert_close(net(z), old)
    to_phase(net, 2 * level, 0.5)
    torch.testing.assert_close(net(z), new)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_discriminator_at_the_ends_of_a_fade_is_that_of_one_resolution(level: int) -> None:
    net, x = discriminator(), torch.randn(4, 1, 32, 32)
    scores = {}
    for phase, alpha in ((2 * level - 2, 0.5), (2 * level - 1, 0.0), (2 * level - 1, END), (2 * level, 0.5)):
        to_phase(net, phase, alpha)
        scores[phase, alpha] = net(x)
    torch.testing.assert_close(scores[2 * level - 1, 0.0], scores[2 * level - 2, 0.5])
    torch.testing.assert_close(scores[2 * level - 1, END], scores[2 * level, 0.5], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scores[2 * level - 2, 0.5], scores[2 * level, 0.5])


@pytest.mark.parametrize("phase", range(7))
def test_discriminator_sees_only_the_detail_of_its_phase(phase: int) -> None:
    """Enlarged samples lose nothing by the reduction, and data are seen through block averages."""
    net, x = discriminator(), torch.randn(4, 1, 32, 32)
    to_phase(net, phase)
    factor = 32 // net.levels[net.level].height
    blocks = F.avg_pool2d(x, factor).repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    torch.testing.assert_close(net(x), net(blocks))


def test_data_fade_like_samples() -> None:
    net, x = generator(), torch.randn(2, 1, 32, 32)

    def blocks(size: int) -> Tensor:
        return F.avg_pool2d(x, size).repeat_interleave(size, 2).repeat_interleave(size, 3)

    to_phase(net, 0)
    torch.testing.assert_close(net.reduce(x), blocks(8))
    to_phase(net, 3, 0.25)
    torch.testing.assert_close(net.reduce(x), 0.75 * blocks(4) + 0.25 * blocks(2))
    to_phase(net, 6)
    assert torch.equal(net.reduce(x), x)


def test_minibatch_std_by_hand() -> None:
    x = torch.randn(3, 2, 2, 2).double()
    out = append_minibatch_std(x)
    stds = [x[:, c, i, j].std(unbiased=False) for c in range(2) for i in range(2) for j in range(2)]
    assert torch.equal(out[:, :2], x)
    # ε = 1e-8 inside of the root changes a standard deviation s of about 1 by 5e-9.
    torch.testing.assert_close(out[:, 2], (sum(stds) / 8).expand(3, 2, 2), rtol=1e-6, atol=0.0)
    assert append_minibatch_std(x[:1].expand(4, -1, -1, -1))[:, 2].max().item() == pytest.approx(1e-4)


def test_pixel_norm_gives_every_pixel_a_mean_square_of_one() -> None:
    norm = pixel_norm(torch.randn(3, 6, 4, 4).double()).square().mean(1)
    torch.testing.assert_close(norm, torch.ones(3, 4, 4).double(), rtol=1e-5, atol=0.0)


def test_phase_follows_copies_loaded_states_and_precision() -> None:
    net = generator()
    to_phase(net, 3, 0.3)
    other = generator()
    assert other.phase == 0
    other.load_state_dict(net.state_dict())
    assert (other.phase, other._alpha.item()) == (3, pytest.approx(0.3, abs=1e-5))
    assert copy.deepcopy(net).phase == 3
    assert copy.deepcopy(net).bfloat16().fraction == net.fraction
    other.progress.zero_()
    assert other.phase == 0


@pytest.mark.parametrize("make", [generator, discriminator])
def test_networks_are_rebuilt_from_json_and_every_layer_can_be_reset(make) -> None:
    net = make()
    net.grow(1.0)
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = torch.randn((3, 5) if make is generator else (3, 1, 32, 32))
    assert torch.equal(net(x), again(x))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: generator(growth=0.0), "growth must be a number above 0 and at most 1, got 0.0"),
        (lambda: generator(growth=1.1), "growth must be a number above 0 and at most 1, got 1.1"),
        (lambda: ProgressiveGenerator(0), "latent must be an integer of at least 1"),
        (lambda: ProgressiveGenerator(shape=(1, 7, 8)), "height and width must be even and at least 8, got 7×8"),
        (lambda: generator()(torch.zeros(2, 6)), r"noise must have shape \[N, 5\], got \[N, 6\]"),
        (lambda: generator().grow(1.5), "fraction must be a number from 0 to 1, got 1.5"),
        (lambda: discriminator()(torch.zeros(2, 1, 16, 16)), r"images must have shape \[N, 1, 32, 32\]"),
    ],
)
def test_bad_arguments_raise(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
