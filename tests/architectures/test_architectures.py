"""Networks of all kinds: shapes, parameter counts of the papers, and rebuilding from JSON."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo import architectures
from credo.architectures import MLP, AllConvNet, LeNet, ResNet
from credo.errors import InputError
from credo.seeding import seeded

NETWORKS = [
    (MLP(3, (8, 5), 2, "tanh"), (4, 3), (4, 2)),
    (MLP(3, (), 2), (4, 3), (4, 2)),
    (MLP(3, (8,), 1, dropout=0.1), (4, 7, 3), (4, 7, 1)),
    (MLP(3, (8,), 2, skip=True, constants=1), (4, 7, 3), (4, 7, 3)),
    (LeNet(), (2, 1, 28, 28), (2, 10)),
    (LeNet(classes=4, size=8, dropout=0.5), (2, 1, 8, 8), (2, 4)),
    (LeNet(in_channels=3, size=32), (2, 3, 32, 32), (2, 10)),
    (LeNet(size=15), (2, 1, 15, 15), (2, 10)),
    (LeNet(dropout=0.5, relu=True), (2, 1, 28, 28), (2, 10)),
    (LeNet(size=16), (2, 1, 16, 16), (2, 10)),
    (AllConvNet(widths=(4, 8)), (2, 1, 28, 28), (2, 10)),
    (AllConvNet(classes=3, in_channels=3, widths=(4,), dropout=0.1), (2, 3, 9, 11), (2, 3)),
    (ResNet(widths=(4, 8)), (2, 1, 28, 28), (2, 10)),
    (ResNet(classes=3, in_channels=3, widths=(4, 4, 8), blocks=2, dropout=0.1), (2, 3, 9, 11), (2, 3)),
]


@pytest.mark.parametrize(("net", "in_shape", "out_shape"), NETWORKS)
def test_output_has_the_documented_shape(net, in_shape, out_shape):
    assert net(torch.randn(in_shape)).shape == out_shape


@pytest.mark.parametrize(("net", "in_shape", "out_shape"), NETWORKS)
def test_build_from_json_description_gives_the_same_network(net, in_shape, out_shape):
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    assert type(again) is type(net)
    again.load_state_dict(net.state_dict())
    x = torch.randn(in_shape)
    torch.testing.assert_close(again.eval()(x), net.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize(("net", "in_shape", "out_shape"), NETWORKS)
def test_every_parameter_is_reset_by_its_own_layer(net, in_shape, out_shape):
    """An ensemble re-initializes a copy layer by layer: no parameter may be left behind."""
    covered = set()
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            covered |= {id(p) for p in module.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


def test_lenet_has_the_parameters_of_the_caffe_model():
    """20·(25 + 1) + 50·(20·25 + 1) + 500·(800 + 1) + 10·(500 + 1) = 431,080."""
    assert sum(p.numel() for p in LeNet().parameters()) == 431_080


def test_features_of_lenet_are_rectified_on_request_only():
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain = LeNet()
    rectified = LeNet(relu=True)
    rectified.load_state_dict({name.replace("features.2", "features.3"): v for name, v in plain.state_dict().items()})
    first = plain.features[:2](x)
    assert first.min() < 0
    torch.testing.assert_close(rectified.features[:3](x), first.clamp_min(0.0))
    assert rectified.features(x).min() == 0


def test_all_conv_net_has_the_weights_of_all_cnn_c():
    """9·96·(3 + 96 + 96) + 9·192·(96 + 192 + 192 + 192) + 192·(192 + 10), and a bias per output channel."""
    weights = 9 * 96 * 195 + 9 * 192 * 672 + 192 * 202
    biases = 3 * 96 + 5 * 192 + 10
    assert sum(p.numel() for p in AllConvNet(in_channels=3).parameters()) == weights + biases


def test_members_of_an_ensemble_start_as_an_all_conv_net_does():
    """He's standard deviation √(2/fan-in) of 9,216 weights, within 4 standard errors of 1/√(2·9216) each."""
    with seeded(0, torch.device("cpu")):
        ensemble = credo.DeepEnsemble(AllConvNet(widths=(32,)), members=2, likelihood=credo.Categorical())
    first, second = (member.net.features[2].weight for member in ensemble.members)
    assert not torch.equal(first, second)
    for weight in (first, second):
        assert weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=4 / (2 * 9216) ** 0.5)


def test_all_conv_net_drops_after_each_stage():
    assert sum(isinstance(m, nn.Dropout) for m in AllConvNet(widths=(4, 8), dropout=0.5).modules()) == 2
    with pytest.raises(InputError, match="widths must hold at least one stage"):
        AllConvNet(widths=())


@pytest.mark.parametrize(
    ("net", "count"),
    [(MLP(1, (50, 50), 1, dropout=0.1), 2), (LeNet(dropout=0.5), 3), (ResNet(blocks=1, dropout=0.1), 7)],
)
def test_dropout_precedes_each_weight_layer_but_the_first(net, count):
    assert sum(isinstance(m, nn.Dropout) for m in net.modules()) == count


def test_skip_adds_a_linear_map_and_constants_are_appended():
    net = MLP(3, (8,), 2, skip=True, constants=2)
    nn.init.normal_(net.constants.weight)
    x = torch.randn(5, 3)
    out = net(x)
    torch.testing.assert_close(out[:, :2], net.layers(x) + x @ net.skip.weight.T)
    torch.testing.assert_close(out[:, 2:], net.constants.weight.expand(5, 2), rtol=0, atol=0)
    with pytest.raises(InputError, match="constants"):
        MLP(3, constants=-1)


def test_no_dropout_layer_without_dropout():
    for net in (MLP(1), LeNet(), AllConvNet(), ResNet()):
        assert not any(isinstance(m, nn.Dropout) for m in net.modules())


def test_resnet_block_is_the_identity_when_its_residual_is_zero():
    net = ResNet(widths=(4,), blocks=1)
    block = net.stages[0]
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(block(x), x, rtol=0, atol=0)


def test_describe_returns_none_for_other_networks():
    class Twist(MLP):
        def forward(self, x):
            return -super().forward(x)

    assert architectures.describe(nn.Linear(1, 1)) is None
    assert architectures.describe(Twist(1)) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: architectures.build("lenett"), "did you mean 'lenet'"),
        (lambda: architectures.build("mlp", {"depth": 3}), "cannot be built from"),
        (lambda: MLP(1, activation="rellu"), "did you mean 'relu'"),
        (lambda: MLP(True), "in_features must be an integer of at least 1, got True"),
        (lambda: MLP(0), "in_features must be an integer of at least 1, got 0"),
        (lambda: MLP(1, (50, -1)), r"hidden\[1\] must be"),
        (lambda: LeNet(size=3), "size must be at least 4"),
        (lambda: ResNet(widths=()), "at least one stage"),
        (lambda: AllConvNet(widths=8), r"widths must be a sequence of integers, such as \(16, 32\), got 8"),
        (lambda: architectures.SegNet(3, 2, widths=8), "widths must be a sequence of integers"),
        (lambda: architectures.ConvEncoder((1, 8, 8), 2, channels=8), "channels must be a sequence of integers"),
        (lambda: LeNet(dropout=1.5), r"dropout is the rate .* must lie in \[0, 1\), got 1.5"),
        (lambda: architectures.ESPCN(dropout=-0.1), r"must lie in \[0, 1\), got -0.1"),
        (lambda: LeNet(dropout="0.5"), "dropout must be a finite number, got '0.5'"),
        (lambda: LeNet(relu=1), "relu must be True or False, got 1"),
        (lambda: ResNet(widths=np.zeros(2)), r"widths\[0\] must be an integer of at least 1"),
        (lambda: architectures.DCGANGenerator(3)(torch.zeros(2, 4)), r"noise must have shape \[N, 3\], got \[N, 4\]"),
        (lambda: architectures.InfoGANGenerator(3)(torch.zeros(2, 4)), r"noise and codes must have shape \[N, 3\]"),
        (lambda: LeNet()(np.zeros((1, 1, 28, 28))), "images must be a tensor, got ndarray"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("relu", [False, True])
def test_weights_of_a_rectified_lenet_are_those_of_he(relu):
    """Var w = 2/fan in; torch's default is uniform with variance 1/(3·fan in). Also in the members of an ensemble."""
    with seeded(0, torch.device("cpu")):
        ensemble = credo.DeepEnsemble(LeNet(relu=relu), members=2, likelihood=credo.Categorical())
        networks = [LeNet(relu=relu), *(member.net for member in ensemble.members)]
    for net in networks:
        for layer, fan_in in ((net.features[0], 25), (net.classifier[1], 800), (net.classifier[3], 500)):
            weight, expected = layer.weight.detach(), 2.0 / fan_in if relu else 1.0 / (3.0 * fan_in)
            error = expected * (2.0 / weight.numel()) ** 0.5  # of the variance of a normal sample
            assert weight.square().mean().item() == pytest.approx(expected, abs=5 * error)
            assert bool(layer.bias.eq(0).all()) == relu


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (lambda: architectures.LeNet(), (2, 3, 28, 28), r"shape \[N, 1, 28, 28\], got \[N, 3, 28, 28\]"),
        (lambda: architectures.LeNet(size=28), (2, 1, 32, 32), r"\[N, 1, 28, 28\], got \[N, 1, 32, 32\]"),
        (lambda: architectures.AllConvNet(widths=(2,)), (2, 3, 9, 9), r"\[N, 1, H, W\], got \[N, 3, 9, 9\]"),
        (lambda: architectures.ResNet(widths=(2,)), (2, 9, 9), r"\[N, 1, H, W\], got \[N, 9, 9\]"),
        (lambda: architectures.SegNet(3, 5, (2,)), (2, 1, 8, 8), r"\[N, 3, H, W\], got \[N, 1, 8, 8\]"),
        (lambda: architectures.ESPCN(2), (2, 3, 8, 8), r"\[N, 1, H, W\], got \[N, 3, 8, 8\]"),
    ],
)
def test_images_of_another_shape_raise(net, shape, message):
    with pytest.raises(InputError, match=message):
        net()(torch.zeros(shape))


@pytest.mark.parametrize("net", [LeNet(), architectures.SegNet(1, 2, (2,)), architectures.ESPCN(2)])
def test_images_of_bytes_raise(net):
    with pytest.raises(InputError, match=r"images must be floating-point numbers, got torch.uint8: x.float\(\) / 255"):
        net(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda n, p: LeNet(n(3), n(1), n(16), dropout=p(0.5)),
        lambda n, p: ResNet(n(3), n(1), (n(4),), dropout=p(0.5)),
        lambda n, p: architectures.VisionTransformer(n(3), width=n(8), layers=n(1), heads=n(2), dropout=p(0.5)),
        lambda n, p: architectures.LanguageModel(n(5), n(4), word_dropout=p(0.5)),
        lambda n, p: architectures.SegNet(n(1), n(3), (n(4),), dropout_blocks=n(1), dropout=p(0.5)),
        lambda n, p: architectures.Captioner(n(5), width=n(8), dropout=p(0.5)),
        lambda n, p: architectures.StyleGenerator(n(4), (n(1), n(8), n(8)), n(4), mixing=p(0.5)),
        lambda n, p: architectures.ProgressiveGenerator(n(4), (n(1), n(8), n(8)), n(4), p(0.5)),
    ],
)
def test_numbers_of_numpy_are_described_as_json(make):
    """A number of classes is often that of an array."""
    described = architectures.describe(make(np.int64, np.float32))
    assert json.loads(json.dumps(described)) == architectures.describe(make(int, float))
