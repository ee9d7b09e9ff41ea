"""Traps 25 and 26 of docs/traps.md: MC dropout with every kind of dropout layer, and nothing else switched on.

A draw is one mask set for all rows. Over draws, an output must have the moments that torch's own dropout in training
mode gives it: there a batch of equal rows has one mask per row, so its rows are as many draws. Means have the standard
error √(v/n), variances √((m₄ − v²)/n); both sides are estimates, five combined standard errors are allowed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import credo
from networks import Attention, Encoder, Recurrent

P = 0.4
OURS, THEIRS = 600, 6000


class Functional(nn.Module):
    """Dropout by function calls alone: there is no layer to find."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x).tanh(), P, training=self.training)
        y: Tensor = self.second(h)
        return y


class FunctionalBesideALayer(Functional):
    """Dropout by a function call and by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(P)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.drop(x))


class Packed(nn.Module):
    """A recurrent network over sequences of different lengths ``[B, T, 3]``, whose last feature tells the length."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU | nn.RNN] = nn.LSTM, batch_first: bool = True) -> None:
        super().__init__()
        self.rnn = kind(3, 6, num_layers=2, dropout=P, batch_first=batch_first, bidirectional=True)
        self.head = nn.Linear(12, 1)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0, 2].detach().abs() * 2).long().clamp(1, x.shape[1])
        sequence = x if self.batch_first else x.transpose(0, 1)
        packed = pack_padded_sequence(sequence, lengths, batch_first=self.batch_first, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
        y: Tensor = self.head(h.mean(1))
        return y


class SelfAttention(nn.Module):
    """Attention by ``F.scaled_dot_product_attention``, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 1)
        self.drop = nn.Dropout(P)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        p = P if self.training else 0.0
        h = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        y: Tensor = self.head(self.drop(h.transpose(1, 2).flatten(-2)).mean(1))
        return y


class Decoder(nn.Module):
    """Cross-attention from a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=P, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x, x).mean(1))
        return y


def _between(layer: nn.Module, inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), layer, nn.Tanh(), nn.Linear(hidden, 2))


def _channels(layer: nn.Module, dims: int) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(kind(2, 4, 1), layer, nn.Tanh(), nn.Flatten(), nn.Linear(4 * 2**dims, 2))


Make = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Dropout": (lambda: _between(nn.Dropout(P), 3, 6), (3,)),
    "Dropout-in-place": (lambda: _between(nn.Dropout(P, inplace=True), 3, 6), (3,)),
    "Dropout-tokens": (lambda: nn.Sequential(_between(nn.Dropout(P), 3, 4), nn.Flatten()), (4, 3)),
    "Dropout1d": (lambda: _channels(nn.Dropout1d(P), 1), (2, 2)),
    "Dropout2d": (lambda: _channels(nn.Dropout2d(P), 2), (2, 2, 2)),
    "Dropout3d": (lambda: _channels(nn.Dropout3d(P), 3), (2, 2, 2, 2)),
    "AlphaDropout": (lambda: _between(nn.AlphaDropout(P), 3, 6), (3,)),
    "FeatureAlphaDropout": (lambda: _channels(nn.FeatureAlphaDropout(P), 2), (2, 2, 2)),
    "functional": (Functional, (3,)),
    "functional-beside-a-layer": (FunctionalBesideALayer, (3,)),
    "LSTM": (lambda: Recurrent(nn.LSTM, num_layers=3, dropout=P), (4, 3)),
    "LSTM-time-first": (lambda: Recurrent(nn.LSTM, batch_first=False, num_layers=2, dropout=P), (4, 3)),
    "LSTM-bidirectional": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=P, bidirectional=True), (4, 3)),
    "GRU": (lambda: Recurrent(nn.GRU, num_layers=2, dropout=P, bidirectional=True), (4, 3)),
    "GRU-time-first": (lambda: Recurrent(nn.GRU, batch_first=False, num_layers=2, dropout=P), (4, 3)),
    "RNN": (lambda: Recurrent(nn.RNN, num_layers=2, dropout=P, nonlinearity="relu"), (4, 3)),
    "LSTM-packed": (Packed, (4, 3)),
    "GRU-packed-time-first": (lambda: Packed(nn.GRU, batch_first=False), (4, 3)),
    "attention-with-weights": (lambda: Attention(dropout=P, need_weights=True), (4, 8)),
    "attention-without-weights": (lambda: Attention(dropout=P, need_weights=False), (4, 8)),
    "attention-time-first": (lambda: Attention(batch_first=False, dropout=P), (4, 8)),
    "attention-time-first-without-weights": (
        lambda: Attention(batch_first=False, dropout=P, need_weights=False),
        (4, 8),
    ),
    "scaled-dot-product": (SelfAttention, (4, 8)),
    "encoder": (lambda: Encoder(True, dropout=P, layers=1), (4, 8)),
    "encoder-time-first": (lambda: Encoder(False, dropout=P, layers=1), (4, 8)),
    "decoder": (Decoder, (4, 8)),
}


def build(name: str) -> tuple[credo.MCDropout, tuple[int, ...]]:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    return credo.MCDropout(make(), credo.Gaussian(1.0)).eval(), shape


def _moments(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, its squared standard error, variance, its squared standard error, over dim 0."""
    n = len(values)
    centered = values.double() - values.double().mean(0)
    variance = centered.square().mean(0)
    return values.double().mean(0), variance / n, variance, (centered.pow(4).mean(0) - variance.square()) / n


@pytest.mark.parametrize("name", NETWORKS)
def test_trap_26_every_dropout_has_the_moments_of_training_mode(name: str) -> None:
    model, shape = build(name)
    rows = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    draws = model.predict(rows, samples=OURS, seed=0).draws
    assert bool((draws.var(0) > 0).all()), "dropout is off"
    twin = copy.deepcopy(model.net).train()
    torch.manual_seed(2)
    for row in range(2):
        with torch.no_grad():
            theirs = twin(rows[row : row + 1].expand(THEIRS, *shape).clone())
        mean, mean_error, variance, variance_error = _moments(draws[:, row])
        mean_, mean_error_, variance_, variance_error_ = _moments(theirs)
        off = (mean - mean_).abs() / (mean_error + mean_error_).sqrt()
        assert float(off.max()) < 5, f"a mean is {float(off.max()):.1f} standard errors off"
        off = (variance - variance_).abs() / (variance_error + variance_error_).sqrt()
        assert float(off.max()) < 5, f"a variance is {float(off.max()):.1f} standard errors off"


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_trap_26_a_draw_is_one_function_for_all_rows(name: str, count: int) -> None:
    """Equal rows have equal outputs, and neither order nor batch size matters.

    Also where the number of rows is that of time steps (4), of heads (2) or of both (8): nothing but the first
    dimension of the input says what a row is. Tolerance: 1e-5, a hundred ulp of outputs of order 1.
    """
    model, shape = build(name)
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))
    x[-1] = x[0]
    draws = model.predict(x, samples=6, seed=0).draws
    torch.testing.assert_close(draws[:, -1], draws[:, 0], rtol=0, atol=1e-5)
    order = torch.arange(count).flip(0)
    torch.testing.assert_close(model.predict(x[order], samples=6, seed=0).draws, draws[:, order], rtol=0, atol=1e-5)
    for size in (size for size in (1, 3, 4) if size < count):  # a larger one is the prediction in one piece
        parts = model.predict(x, samples=6, seed=0, batch_size=size).draws
        torch.testing.assert_close(parts, draws, rtol=0, atol=1e-5)
    assert not torch.allclose(draws[0], draws[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_trap_26_masks_do_not_survive(name: str) -> None:
    """After prediction the network in evaluation mode is what it was, and so is samples=0."""
    model, shape = build(name)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model.net(x)
    keys, flags = list(model.net.state_dict()), [part.training for part in model.net.modules()]
    model.predict(x, samples=3, seed=0)
    model.train().predict(x, samples=3, seed=0)
    model.eval()
    assert list(model.net.state_dict()) == keys
    assert [part.training for part in model.net.modules()] == flags
    with torch.no_grad():
        assert torch.equal(model.net(x), before)
    assert torch.equal(model.predict(x, samples=0).mean, before)


@pytest.mark.parametrize("name", NETWORKS)
def test_trap_26_training_uses_torchs_own_dropout(name: str) -> None:
    """In training every row has a mask of its own: the loss is that of the network in training mode, same seed."""
    model, shape = build(name)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    y = torch.zeros_like(model.net(x)).detach()
    model.train()
    torch.manual_seed(3)
    loss = model.loss(x, y, n_data=10)
    torch.manual_seed(3)
    nll = -model.likelihood.log_prob(model.net(x), y).mean()
    torch.testing.assert_close(loss, nll + model.kl() / 10)
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("p", [None, 0.3])
@pytest.mark.parametrize("training", [True, False])
def test_trap_25_batch_norm_stays_in_evaluation_mode(p: float | None, training: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d)
    net(torch.randn(16, 1, 8, 8))
    model = credo.MCDropout(net, credo.Gaussian(1.0), p=p).train(training)
    before = {name: value.clone() for name, value in net.named_buffers()}
    flags = [part.training for part in net.modules()]
    x = 100.0 + 50.0 * torch.randn(6, 1, 8, 8)
    together = model.predict(x, samples=4, seed=0)
    for name, value in net.named_buffers():
        assert torch.equal(value, before[name]), name
    assert [part.training for part in net.modules()] == flags
    # Batch statistics would tie the rows together: alone and among others a row is predicted the same.
    alone = model.predict(x[:1], samples=4, seed=0)
    torch.testing.assert_close(alone.draws, together.draws[:, :1], rtol=1e-4, atol=1e-3)
    model.train()
    model.loss(x, torch.zeros(6, 2), n_data=10)
    assert norm.running_mean is not None
    assert not torch.equal(norm.running_mean, before["1.running_mean"]), "training must move the statistics"


THREADED: dict[str, Callable[[nn.Module], credo.Method]] = {
    "own-dropout": lambda net: credo.MCDropout(net, credo.Gaussian(1.0)),
    "mc-dropout": lambda net: credo.MCDropout(net, credo.Gaussian(1.0), p=0.3),
    "bbb": lambda net: credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.3),
}


@pytest.mark.parametrize("method", THREADED)
def test_trap_26_threads_do_not_disturb_each_other(method: str) -> None:
    """Forty predictions on eight threads, each with its own seed, in train mode, equal the same forty in a row."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(P), nn.Unflatten(1, (4, 2)), nn.Dropout1d(P),
        nn.Flatten(), nn.Linear(8, 1),
    )  # fmt: skip
    model = THREADED[method](net).train()
    x = torch.randn(5, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    identities = [id(t) for t in (*net.parameters(), *net.buffers())]

    def predict(seed: int) -> Tensor:
        return model.predict(x, samples=4, seed=seed).draws

    serial = [predict(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(predict, range(40)))
    for a, b in zip(serial, parallel, strict=True):
        assert torch.equal(a, b)
    assert [id(t) for t in (*net.parameters(), *net.buffers())] == identities
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(part.training for part in net.modules())


def test_trap_26_dropout_at_rate_zero_is_no_dropout() -> None:
    for net in (nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 1))):
        with pytest.raises(credo.errors.InputError, match="no dropout"):
            credo.MCDropout(net, credo.Gaussian(1.0))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (lambda: nn.Linear(4, 2), (4,)),
        (lambda: nn.Conv2d(4, 2, (3, 2), groups=2, padding=1), (4, 3, 4)),
        (lambda: nn.ConvTranspose1d(4, 2, 3, stride=2, groups=2), (4, 3)),
    ],
    ids=["linear", "conv2d-groups", "transposed1d"],
)
@pytest.mark.parametrize("training", [True, False])
def test_inserted_dropout_drops_input_channels(net: Make, shape: tuple[int, ...], training: bool) -> None:
    """With p the input's channels are dropped: the layer is linear, so mean f(x) and variance Σ_c p/(1 − p)·f_c(x)²
    (f_c the part of channel c, without bias), in training (a mask per row) as in prediction (a mask per draw)."""
    torch.manual_seed(0)
    layer = net()
    p, n = 0.3, 4000
    model = credo.MCDropout(nn.Sequential(layer), credo.Gaussian(1.0), p=p)
    x = torch.randn(1, *shape)
    if training:
        model.train()
        rows = x.expand(n, *shape)
        model._prepare(rows)
        with torch.no_grad():
            values = model._noisy_forward(rows)
    else:
        values = model.predict(x, samples=n, seed=0).draws[:, 0]
    with torch.no_grad():
        mean = layer(x)[0]
        nothing = layer(torch.zeros_like(x))[0]
        parts = torch.stack(
            [layer(x * F.one_hot(torch.tensor(c), 4).view(1, 4, *[1] * (x.dim() - 2)))[0] - nothing for c in range(4)]
        )
    variance = p / (1 - p) * parts.square().sum(0)
    ours, mean_error, ours_variance, variance_error = _moments(values)
    some = variance > 0
    assert bool(((ours - mean).abs()[some] < 5 * mean_error.sqrt()[some]).all())
    assert bool(((ours_variance - variance).abs()[some] < 5 * variance_error.sqrt()[some]).all())
    assert math.isclose(float(ours_variance[~some].sum()), 0.0, abs_tol=1e-10)
