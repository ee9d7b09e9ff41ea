"""The style-based generator: modulation by hand, truncation, style mixing, the mean style, and its discriminator."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from credo import architectures
from credo.architectures import StyleDiscriminator, StyleGenerator
from credo.architectures._equalized import EqualizedConv2d, EqualizedLinear, Level
from credo.architectures.style import ModulatedConv2d, StyledConv
from credo.errors import InputError
from credo.seeding import seeded

CPU = torch.device("cpu")
SIGMAS = 4.0


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    with seeded(0, CPU):
        yield


def small(**options: object) -> StyleGenerator:
    """A generator of 16×16 images with noise of strength 0.3, so that noise has an effect."""
    net = StyleGenerator(6, (1, 16, 16), 4, mapping=2, **options).eval()
    for module in net.modules():
        if isinstance(module, StyledConv):
            torch.nn.init.constant_(module.strength, 0.3)
    return net


@pytest.mark.parametrize("demodulate", [True, False])
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_modulation_equals_a_convolution_with_weights_of_each_row(kernel_size: int, demodulate: bool) -> None:
    layer = ModulatedConv2d(5, 3, 4, kernel_size, demodulate=demodulate).double()
    x, w = torch.randn(6, 3, 7, 5).double(), torch.randn(6, 5).double()
    scale = layer.affine(w)
    rows = []
    for row, s in zip(x, scale, strict=True):
        weight = layer.weight * s[None, :, None, None] / (3 * kernel_size**2) ** 0.5
        if demodulate:
            weight = weight / (weight.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        rows.append(F.conv2d(row[None], weight, padding=kernel_size // 2))
    torch.testing.assert_close(layer(x, w), torch.cat(rows))


def test_demodulated_outputs_of_independent_inputs_have_unit_variance() -> None:
    """The variance of an output is Σ (∂output/∂input)²: 1 away from the border, up to ε beside the norm of weights."""
    layer = ModulatedConv2d(5, 3, 4).double()
    w = 3.0 * torch.randn(1, 5).double()
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, w)[0, :, 2, 2], torch.randn(1, 3, 5, 5).double())
    torch.testing.assert_close(jacobian.square().sum((1, 2, 3, 4)), torch.ones(4).double(), rtol=1e-5, atol=0.0)


def test_demodulated_outputs_have_unit_std_by_simulation() -> None:
    """n independent 3×3 inputs: the std at the center of a Gaussian output has the standard error 1/√(2n)."""
    n, layer = 4000, ModulatedConv2d(5, 3, 4)
    std = layer(torch.randn(n, 3, 3, 3), torch.randn(1, 5).expand(n, 5))[:, :, 1, 1].std(0)
    assert (std - 1.0).abs().max().item() < SIGMAS / (2 * n) ** 0.5


def test_equalized_layers_scale_weights_by_their_fan_in_and_rate() -> None:
    linear = EqualizedLinear(8, 3, initial_bias=1.0, rate=0.01)
    assert torch.allclose(linear.bias * 0.01, torch.ones(3))
    assert linear.weight.std().item() == pytest.approx(100.0, abs=SIGMAS * 100.0 / 48**0.5)
    x = torch.randn(5, 8)
    torch.testing.assert_close(linear(x), 0.01 * (x @ linear.weight.T / 8**0.5 + linear.bias))
    conv, image = EqualizedConv2d(2, 3), torch.randn(4, 2, 5, 5)
    torch.testing.assert_close(conv(image), F.conv2d(image, conv.weight / 18**0.5, padding=1))


def test_noise_is_fixed_in_evaluation_and_drawn_in_training() -> None:
    layer = StyledConv(5, 3, Level(4, 6, 6), enlarges=False)
    x, w = torch.randn(2, 3, 6, 6), torch.randn(2, 5)
    without = layer.eval()(x, w)
    torch.nn.init.constant_(layer.strength, 0.5)
    expected = F.leaky_relu(layer.conv(x, w) + 0.5 * layer.noise, 0.2) * 2**0.5
    torch.testing.assert_close(layer(x, w), expected)
    assert torch.equal(layer(x, w), layer(x, w))
    assert not torch.allclose(layer(x, w), without)
    assert not torch.equal(layer.train()(x, w), layer(x, w))


def test_truncation_of_zero_gives_the_image_of_the_mean_style_and_one_changes_nothing() -> None:
    net, z = small(), torch.randn(5, 6)
    net.mean_style.copy_(torch.randn(6))
    mean = net.synthesize(net.mean_style.expand(1, net.layers, 6))
    torch.testing.assert_close(net(z, truncation=0.0), mean.expand(5, -1, -1, -1))
    assert torch.equal(net(z, truncation=1.0), net(z))
    w = net.styles(z)
    torch.testing.assert_close(net.styles(z, truncation=0.3), net.mean_style + 0.3 * (w - net.mean_style))


def test_mean_style_is_an_exponential_moving_average() -> None:
    net = small(mixing=0.0).train()
    batches = torch.randn(3, 4, 6)
    means = [net.eval().styles(z)[:, 0].mean(0) for z in batches]
    assert not net.mean_style.any()
    net.train()
    for z in batches:
        net(z)
    expected = sum(0.005 * 0.995 ** (2 - i) * mean for i, mean in enumerate(means))
    torch.testing.assert_close(net.mean_style, expected, rtol=1e-4, atol=1e-7)


def features(net: StyleGenerator, w: Tensor) -> list[Tensor]:
    """The outputs of all styled convolutions."""
    found: list[Tensor] = []
    handles = [conv.register_forward_hook(lambda _m, _i, output: found.append(output)) for conv in net.convs]
    net.synthesize(w)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("layer", [0, 1, 3, 4, 6])
def test_mixed_styles_cross_at_the_layer(layer: int) -> None:
    net = small()
    a, b = (net.styles(torch.randn(3, 6)) for _ in range(2))
    mixed = net.mix(a, b, layer)
    assert torch.equal(mixed[:, :layer], a[:, :layer])
    assert torch.equal(mixed[:, layer:], b[:, layer:])
    # Convolution i takes style i: those before the layer see only the first image, the next one the second too.
    for i, (found, own) in enumerate(zip(features(net, mixed), features(net, a), strict=True)):
        assert torch.allclose(found, own, rtol=1e-4, atol=1e-5) == (i < layer)
    for end, w in ((0, b), (net.layers, a)):
        torch.testing.assert_close(net.synthesize(net.mix(a, b, end)), net.synthesize(w))
    each = net.mix(a, b, torch.tensor([0, layer, net.layers]))
    assert torch.equal(each, torch.stack([b[0], mixed[1], a[2]]))


@pytest.mark.parametrize(
    ("rows", "layer", "message"),
    [
        (slice(0, 6), 7, "layer must be from 0 to the number of layers, 6, got 7"),
        (slice(0, 6), 2.5, "layer must be an integer"),
        (slice(0, 6), torch.tensor([1.0, 2.0]), r"layer must be integers \[2\], got torch.float32 of \[2\]"),
        (slice(0, 6), torch.tensor([[1], [2]]), r"layer must be integers \[2\], got torch.int64 of \[2, 1\]"),
        (slice(0, 6), torch.tensor(1), r"layer must be integers \[2\], got torch.int64 of \[\]"),
        (slice(0, 3), 2, r"coarse styles must have shape \[N, 6, 6\], got \[N, 3, 6\]"),
    ],
)
def test_styles_that_cannot_be_mixed_raise(rows: slice, layer: int, message: str) -> None:
    net = small()
    w = net.styles(torch.randn(2, 6))
    with pytest.raises(InputError, match=message):
        net.mix(w[:, rows], w, layer)
    with pytest.raises(InputError, match="same number of rows, got 1 and 2"):
        net.mix(w[:1], w, 2)


def test_training_mixes_a_share_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 images: the share of mixed ones has the standard error √(p(1 − p)/n); layers are uniform over 1 … 5."""
    net, n = StyleGenerator(6, (1, 16, 16), 4, mapping=2, mixing=0.7), 2000
    layers: list[Tensor] = []
    monkeypatch.setattr(net, "mix", lambda a, b, layer: layers.append(layer) or a)
    monkeypatch.setattr(net, "synthesize", lambda w: w)
    net(torch.randn(n, 6))
    (layer,) = layers
    counts = torch.bincount(layer, minlength=7) / n
    assert counts[6].item() == pytest.approx(0.3, abs=SIGMAS * (0.21 / n) ** 0.5)
    assert counts[0] == 0
    assert counts[1:6].tolist() == pytest.approx([0.14] * 5, abs=SIGMAS * (0.14 * 0.86 / n) ** 0.5)
    net.eval()(torch.randn(3, 6))
    assert len(layers) == 1


def test_image_is_the_sum_of_the_enlarged_images_of_all_levels() -> None:
    net = small()
    w = net.styles(torch.randn(2, 6))
    image = torch.zeros(2, 1, 2, 2)
    for level, h in enumerate(features(net, w)[::2]):
        to_image = net.to_image[level]
        image = F.interpolate(image, scale_factor=2, mode="bilinear") + to_image(h, w[:, 2 * level + 1]) + to_image.bias
    torch.testing.assert_close(net.synthesize(w), image)


@pytest.mark.parametrize(
    ("net", "x"),
    [(StyleGenerator(6, (3, 28, 12), 4, mapping=1), (3, 6)), (StyleDiscriminator((3, 28, 12), 4), (3, 3, 28, 12))],
    ids=["generator", "discriminator"],
)
def test_networks_are_rebuilt_from_json_and_every_layer_can_be_reset(net: torch.nn.Module, x: tuple[int, ...]) -> None:
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    z = torch.randn(x)
    assert torch.equal(net.eval()(z), again.eval()(z))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StyleGenerator(shape=(1, 6, 6)), "height and width must be even and at least 8, got 6×6"),
        (lambda: StyleGenerator(shape=(32, 32)), r"\(channels, height, width\)"),
        (lambda: StyleGenerator(width=0), "width must be an integer of at least 1"),
        (lambda: StyleGenerator(mapping=0), "mapping must be an integer of at least 1"),
        (lambda: StyleGenerator(mixing=1.5), "mixing must be a probability from 0 to 1, got 1.5"),
        (lambda: small().synthesize(torch.zeros(2, 5, 6)), r"styles must have shape \[N, 6, 6\], got \[N, 5, 6\]"),
        (lambda: StyleDiscriminator((1, 8, 8), 4)(torch.zeros(2, 1, 16, 16)), r"images must have shape \[N, 1, 8, 8\]"),
    ],
)
def test_bad_arguments_raise(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
