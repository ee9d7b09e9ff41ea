"""What all draws share is computed once, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.evaluation.shared_work import SharedWork
from credo.functional import Replica

SAMPLES = 7
GAUSSIAN = credo.Gaussian(1.0)


class Counter(nn.Module):
    """A module that counts the rows it has seen, outside of anything a copy of the network has of its own."""

    rows: ClassVar[list[int]] = []

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        Counter.rows.append(len(x))
        y: Tensor = self.inner(x)
        return y


class Block(nn.Module):
    """A residual block with an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(x + self.norm(self.conv(x)))
        return y


class Residual(nn.Module):
    """A small residual network, whose forward mixes modules and functions."""

    def __init__(self, head: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.stem, self.norm, self.relu = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.body = Counter(nn.Sequential(Block(), Block()))
        self.fc = head(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.relu(self.norm(self.stem(x))))
        y: Tensor = self.fc(F.gelu(h).mean((2, 3)))
        return y


class Head(nn.Module):
    """A recurrent head, for which torch has no batching rule."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(inputs, outputs, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rnn(x.unsqueeze(1))[0][:, -1]
        return y


class InPlaceAfterwards(nn.Module):
    """Adds drawn weights in place to what all draws share: a second draw must not find the sum of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.shift = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        h += self.shift
        return h


class InPlaceBetween(nn.Module):
    """Adds in place between two shared modules, and uses the sum again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.more, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h += 1.0
        y: Tensor = self.head(self.more(h) + h)
        return y


class Skips(nn.Module):
    """A later part takes what an earlier one left in a list: not seen in outputs."""

    class Encoder(nn.Module):
        def __init__(self, skips: list[Tensor]) -> None:
            super().__init__()
            self.layer, self._skips = nn.Linear(3, 4), skips

        def forward(self, x: Tensor) -> Tensor:
            self._skips.append(x)
            y: Tensor = self.layer(x)
            return y

    def __init__(self) -> None:
        super().__init__()
        self._skips: list[Tensor] = []
        self.encoder, self.head = Skips.Encoder(self._skips), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(x)) + self._skips.pop()
        return y


class UsedEarly(nn.Module):
    """The head's drawn weight is used at the very beginning too, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x * self.head.weight.sum()))
        return y


class Random(nn.Module):
    """Random numbers of its own before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x + torch.randn(())))
        return y


def images(rows: int = 6) -> Tensor:
    return torch.randn(rows, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def plain_draws(model: credo.BayesByBackprop, x: Tensor) -> Tensor:
    """Every draw by itself, in the network itself."""
    drawn = model.posterior.sample(SAMPLES, seed=0)
    net = model.net.eval()
    with torch.no_grad():
        weights = [{name: value[s] for name, value in drawn.items()} for s in range(SAMPLES)]
        return torch.stack([torch.func.functional_call(net, draw, (x,)) for draw in weights])


@pytest.mark.parametrize("vectorize", ["vmap", "loop", "auto"])
def test_a_frozen_trunk_runs_once(vectorize: str) -> None:
    """One pass over all rows, and a few rows to find out, however many draws there are."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Residual(), GAUSSIAN, bayesian="fc.*", initial_scale=0.3)
    x = images(20)
    expected = plain_draws(model, x)
    model.predict(x, samples=1, seed=0)  # checks of the first prediction
    Counter.rows.clear()
    found = model.predict(x, samples=SAMPLES, seed=0, vectorize=vectorize).draws
    assert Counter.rows.count(20) == 1
    assert sum(Counter.rows) <= 20 + 3 * 3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_parts_of_a_batch_each_have_their_own() -> None:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Residual(), GAUSSIAN, bayesian="fc.*", initial_scale=0.3)
    x = images(11)
    expected = plain_draws(model, x)
    model.predict(x, samples=1, seed=0)
    Counter.rows.clear()
    found = model.predict(x, samples=SAMPLES, seed=0, batch_size=5).draws
    assert Counter.rows.count(5) == 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_head_that_cannot_be_vectorized_still_shares_the_trunk() -> None:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Residual(Head), GAUSSIAN, bayesian="fc.*", initial_scale=0.3)
    x = images(20)
    expected = plain_draws(model, x)
    model.predict(x, samples=1, seed=0)
    Counter.rows.clear()
    found = model.predict(x, samples=SAMPLES, seed=0).draws
    assert Counter.rows.count(20) == 2, "once for vmap, which fails, and once for the loop"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_shared_behind_the_first_drawn_weight() -> None:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Residual(), GAUSSIAN, bayesian="stem.*", initial_scale=0.3)
    x = images(20)
    expected = plain_draws(model, x)
    Counter.rows.clear()
    torch.testing.assert_close(model.predict(x, samples=SAMPLES, seed=0).draws, expected, rtol=1e-5, atol=1e-5)
    assert Counter.rows.count(20) == SAMPLES


def test_dropout_shares_what_comes_before_it() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Counter(nn.Linear(3, 4)), nn.ReLU(), nn.Dropout(0.5), Counter(nn.Linear(4, 2)))
    model = credo.MCDropout(net, GAUSSIAN)
    x = torch.randn(20, 3)
    model.predict(x, samples=1, seed=0)
    Counter.rows.clear()
    model.predict(x, samples=SAMPLES, seed=0, vectorize="loop")
    assert Counter.rows.count(20) == 1 + SAMPLES


@pytest.mark.parametrize("vectorize", ["auto", "loop"])
@pytest.mark.parametrize(
    ("make", "bayesian"),
    [(InPlaceAfterwards, "shift"), (InPlaceBetween, "head.*"), (Skips, "head.*"), (UsedEarly, "head.*")],
)
def test_networks_with_side_effects_are_evaluated_right(
    make: Callable[[], nn.Module], bayesian: str, vectorize: str
) -> None:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(make(), GAUSSIAN, bayesian=bayesian, initial_scale=0.3)
    x = torch.randn(5, 3)
    expected = plain_draws(model, x)
    found = model.predict(x, samples=SAMPLES, seed=0, vectorize=vectorize).draws
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_random_numbers_of_the_network_are_not_shared() -> None:
    """Each draw has its own: with a head that hardly varies, draws must differ by far more than the head does."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Random(), GAUSSIAN, bayesian="head.*", initial_scale=1e-6)
    draws = model.predict(torch.randn(5, 3), samples=SAMPLES, seed=0).draws
    assert float(draws.std(0).min()) > 1e-3


def test_a_pass_can_end_with_what_is_shared() -> None:
    """Nothing after the last shared call runs, and what was recorded gives the output of a whole pass, to the bit."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), Counter(nn.Linear(4, 2)))
    replica, x = Replica(net, None, own_buffers=True), torch.randn(5, 3)
    draw = {"1.inner.weight": torch.randn(2, 4)}
    first = SharedWork(replica)
    first.record(lambda: replica(draw, torch.randn(5, 3)), draw)
    again = SharedWork(replica, first.calls)
    Counter.rows.clear()
    again.record_only(lambda: replica(draw, x), draw)
    assert Counter.rows == []
    assert torch.equal(again.reuse(lambda: replica(draw, x)), replica(draw, x))
    assert len(list(again.modules())) == 3
