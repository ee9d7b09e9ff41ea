"""Traps 16–21 of docs/traps.md: any network works unchanged; no layer is rebuilt, untied or skipped."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.methods.network import NetworkMethod
from networks import CASES, Attention, CalledTwice, Encoder, Recurrent, Registered, TiedLanguageModel


def holding(net: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """A copy of ``net`` whose parameters are ``weights``."""
    twin = copy.deepcopy(net)
    for name, value in weights.items():
        twin.get_parameter(name).data.copy_(value.detach())
    return twin


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["bbb", "mc-dropout", "map"])
def test_trap_16_the_mean_prediction_is_the_networks_own_output(name: str, method: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net = case.make()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    options: dict[str, Any] = {"likelihood": case.likelihood(), "forward": case.forward}
    if method == "bbb":
        model: NetworkMethod = credo.BayesByBackprop(net, **options)
    else:
        model = credo.MCDropout(net, p=0.2, **options) if method == "mc-dropout" else credo.MAP(net, **options)
    after = net.state_dict()
    assert list(after) == list(before)
    for key, value in before.items():
        assert torch.equal(after[key], value), key
    call: Any = case.forward or (lambda net, x: net(x))
    with torch.no_grad():
        expected = model.likelihood.predictive(call(net.eval(), case.x)[None])
    assert torch.equal(model.predict(case.x, samples=0).mean, expected.mean)


def test_trap_16_normalization_layers_stay_deterministic_unless_selected() -> None:
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.Flatten(),
            nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 1),
        )  # fmt: skip

    assert credo.BayesByBackprop(net()).posterior.names() == ["0.weight", "0.bias", "7.weight", "7.bias"]
    chosen = credo.BayesByBackprop(net(), bayesian=["*", "5"]).posterior.names()
    assert chosen == ["0.weight", "0.bias", "5.weight", "5.bias", "7.weight", "7.bias"]
    assert credo.BayesByBackprop(net(), bayesian="1.*").posterior.names() == ["1.weight", "1.bias"]


class LinearHead(nn.Linear):
    """A custom layer that is a Linear by name and by class, but computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1)) * 3.0 + self.bias.sum()


class OwnParameter(nn.Module):
    """A network with a bare parameter and no layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.softmax(0)


AWKWARD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "custom-linear": (lambda: nn.Sequential(nn.Linear(3, 3), LinearHead(3, 2)), (4, 3)),
    "own-parameter": (OwnParameter, (4, 3)),
    "attention": (lambda: Attention(batch_first=False), (4, 5, 8)),
    "encoder": (lambda: Encoder(batch_first=True), (4, 5, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=3, bidirectional=True, proj_size=2), (4, 5, 3)),
    "gru": (lambda: Recurrent(nn.GRU, batch_first=False, num_layers=2, bias=False), (4, 5, 3)),
    "rnn": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), (4, 5, 3)),
    "padding-mode": (lambda: nn.Conv2d(2, 3, (3, 1), padding=(1, 0), padding_mode="circular"), (4, 2, 4, 3)),
    "groups": (lambda: nn.Conv2d(4, 6, (1, 3), groups=2, dilation=(1, 2), stride=2), (4, 4, 5, 6)),
    "output-padding": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=(1, 0)), (4, 2, 3, 3)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("method", ["bbb", "mc-dropout"])
def test_trap_17_layers_keep_every_setting(name: str, method: str) -> None:
    """Draws, and a training pass with drawn weights, are the network holding those weights, to float64 rounding."""
    make, shape = AWKWARD[name]
    torch.manual_seed(0)
    x = torch.randn(shape).double()
    net = make().double()
    if method == "bbb":
        model: NetworkMethod = credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.2, estimator="weight")
    elif name == "own-parameter":
        with pytest.raises(credo.errors.InputError, match="no weight layer"):
            credo.MCDropout(net, credo.Gaussian(1.0), p=0.3)
        return
    else:
        model = credo.MCDropout(net, credo.Gaussian(1.0), p=0.3)
    drawn = model.posterior.sample(3, seed=1)
    p = model.predict(x, samples=3, seed=1)
    for s in range(3):
        twin = holding(net, {key: value[s] for key, value in drawn.items()})
        torch.testing.assert_close(p.draws[s], twin(x).detach(), rtol=0, atol=1e-12)
    assert not torch.allclose(p.draws[0], p.draws[1])
    if isinstance(model, credo.BayesByBackprop):
        model._prepare(x)
        output, weights = model._noisy_forward(x, model.posterior.scale())
        torch.testing.assert_close(output, holding(net, weights)(x), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", AWKWARD)
def test_trap_17_every_setting_trains_with_the_default_estimator(name: str) -> None:
    make, shape = AWKWARD[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    net = make()
    model = credo.BayesByBackprop(net, credo.Gaussian(1.0))
    loss = model.loss(x, torch.zeros_like(net(x)), n_data=10)
    loss.backward()
    assert bool(loss.isfinite())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters() if p.requires_grad)
    # The mean is right too: with σ → 0 the noisy output is the network's own, up to σ·‖x‖ ≈ 1e-5.
    for rho in model.posterior.rho.parameters():
        rho.data.fill_(-14.0)
    output, _ = model._noisy_forward(x, model.posterior.scale())
    torch.testing.assert_close(output, net(x), rtol=0, atol=2e-4)


class Masked(nn.Module):
    """Attention with a mask ``[T, T]``, an input that is no row."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        y: Tensor = self.head(h.mean(1))
        return y


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("rows", [3, 4, 6])
@pytest.mark.parametrize("method", ["bbb", "mc-dropout"])
def test_trap_17_a_mask_beside_the_rows(method: str, rows: int, additive: bool) -> None:
    """It must survive, also where T is the number of rows, as booleans and as numbers with −∞."""
    torch.manual_seed(0)
    for time in (4, 6):
        later = torch.ones(time, time).triu(1).bool()
        x = (torch.randn(rows, time, 4), torch.zeros(time, time).masked_fill(later, -torch.inf) if additive else later)
        net = Masked()
        model: NetworkMethod = (
            credo.BayesByBackprop(net, credo.Gaussian(1.0))
            if method == "bbb"
            else credo.MCDropout(net, credo.Gaussian(1.0), p=0.1)
        )
        assert bool(model.loss(x, torch.randn(rows, 1), n_data=10).isfinite())
        with torch.no_grad():
            expected = net.eval()(*x)
        torch.testing.assert_close(model.predict(x, samples=0).mean, expected, rtol=1e-5, atol=1e-6)


def test_trap_18_tied_weights_stay_tied() -> None:
    torch.manual_seed(0)
    net = TiedLanguageModel()
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.3)
    assert model.net.get_parameter("output.weight") is model.net.get_parameter("embedding.weight")
    assert sum(p.numel() for p in model.parameters()) == 2 * sum(p.numel() for p in net.parameters())
    tokens = torch.arange(11)[None]
    drawn = model.posterior.sample(2, seed=0)
    assert "output.weight" not in drawn
    p = model.predict(tokens, samples=2, seed=0)
    for s in range(2):
        table = drawn["embedding.weight"][s]
        hidden = (table @ drawn["hidden.weight"][s].T + drawn["hidden.bias"][s]).tanh()
        logits = hidden @ table.T + drawn["output.bias"][s]
        torch.testing.assert_close(p.draws[s, 0], logits.softmax(-1), rtol=1e-5, atol=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.loss(tokens, tokens, n_data=10).backward()
    optimizer.step()
    assert net.output.weight is net.embedding.weight


@pytest.mark.parametrize("make", [CalledTwice, Registered])
def test_trap_18_a_module_used_twice_has_one_posterior(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = make()
    model = credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.3)
    assert sum(p.numel() for p in model.parameters()) == 2 * sum(p.numel() for p in net.parameters())
    first = model.posterior.names()[0].rpartition(".")[0]
    drawn = model.posterior.sample(2, seed=0)
    x = torch.randn(4, 3)
    p = model.predict(x, samples=2, seed=0)
    for s in range(2):
        h = x
        for _ in range(2):
            h = (h @ drawn[f"{first}.weight"][s].T + drawn[f"{first}.bias"][s]).tanh()
        y = h @ drawn["head.weight"][s].T + drawn["head.bias"][s]
        torch.testing.assert_close(p.draws[s], y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [CalledTwice, Registered, TiedLanguageModel])
@pytest.mark.parametrize("method", ["bbb", "mc-dropout"])
def test_trap_18_a_training_pass_leaves_no_draw_behind(make: type[nn.Module], method: str) -> None:
    """``torch.func.functional_call`` leaves its tensors in a module that is registered under two names."""
    torch.manual_seed(0)
    net = make()
    tokens = make is TiedLanguageModel
    likelihood = credo.Categorical() if tokens else credo.Gaussian(1.0)
    x = torch.randint(11, (4, 3)) if tokens else torch.randn(4, 3)
    y = torch.randint(11, (4, 3)) if tokens else torch.randn(4, 1)
    model: NetworkMethod = (
        credo.BayesByBackprop(net, likelihood) if method == "bbb" else credo.MCDropout(net, likelihood, p=0.5)
    )
    before = {key: value.clone() for key, value in net.state_dict().items()}
    identity = [id(p) for p in net.parameters()]
    model.train().loss(x, y, n_data=10)
    assert [id(p) for p in net.parameters()] == identity
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])
    if isinstance(model, credo.MCDropout):
        nll = model.eval().nll(x, y)
        with torch.no_grad():
            expected = -model.likelihood.log_prob(net.eval()(x), y).mean()
        torch.testing.assert_close(nll.detach(), expected)


def test_trap_19_frozen_parameters_stay_deterministic() -> None:
    torch.manual_seed(0)
    first = nn.Linear(3, 4).requires_grad_(False)
    net = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 1))
    frozen = first.weight.clone()
    for model in (
        credo.BayesByBackprop(net, credo.Gaussian(0.1), initial_scale=0.5),
        credo.MCDropout(net, credo.Gaussian(0.1), p=0.5),
    ):
        assert not any(name.startswith("0.") for name in model.posterior.names())
        model.fit((torch.randn(8, 3), torch.randn(8, 1)), epochs=2, seed=0, progress=False)
        assert torch.equal(first.weight, frozen)
    with pytest.raises(credo.errors.InputError, match="frozen"):
        credo.BayesByBackprop(net, bayesian="0.*")


def test_trap_19_what_is_bayesian_can_be_chosen_and_printed() -> None:
    net = credo.architectures.MLP(3, (4, 4), 1)
    net.get_parameter("layers.0.bias").requires_grad_(False)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), bayesian=["layers.4", "*.0.weight"])
    assert model.posterior.names() == ["layers.0.weight", "layers.4.weight", "layers.4.bias"]
    lines = {line.split()[0]: line for line in model.summary().splitlines()}
    assert "Bayesian" in lines["layers.0.weight"]
    assert "frozen" in lines["layers.0.bias"]
    assert "deterministic" in lines["layers.2.weight"]
    assert "17 of 41" in model.summary()
    p = model.predict(torch.randn(2, 3), samples=5, seed=0)
    assert bool((p.epistemic > 0).all())
    with pytest.raises(credo.errors.InputError, match=r"layers\.4"):
        credo.BayesByBackprop(net, bayesian="layer.4")


def _recurrent(*shape: int) -> tuple[Any, Any]:
    return (torch.randn(*shape),), lambda output: output[0]


def _tensor(*shape: int) -> tuple[Any, Any]:
    return (torch.randn(*shape),), lambda output: output


Recipe = tuple[tuple[Any, ...], dict[str, Any], Callable[[], tuple[Any, Any]]]
RECIPES: dict[str, Recipe] = {
    "Linear": ((3, 2), {}, lambda: _tensor(4, 3)),
    "Bilinear": ((3, 2, 2), {}, lambda: ((torch.randn(4, 3), torch.randn(4, 2)), lambda output: output)),
    "Conv1d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 5)),
    "Conv2d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 5, 4)),
    "Conv3d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 3, 4, 3)),
    "ConvTranspose1d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 5)),
    "ConvTranspose2d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 5, 4)),
    "ConvTranspose3d": ((2, 3, 2), {}, lambda: _tensor(4, 2, 3, 4, 3)),
    "BatchNorm1d": ((3,), {}, lambda: _tensor(4, 3)),
    "BatchNorm2d": ((3,), {}, lambda: _tensor(4, 3, 2, 2)),
    "BatchNorm3d": ((3,), {}, lambda: _tensor(4, 3, 2, 2, 2)),
    "InstanceNorm1d": ((3,), {"affine": True}, lambda: _tensor(4, 3, 5)),
    "InstanceNorm2d": ((3,), {"affine": True}, lambda: _tensor(4, 3, 2, 2)),
    "InstanceNorm3d": ((3,), {"affine": True}, lambda: _tensor(4, 3, 2, 2, 2)),
    "LayerNorm": ((3,), {}, lambda: _tensor(4, 3)),
    "GroupNorm": ((2, 4), {}, lambda: _tensor(4, 4, 3)),
    "RMSNorm": ((3,), {}, lambda: _tensor(4, 3)),
    "PReLU": ((3,), {}, lambda: _tensor(4, 3)),
    "Embedding": ((7, 3), {}, lambda: ((torch.randint(7, (4, 2)),), lambda output: output)),
    "EmbeddingBag": ((7, 3), {}, lambda: ((torch.randint(7, (4, 2)),), lambda output: output)),
    "RNN": ((3, 2), {"batch_first": True}, lambda: _recurrent(4, 5, 3)),
    "LSTM": ((3, 2), {"batch_first": True}, lambda: _recurrent(4, 5, 3)),
    "GRU": ((3, 2), {"batch_first": True}, lambda: _recurrent(4, 5, 3)),
    "RNNCell": ((3, 2), {}, lambda: _tensor(4, 3)),
    "LSTMCell": ((3, 2), {}, lambda: _recurrent(4, 3)),
    "GRUCell": ((3, 2), {}, lambda: _tensor(4, 3)),
    "MultiheadAttention": (
        (4, 2),
        {"batch_first": True},
        lambda: (tuple(torch.randn(3, 4, 5, 4)), lambda output: output[0]),
    ),
    "TransformerEncoderLayer": ((4, 2, 8), {"batch_first": True}, lambda: _tensor(4, 5, 4)),
    "TransformerDecoderLayer": (
        (4, 2, 8),
        {"batch_first": True},
        lambda: (tuple(torch.randn(2, 4, 5, 4)), lambda output: output),
    ),
    "TransformerEncoder": (
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        {},
        lambda: _tensor(4, 5, 4),
    ),
    "TransformerDecoder": (
        (nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), 2),
        {},
        lambda: (tuple(torch.randn(2, 4, 5, 4)), lambda output: output),
    ),
    "Transformer": (
        (4, 2, 1, 1, 8),
        {"batch_first": True},
        lambda: (tuple(torch.randn(2, 4, 5, 4)), lambda output: output),
    ),
    "LinearCrossEntropyLoss": (
        (3, 2),
        {"reduction": "none"},
        lambda: ((torch.randn(4, 3), torch.randint(2, (4,))), lambda output: output),
    ),
    "AdaptiveLogSoftmaxWithLoss": (
        (8, 9, [3, 6]),
        {"div_value": 2.0},
        lambda: ((torch.randn(4, 8), torch.randint(9, (4,))), lambda output: output.output),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("estimator", ["auto", "weight"])
def test_trap_20_every_module_of_torch_has_a_kl_and_a_loss(name: str, estimator: str) -> None:
    arguments, options, example = RECIPES[name]
    if not hasattr(nn, name):
        pytest.skip(f"this torch has no {name}")
    torch.manual_seed(0)
    layer = getattr(nn, name)(*arguments, **options)
    x, pick = example()

    def forward(net: nn.Module, x: Any) -> Tensor:
        output: Tensor = pick(net(*x))
        return output

    y = torch.zeros_like(forward(layer, x))
    patterns = [key.rpartition(".")[0] or key for key, _ in layer.named_parameters()]
    model = credo.BayesByBackprop(
        layer, credo.Gaussian(1.0), bayesian=patterns, estimator=estimator, forward=forward, initial_scale=0.05
    )
    assert model.posterior.names() == [key for key, _ in layer.named_parameters()]
    assert float(model.kl().detach()) > 0
    loss = model.loss(x, y, n_data=10)
    loss.backward()
    assert bool(loss.isfinite())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    p = model.eval().predict(x, samples=3, seed=0)
    assert p.mean.shape == y.shape
    assert bool((p.epistemic > 0).any())


def test_trap_20_no_module_with_parameters_is_missing() -> None:
    """Whatever of torch.nn can be built from one to three small numbers and has parameters stands in the table."""
    known = {getattr(nn, name) for name in RECIPES if hasattr(nn, name)}
    for name, kind in vars(nn).items():
        if not (inspect.isclass(kind) and issubclass(kind, nn.Module)) or name.startswith("Lazy") or kind in known:
            continue
        for arguments in ((), (2,), (2, 2), (2, 2, 2)):
            try:
                module = kind(*arguments)
            except Exception:
                continue
            assert kind is nn.SyncBatchNorm or not list(module.parameters()), f"{name} needs a recipe"


def test_trap_20_lazy_modules_are_refused_until_they_have_a_shape() -> None:
    net = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(1))
    for build in (credo.BayesByBackprop, credo.DeepEnsemble):
        with pytest.raises(credo.errors.InputError, match="lazy"):
            build(net)
    net(torch.randn(2, 4))
    assert bool(credo.BayesByBackprop(net, credo.Gaussian(1.0)).kl().isfinite())


@pytest.mark.parametrize("estimator", ["auto", "weight", "local", "flipout"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv2d(2, 3, kernel_size=(2, 5), stride=(1, 2), padding=(0, 2), dilation=(2, 1)), (4, 2, 6, 7)),
        (
            lambda: nn.ConvTranspose2d(
                2,
                4,
                kernel_size=(2, 3),
                stride=(1, 3),
                padding=(0, 1),
                output_padding=(0, 2),
                groups=2,
                dilation=(2, 1),
            ),
            (4, 2, 3, 4),
        ),
        (
            lambda: nn.ConvTranspose3d(2, 3, (1, 2, 3), (1, 2, 1), (0, 1, 1), (0, 1, 0), 1, True, (1, 1, 2)),
            (4, 2, 2, 3, 3),
        ),
    ],
    ids=["conv2d", "transposed2d", "transposed3d"],
)
def test_trap_21_non_square_kernels_and_the_arguments_of_transposed_convolution(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], estimator: str
) -> None:
    """With one weight's σ = 1 and all others' next to 0, the noise is ε·∂y/∂w: zero where the layer does not use w."""
    torch.manual_seed(0)
    net = nn.Sequential(layer())
    x = torch.randn(shape)
    for index in range(0, net.get_parameter("0.weight").numel(), 5):
        model = credo.BayesByBackprop(net, credo.Gaussian(1.0), estimator=estimator)
        for rho in model.posterior.rho.parameters():
            rho.data.fill_(-30.0)
        model.posterior.rho.get_parameter("0/weight").data.view(-1)[index] = 0.5413
        model._prepare(x)
        output, _ = model._noisy_forward(x, model.posterior.scale())
        noise = (output - net(x)).detach()
        bumped = copy.deepcopy(net)
        bumped.get_parameter("0.weight").data.view(-1)[index] += 1.0
        reach = (bumped(x) - net(x)).abs().detach() > 1e-4
        assert bool((noise.abs()[~reach] < 1e-5).all())
        assert bool((noise.abs()[reach] > 0).float().mean() > 0.9)
