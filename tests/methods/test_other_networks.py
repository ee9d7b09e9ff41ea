"""Networks as other projects write them: what is a row, what is dropout, and do drawn weights arrive?"""

from __future__ import annotations

import math
import warnings
from collections import UserDict
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import credo
from credo.errors import InputError, UnsupportedError
from credo.probing import RowDim, trace_rows

GAUSSIAN = credo.Gaussian(1.0)


class TimeFirst(nn.Module):
    """An LSTM over ``[T, B, 3]``; one output per sequence, ``[B, 1]``."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 6, num_layers=2, **options), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][-1])


class Graph(nn.Module):
    """A convolution over a graph, with dropout on its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, edge_index: Tensor, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x).relu(), 0.5, training=self.training)
        return self.second(torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]]) + h)


class PerPair(nn.Module):
    """Two outputs for each half of a row: ``[B, 4]`` to ``[2B, 2]``."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(4, 12), nn.Dropout(0.5), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x).view(-1, 6))).view(-1, 2)


class AcrossRows(nn.Module):
    """Attention from every row to all others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.body(x))
        return self.head((h @ h.T).softmax(-1) @ h)


class MeanOverRows(nn.Module):
    """A set in, one answer out."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x).tanh()).mean(0, keepdim=True))


class BesideTheMean(nn.Module):
    """Every row, and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).tanh()
        return self.head(torch.cat([h, h.mean(0).expand_as(h)], 1))


def _rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 0]])
LAYOUTS: dict[str, tuple[Callable[[], nn.Module], object]] = {
    "time-first": (lambda: TimeFirst(dropout=0.4), _rows(5, 8, 3)),
    "encoder-time-first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4), _rows(5, 7, 8)),
    "graph": (Graph, {"edge_index": EDGES, "x": _rows(7, 4)}),
    "view": (PerPair, _rows(5, 4)),
    "attention-across-rows": (AcrossRows, _rows(5, 4)),
    "mean-over-rows": (MeanOverRows, _rows(5, 4)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_mc_dropout_has_the_moments_of_training_mode_whatever_the_rows_are(name: str) -> None:
    """Over draws, every output has mean and variance of torch's own dropout; five combined standard errors."""
    make, x = LAYOUTS[name]
    torch.manual_seed(0)
    net = make()
    ours = credo.MCDropout(net, GAUSSIAN).predict(x, samples=600, seed=0).draws.double()
    net.train()
    with torch.no_grad():
        theirs = torch.stack([net(**x) if isinstance(x, dict) else net(x) for _ in range(3000)]).double()
    assert ours.shape[1:] == theirs.shape[1:]
    (mean, variance), (mean_, variance_) = ((t.mean(0), t.var(0)) for t in (ours, theirs))
    error = (variance / len(ours) + variance_ / len(theirs)).sqrt()
    assert float(((mean - mean_).abs() / error).max()) < 5
    fourth = [(t - t.mean(0)).pow(4).mean(0) - t.var(0).square() for t in (ours, theirs)]
    error = (fourth[0] / len(ours) + fourth[1] / len(theirs)).sqrt()
    assert float(((variance - variance_).abs() / error).max()) < 5


@pytest.mark.parametrize(("name", "dim", "output_dim"), [("time-first", 1, 0), ("encoder-time-first", 1, 1)])
def test_a_draw_is_one_function_where_the_rows_are_not_in_front(name: str, dim: int, output_dim: int) -> None:
    make, x = LAYOUTS[name]
    x = x.clone()
    x.select(dim, -1).copy_(x.select(dim, 0))
    torch.manual_seed(0)
    draws = credo.MCDropout(make(), GAUSSIAN).predict(x, samples=4, seed=0).draws
    first, last = draws.select(1 + output_dim, 0), draws.select(1 + output_dim, -1)
    torch.testing.assert_close(first, last, rtol=0, atol=1e-5)


def test_both_parts_of_a_row_have_masks_of_their_own_and_rows_share_them() -> None:
    torch.manual_seed(0)
    x = _rows(1, 2).repeat(3, 2)
    draws = credo.MCDropout(PerPair(), GAUSSIAN).predict(x, samples=4, seed=0).draws
    torch.testing.assert_close(draws[:, :2], draws[:, 4:], rtol=0, atol=1e-6)
    assert not torch.allclose(draws[:, 0], draws[:, 1])


@pytest.mark.parametrize(
    ("run", "shape", "expected"),
    [
        (lambda x: (x.sum(-1), [x]), (4, 2), (0, RowDim(0), [RowDim(0)])),
        (lambda x: (x.sum(-1), [x.transpose(0, 1)]), (4, 3, 2), (0, RowDim(0), [RowDim(1)])),
        (lambda x: (x.sum(-1), [x.flatten(0, 1)]), (4, 2, 5), (0, RowDim(0), [RowDim(0, "major")])),
        (lambda x: (x.sum(-1), [x.transpose(0, 1).flatten(0, 1)]), (4, 2, 5), (0, RowDim(0), [RowDim(0, "minor")])),
        (lambda x: (x.sum(-1), [torch.ones(3, 3)]), (4, 2), (0, RowDim(0), [None])),
        (lambda x: (x.sum(0), []), (4, 3, 2), (1, RowDim(0), [])),
        (lambda x: (x[:1], []), (1, 2), None),
        (lambda x: (x.sum(0), []), (4, 3), None),
        (lambda x: (x - x.mean(0), []), (4, 2), None),
        (lambda x: (x - x.mean(0), []), (4, 2, 3), (1, RowDim(1), [])),
        (lambda x: (x - x.mean(), []), (4, 2), None),
        (lambda x: (x, []), (1, 2), (0, RowDim(0), [])),
    ],
)
def test_rows_are_found_by_changing_one(run: Callable[[Tensor], object], shape: tuple[int, ...], expected) -> None:
    trace = trace_rows(run, _rows(*shape))
    assert trace is None if expected is None else tuple(trace) == expected


def test_prediction_does_not_cut_a_batch_whose_rows_see_each_other() -> None:
    """A batch above the largest chunk is cut by rows; a mean over all of them would become a mean over parts."""
    torch.manual_seed(0)
    net, x = MeanOverRows(), _rows(5000, 4)
    p = credo.BayesByBackprop(net, GAUSSIAN).predict(x, samples=0)
    torch.testing.assert_close(p.mean, net.eval()(x).detach())


class TrainingNoise(nn.Module):
    """Adds noise to its input, in training mode only."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 10.0 * torch.randn_like(x) if self.training else x


class OwnBatchNorm(nn.Module):
    """Batch norm by hand, as several libraries have it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
            return x - x.mean(0)
        return x - self.running


class InTrainingOnly(nn.Module):
    """Calls dropout in training mode alone, as code around fused attention does."""

    def __init__(self, noisy: bool = False) -> None:
        super().__init__()
        self.body, self.noisy = nn.Linear(3, 3), noisy

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if self.training:
            x = F.dropout(x + (1.0 if self.noisy else 0.0), 0.5)
        return x


class DropPath(nn.Module):
    """Stochastic depth per row, as vision libraries write it."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1.0 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x * x.new_empty(shape).bernoulli_(keep) / keep


@pytest.mark.parametrize("other", [TrainingNoise, OwnBatchNorm])
def test_only_dropout_is_switched_on(other: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(other(), nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = _rows(6, 3)
    draws = credo.MCDropout(net, GAUSSIAN).predict(x, samples=200, seed=0).draws
    plain = nn.Sequential(*list(net)[1:])
    expected = credo.MCDropout(plain, GAUSSIAN).predict(x, samples=200, seed=0).draws
    torch.testing.assert_close(draws, expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_dropout_that_exists_in_training_mode_alone_is_found() -> None:
    torch.manual_seed(0)
    draws = credo.MCDropout(InTrainingOnly(), GAUSSIAN).predict(_rows(4, 3), samples=200, seed=0).draws
    assert bool((draws.var(0) > 0).all())
    with pytest.raises(UnsupportedError, match="does more than dropout"):
        credo.MCDropout(InTrainingOnly(noisy=True), GAUSSIAN).predict(_rows(4, 3), samples=2)


def test_a_draw_of_stochastic_depth_keeps_or_drops_a_branch_for_all_rows() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), DropPath(0.25))
    x = _rows(6, 3)
    draws = credo.MCDropout(net, GAUSSIAN).predict(x, samples=4000, seed=0).draws
    dropped = (draws == 0).all(-1)
    assert bool((dropped == dropped[:, :1]).all())
    assert abs(float(dropped[:, 0].double().mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000)
    torch.testing.assert_close(draws[~dropped[:, 0]][0], net[0](x).detach() / 0.75)


def test_a_network_whose_dropout_is_off_in_training_too_is_refused() -> None:
    class Off(InTrainingOnly):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.body(x), 0.5, training=False)

    with pytest.raises(InputError, match="drops nothing"):
        credo.MCDropout(Off(), GAUSSIAN).predict(_rows(4, 3))


class Closure(nn.Module):
    """Reaches its layers through a function that remembers the original."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.features = lambda x: self.body(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _compiled_forward() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    net.forward = torch.compile(net.forward, backend="eager")
    return net


def _autocast_forward() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    net.forward = torch.autocast("cpu", torch.bfloat16)(net.forward)
    return net


@pytest.mark.parametrize("make", [Closure, _compiled_forward, _autocast_forward])
def test_a_network_that_draws_do_not_reach_is_refused(make: Callable[[], nn.Module]) -> None:
    x, y = _rows(4, 3), _rows(4, 1, seed=1)
    for model in (
        credo.BayesByBackprop(make(), GAUSSIAN),
        credo.MCDropout(make(), GAUSSIAN, p=0.5),
        credo.DeepEnsemble(make(), 2, likelihood=GAUSSIAN),
    ):
        with pytest.raises(UnsupportedError, match="do not reach"):
            model.predict(x, samples=4)
        with pytest.raises(UnsupportedError, match="do not reach"):
            model.fit((x, y), epochs=1)
    with pytest.raises(UnsupportedError, match="do not reach"):
        credo.BayesByBackprop(make(), GAUSSIAN).loss(x, y, n_data=4)


class Force(nn.Module):
    """Minus the derivative of an energy, as in force fields."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.functional = functional

    def forward(self, x: Tensor) -> Tensor:
        if self.functional:
            return -torch.func.vmap(torch.func.grad(lambda row: self.energy(row).sum()))(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


INTERACTING: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mean-over-rows": (MeanOverRows, _rows(16, 4)),
    "beside-the-mean": (BesideTheMean, _rows(16, 4)),
    "attention-across-rows": (AcrossRows, _rows(6, 4)),
    "derivative": (lambda: Force(False), _rows(6, 3)),
    "derivative-func": (lambda: Force(True), _rows(6, 3)),
}


@pytest.mark.parametrize("estimator", ["auto", "flipout"])
@pytest.mark.parametrize("name", INTERACTING)
def test_estimators_have_the_variance_of_weight_draws_where_rows_interact(name: str, estimator: str) -> None:
    """The output in training, over draws, against that of predicted draws; n = 600 each, five standard errors."""
    make, x = INTERACTING[name]
    torch.manual_seed(0)
    model = credo.BayesByBackprop(make().eval(), GAUSSIAN, initial_scale=0.1, estimator=estimator)
    n = 600
    expected = model.predict(x, samples=n, seed=0).draws.double()
    model.eval()
    model._prepare(x)
    scale = {name: s.detach() for name, s in model.posterior.scale().items()}
    outputs = torch.stack([model._noisy_forward(x, scale)[0].detach() for _ in range(n)]).double()
    fourths = [(t - t.mean(0)).pow(4).mean(0) - t.var(0).square() for t in (outputs, expected)]
    error = ((fourths[0] + fourths[1]) / n).sqrt()
    assert float(((outputs.var(0) - expected.var(0)).abs() / error).max()) < 5


def test_independent_rows_keep_their_estimators() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    model = credo.BayesByBackprop(net, credo.Categorical())
    model.loss(_rows(5, 1, 8, 8), torch.randint(3, (5,)), n_data=5)
    assert model._noisy_forward.hooks.plan == {"3": "auto"}
    assert model._noisy_forward.weight_sampled == ["0.weight", "0.bias"]


class Backbone(nn.Module):
    """A frozen part and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).relu())


def _trained(net: nn.Module) -> nn.Module:
    """``net`` after a few steps of gradient descent."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(net(_rows(32, 3)), torch.arange(32) % 2).backward()
        optimizer.step()
    return net.eval()


def test_an_ensemble_never_changes_frozen_parameters() -> None:
    torch.manual_seed(0)
    net = Backbone()
    for init in (None, "fresh", "perturb"):
        members = credo.DeepEnsemble(net, 3, init=init).members
        for member in members:
            assert torch.equal(member.net.body.weight, net.body.weight)
            assert not torch.equal(member.net.head.weight, net.head.weight)
        assert not torch.equal(members[0].net.head.weight, members[1].net.head.weight)


def test_an_ensemble_asks_what_to_do_with_a_trained_network() -> None:
    torch.manual_seed(0)
    net = _trained(Backbone())
    with pytest.raises(InputError, match=r"trained.*init='fresh'.*init='perturb'.*factory"):
        credo.DeepEnsemble(net, 2)
    x = _rows(32, 3)
    predicted = net(x).argmax(1)
    perturbed = credo.DeepEnsemble(net, 5, init="perturb", likelihood=credo.Categorical()).predict(x)
    assert float((perturbed.mean.argmax(1) == predicted).double().mean()) > 0.9
    assert bool((perturbed.epistemic > 0).all())
    with pytest.raises(InputError, match="unknown init"):
        credo.DeepEnsemble(net, 2, init="fresch")


def test_fresh_networks_are_recognized_as_fresh() -> None:
    """Every layer of torch as its constructor leaves it."""
    for net in (
        credo.architectures.MLP(3, (8, 8)),
        credo.architectures.LeNet(4, size=8),
        credo.architectures.ResNet(4, 2, (4, 6)),
        nn.Sequential(nn.Embedding(11, 6), nn.LSTM(6, 4, bidirectional=True)),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv1d(2, 4, 3, groups=2)),
        nn.TransformerEncoderLayer(8, 2, 16),
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        nn.GRUCell(3, 4),
        credo.architectures.LanguageModel(11, 6, tied=False),
        credo.architectures.TransformerLanguageModel(11, 8, 1, 2),
        credo.architectures.VisionTransformer(size=8, patch=4, width=8, layers=1, heads=2),
        credo.architectures.Captioner(9, size=16, channels=(4, 8), width=8),
        credo.architectures.SegNet(1, 2, (4, 6)),
        credo.architectures.ESPCN(2, widths=(4,)),
    ):
        credo.DeepEnsemble(net, 1)


def test_a_language_model_with_trained_words_is_not_fresh() -> None:
    net = credo.architectures.LanguageModel(11, 6)
    with torch.no_grad():
        net.embedding.weight[3] += 0.3
    with pytest.raises(InputError, match="the weights of embedding are trained"):
        credo.DeepEnsemble(net, 2, likelihood=credo.Categorical())


def test_a_network_without_reset_parameters_can_be_perturbed() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    with pytest.raises(UnsupportedError, match=r"factory.*init='perturb'"):
        credo.DeepEnsemble(Own(), 2)
    ensemble = credo.DeepEnsemble(Own(), 2, init="perturb", likelihood=GAUSSIAN)
    assert bool((ensemble.predict(_rows(4, 3)).epistemic > 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("estimator", ["auto", "flipout", "weight"])
def test_scales_and_the_kl_of_16_bit_networks_have_32(dtype: torch.dtype, estimator: str) -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 1))
    net = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 1)).to(dtype)
    net.load_state_dict(wide.state_dict())
    wide.load_state_dict(net.state_dict())  # rounded alike
    exact = credo.BayesByBackprop(wide, credo.Gaussian(0.5), initial_scale=0.05)
    converted = credo.BayesByBackprop(wide, credo.Gaussian(0.5), initial_scale=0.05)
    for model in (credo.BayesByBackprop(net, credo.Gaussian(0.5), initial_scale=0.05, estimator=estimator), converted):
        if model is converted:
            expected = exact.kl()
            model.to(dtype)
        assert {p.dtype for p in model.posterior.rho.parameters()} == {torch.float32}
        torch.testing.assert_close(model.kl(), exact.kl() if model is not converted else expected, rtol=1e-6, atol=0)
    x, y = _rows(16, 3).to(dtype), _rows(16, 1, seed=1).to(dtype)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.5), initial_scale=0.05, estimator=estimator)
    before = [p.detach().clone() for p in model.posterior.rho.parameters()]
    optimizer = torch.optim.SGD(model.posterior.rho.parameters(), lr=0.05)
    loss = model.loss(x, y, n_data=1000)
    loss.backward()
    optimizer.step()  # of 1e-6 to 1e-3: below the 0.008 that bfloat16 resolves at ρ = −3, above the 2e-7 of 32 bits
    assert loss.dtype == torch.float32
    moved = torch.cat([(p != q).flatten() for p, q in zip(model.posterior.rho.parameters(), before, strict=True)])
    assert float(moved.double().mean()) > 0.9  # where likelihood and KL cancel, the step is too small
    assert bool((model.predict(x, samples=3, seed=0).epistemic > 0).all())


def test_a_16_bit_network_is_saved_and_loaded(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(torch.bfloat16)
    model = credo.BayesByBackprop(net, GAUSSIAN, initial_scale=0.05)
    x = _rows(5, 3).to(torch.bfloat16)
    expected = model.predict(x, samples=3, seed=0).draws
    model.save(tmp_path / "run")
    twin = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(torch.bfloat16)
    loaded = credo.load(tmp_path / "run", net=twin)
    assert torch.equal(loaded.predict(x, samples=3, seed=0).draws, expected)
    assert {p.dtype for p in loaded.posterior.rho.parameters()} == {torch.float32}


def test_an_attribute_called_predictor_is_no_method() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.predictor = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.predictor(x)

    assert credo.BayesByBackprop(Speech(), GAUSSIAN).predict(_rows(4, 3), samples=2).mean.shape == (4, 1)
    with pytest.raises(InputError, match="already"):
        credo.MAP(credo.MAP(nn.Linear(3, 1), GAUSSIAN), GAUSSIAN)


class Counting(nn.Module):
    """Keeps statistics as plain attributes, replaced and changed in place, and its last activation with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.calls, self.running, self.total = 0, torch.zeros(3), torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
            self.total += x.detach().sum(0)
            self.last = self.body(x)
            self.seen = [self.last]
        return self.body(x - self.running)


@pytest.mark.parametrize("method", [credo.BayesByBackprop, credo.MAP, lambda n, k: credo.MCDropout(n, k, p=0.5)])
def test_statistics_in_plain_attributes_are_kept(method) -> None:
    x, y = _rows(8, 3), _rows(8, 1, seed=1)
    torch.manual_seed(0)
    net = Counting()
    model = method(net, GAUSSIAN)
    model.fit((x, y), epochs=3, batch_size=8)
    assert net.calls == 3
    torch.testing.assert_close(net.running, (1 - 0.9**3) * x.mean(0))
    torch.testing.assert_close(net.total, 3 * x.sum(0))
    before = (net.calls, net.running.clone(), net.total.clone())
    model.predict(x, samples=2)
    assert (net.calls, net.running.tolist(), net.total.tolist()) == (before[0], before[1].tolist(), before[2].tolist())


@pytest.mark.parametrize("method", [credo.MAP, credo.BayesByBackprop])
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_hook_based_weight_normalization_works(norm, method) -> None:
    torch.manual_seed(0)
    model = method(nn.Sequential(norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)), GAUSSIAN)
    x, y = _rows(8, 3), _rows(8, 1, seed=1)
    model.fit((x, y), epochs=2)
    assert bool(model.predict(x, samples=3).draws.isfinite().all())


class Spectral(nn.Module):
    """Complex weights in front, real ones behind."""

    def __init__(self) -> None:
        super().__init__()
        self.modes = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(torch.complex64) @ self.modes).abs())


def test_complex_parameters_can_stay_deterministic() -> None:
    x, y = _rows(8, 3), _rows(8, 1, seed=1)
    with pytest.raises(UnsupportedError, match=r"'modes' is complex.*bayesian='head"):
        credo.BayesByBackprop(Spectral(), GAUSSIAN)
    for model in (
        credo.BayesByBackprop(Spectral(), GAUSSIAN, bayesian="head.*"),
        credo.MAP(Spectral(), GAUSSIAN, bayesian="head.*"),
        credo.MCDropout(Spectral(), GAUSSIAN, p=0.2),
    ):
        model.fit((x, y), epochs=1)
        assert bool(model.predict(x, samples=4, seed=0).draws.isfinite().all())


def _layer_like(module: str, name: str, input_dim: int) -> type[nn.Module]:
    """A linear layer that another library defines."""

    class Layer(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            shape = (inputs, outputs) if input_dim == 0 else (outputs, inputs)
            self.weight, self.bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.zeros(outputs))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight if input_dim == 0 else self.weight.T) + self.bias

    Layer.__module__, Layer.__qualname__, Layer.__name__ = module, name, name
    return Layer


@pytest.mark.parametrize(
    ("module", "name", "dim"),
    [("transformers.pytorch_utils", "Conv1D", 0), ("torch_geometric.nn.dense.linear", "Linear", 1)],
)
def test_dropout_is_put_before_linear_layers_of_other_libraries(module: str, name: str, dim: int) -> None:
    """A draw drops inputs of the layer: over them, weight rows are all 0 or the mean's, scaled by 1/(1 − p)."""
    torch.manual_seed(0)
    layer = _layer_like(module, name, dim)(5, 4)
    model = credo.MCDropout(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1)), GAUSSIAN, p=0.5)
    drawn = model.posterior.sample(1, seed=0)["0.weight"][0]
    kept = (drawn != 0).all(1 - dim)
    assert 0 < int(kept.sum()) < 5
    torch.testing.assert_close(drawn, layer.weight.detach() * kept.unsqueeze(1 - dim) * 2)


def test_weights_that_dropout_cannot_stand_before_are_named(caplog) -> None:
    layer = _layer_like("somewhere.else", "Mystery", 0)(5, 4)
    with caplog.at_level("INFO", logger="credo"):
        credo.MCDropout(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1)), GAUSSIAN, p=0.5)
    assert "no dropout is put before 0.weight: how Mystery meets its inputs is not known" in caplog.text


def test_a_gray_image_is_not_dropped_as_a_whole(caplog) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    with caplog.at_level("INFO", logger="credo"):
        model = credo.MCDropout(make(), credo.Categorical(), p=0.5)
    assert "no dropout is put before 0.weight" in caplog.text
    assert set(model.posterior.rates) == {"3.weight"}
    named = credo.MCDropout(make(), credo.Categorical(), p={"0.*": 0.5, "*": 0.1})
    assert named.posterior.rates == {"0.weight": 0.5, "3.weight": 0.1}


class Encoding(UserDict):
    """A mapping that is no dictionary, as tokenizers return."""


def test_mappings_that_are_no_dictionaries_are_inputs() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            h = self.embedding(input_ids) * attention_mask[..., None]
            return self.head(h.sum(1) / attention_mask.sum(1, keepdim=True))

    torch.manual_seed(0)
    tokens = torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(0))
    x = Encoding(input_ids=tokens, attention_mask=torch.ones(6, 5))
    y = torch.arange(6) % 2
    model = credo.BayesByBackprop(Tokens(), credo.Categorical())
    model.fit((x, y), epochs=2, batch_size=4)
    expected = model.predict(dict(x), samples=3, seed=0).mean
    assert torch.equal(model.predict(x, samples=3, seed=0).mean, expected)
    assert bool(model.loss(x, y, n_data=6).isfinite())


def test_a_graph_is_learned_as_one_batch() -> None:
    """Node-level: all nodes are one batch, ignored labels are no data, and n_data is the number of nodes."""
    torch.manual_seed(0)
    x, y = {"edge_index": EDGES, "x": _rows(7, 4)}, torch.tensor([0, 1, 0, -100, 1, -100, 0])
    model = credo.BayesByBackprop(Graph(), credo.Categorical(ignore_index=-100))
    with pytest.raises(InputError, match=r"the parts of X disagree.*batch_size=None"):
        model.fit((x, y), epochs=1)
    loader = DataLoader([(x, y)], batch_size=None)
    with pytest.raises(InputError, match=r"length of 1, but its first minibatch has 7 rows.*n_data=N"):
        model.fit(loader, epochs=1)
    model.fit(loader, epochs=2, n_data=7)
    assert model.predict(x, samples=3).mean.shape == (7, 2)


def test_inputs_that_are_no_tensors_of_rows_are_refused_with_a_way_out() -> None:
    model = credo.BayesByBackprop(nn.Linear(3, 1), GAUSSIAN)
    with pytest.raises(InputError, match="to_dense"):
        model.predict(_rows(4, 3).to_sparse())
    with pytest.raises(InputError, match="to_dense"):
        model.fit((_rows(4, 3).to_sparse(), _rows(4, 1)), epochs=1)

    class Data:
        """As graph libraries have it."""

    with pytest.raises(InputError, match=r"got Data.*mapping of its tensors"):
        model.predict(Data())
    with pytest.raises(InputError, match="y must be one tensor or array, got a mapping of 'a', 'b'"):
        model.fit((_rows(4, 3), {"a": _rows(4), "b": _rows(4)}), epochs=1)
    loader = DataLoader([(_rows(4, 3), {"a": _rows(4, 1)})], batch_size=None)
    with pytest.raises(InputError, match=r"one tensor, got dict.*collate_fn"):
        model.fit(loader, epochs=1, n_data=4)
    with warnings.catch_warnings(action="ignore"):
        script = torch.jit.script(nn.Linear(3, 1))
    with pytest.raises(UnsupportedError, match=r"torch\.jit"):
        credo.BayesByBackprop(script, GAUSSIAN)


def test_a_sparse_tensor_beside_the_rows_passes() -> None:
    class Adjacent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 1)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            return torch.sparse.mm(adjacency, self.body(x))

    x = {"x": _rows(4, 3), "adjacency": torch.eye(4).to_sparse()}
    model = credo.BayesByBackprop(Adjacent(), GAUSSIAN)
    assert model.predict(x, samples=2, seed=0).mean.shape == (4, 1)
    assert bool(model.loss(x, _rows(4, 1), n_data=4).isfinite())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fresh_weights_of_half_precision_are_fresh(dtype: torch.dtype) -> None:
    """The largest of many uniform numbers may be rounded to just above the bound."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(36, 400), nn.ReLU(), nn.Linear(400, 3))
    with torch.no_grad():
        net[0].weight[0, 0] = 1 / 6  # the bound, which bfloat16 rounds up
    ensemble = credo.DeepEnsemble(net.to(dtype), 2, likelihood=credo.Categorical())
    assert len(ensemble.members) == 2


def test_a_network_without_values_is_refused() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    message = r"'0.weight' of Sequential is on the meta device and has no values: .* net.to_empty"
    makers: list[Callable[[], object]] = [
        lambda: credo.BayesByBackprop(net, GAUSSIAN),
        lambda: credo.SNGP(net, GAUSSIAN),
        lambda: credo.DeepEnsemble(net, 2, likelihood=GAUSSIAN),
        lambda: credo.generative.GAN(net, net, latent=3),
    ]
    for make in makers:
        with pytest.raises(InputError, match=message):
            make()
    loaded = net.to_empty(device="cpu")
    loaded.load_state_dict(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).state_dict())
    model = credo.BayesByBackprop(loaded, GAUSSIAN).fit((_rows(8, 3), _rows(8, 1)), epochs=1, progress=False)
    assert bool(model.predict(_rows(2, 3), samples=2).mean.isfinite().all())
