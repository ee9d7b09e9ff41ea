"""ESPCN: sizes, the shuffle of channels into pixels, its start at bicubic interpolation, dropout, and methods."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import credo
from credo import architectures
from credo.architectures import ESPCN
from credo.errors import InputError


def random_images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize(("channels", "size"), [(1, (5, 7)), (3, (8, 4))])
@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_output_has_a_multiple_of_the_height_and_width(factor, channels, size, heteroscedastic):
    net = ESPCN(factor, channels, (4, 3), heteroscedastic=heteroscedastic)
    outputs = 2 * channels if heteroscedastic else channels
    assert net(random_images(2, channels, *size)).shape == (2, outputs, factor * size[0], factor * size[1])


def test_default_is_the_network_of_the_paper():
    """5×5, 3×3 and 3×3 filters, 64 and 32 channels, and r² = 9 at the end (Shi et al. 2016, section 3.2)."""
    convolutions = [m for m in ESPCN().modules() if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size[0]) for m in convolutions] == [(64, 5), (32, 3), (9, 3)]


def test_zero_weights_are_bicubic_interpolation():
    net = ESPCN(3, 2, (4,), heteroscedastic=True)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    x = random_images(2, 2, 6, 5)
    expected = F.interpolate(x, scale_factor=3, mode="bicubic")
    mean, log_variance = net(x).chunk(2, 1)
    torch.testing.assert_close(mean, expected)
    assert (log_variance == 0).all()
    assert (ESPCN(3, 2, (4,), residual=False).requires_grad_(False)(x) != expected).any()


def test_last_channels_become_the_pixels_of_a_block():
    """The equation of the docstring, for the channels that the last convolution outputs."""
    factor, channels = 2, 3
    net = ESPCN(factor, channels, (4,), residual=False)
    layers = net.branches["mean"]
    x = random_images(1, channels, 4, 5)
    before, y = layers[:-1](x), net(x)
    for c, a, b in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (2, 1, 1)):
        pixels = y[:, c, a::factor, b::factor]
        torch.testing.assert_close(pixels, before[:, c * factor**2 + factor * a + b])


def test_borders_are_continued():
    """A constant image stays constant up to the border, which it would not with zeros around it."""
    y = ESPCN(2, 1, (4, 3))(torch.full((1, 1, 6, 6), 0.7))
    blocks = F.pixel_unshuffle(y, 2)
    torch.testing.assert_close(blocks, blocks[..., :1, :1].expand_as(blocks))


def test_build_from_json_description_gives_the_same_network():
    net = ESPCN(2, 3, (4, 6), activation="relu", dropout=0.2, heteroscedastic=True)
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = random_images(2, 3, 5, 4)
    assert torch.equal(again.eval()(x), net.eval()(x))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_dropout_precedes_every_convolution_except_the_first(heteroscedastic):
    net = ESPCN(2, 1, (4, 6, 8), dropout=0.3, heteroscedastic=heteroscedastic)
    for branch in net.branches.values():
        kinds = [type(m) for m in branch if isinstance(m, (nn.Conv2d, nn.Dropout2d))]
        assert kinds == [nn.Conv2d, *[nn.Dropout2d, nn.Conv2d] * 3]
    assert not any(isinstance(m, nn.Dropout2d) for m in ESPCN(dropout=None).modules())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ESPCN(0), "factor must be an integer of at least 1, got 0"),
        (lambda: ESPCN(channels=1.5), "channels must be an integer of at least 1, got 1.5"),
        (lambda: ESPCN(widths=()), "widths must hold at least one hidden convolution, got none"),
        (lambda: ESPCN(widths=(4, 0)), r"widths\[1\] must be an integer of at least 1, got 0"),
        (lambda: ESPCN(activation="tan"), "tanh"),
        (lambda: ESPCN(residual=1), "residual must be True or False, got 1"),
    ],
)
def test_invalid_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", ["BayesByBackprop", "MCDropout", "MAP"])
def test_methods_train_it_and_predict_both_uncertainties(name, tmp_path):
    """The loss is the sum over the pixels of a crop, and the two parts add to the variance of every pixel."""
    net = ESPCN(2, 1, (4,), dropout=0.2 if name == "MCDropout" else None, heteroscedastic=True)
    likelihood = credo.Gaussian("heteroscedastic", output_dim=1)
    model = getattr(credo, name)(net, likelihood)
    x, y = random_images(6, 1, 4, 4), random_images(6, 1, 8, 8)
    assert likelihood.log_prob(net(x), y).shape == (6,)
    model.fit((x, y), epochs=2, batch_size=3, seed=0, progress=False)
    p = model.predict(x, samples=4, seed=0)
    assert p.mean.shape == p.epistemic.shape == p.aleatoric.shape == (6, 1, 8, 8)
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    assert bool((p.epistemic > 0).any()) == (name != "MAP")
    model.save(tmp_path / "run")
    torch.testing.assert_close(credo.load(tmp_path / "run").predict(x, samples=4, seed=0).mean, p.mean)
