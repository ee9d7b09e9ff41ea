"""MC dropout with draws folded into the batch: the same as a loop over draws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from methods.test_other_networks import EDGES, LAYOUTS, AcrossRows, Graph, MeanOverRows
from traps.test_dropout import NETWORKS, P, build

GAUSSIAN = credo.Gaussian(1.0)


class DropPath(nn.Module):
    """Stochastic depth as timm has it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x


class Branches(nn.Module):
    """Two residual branches, each dropped as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), DropPath()

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.drop(self.first(x).tanh())
        return h + self.drop(self.second(h).tanh())


class PositionDropout(nn.Module):
    """Dropout of something that has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x + F.dropout(self.position, P, self.training))
        return y


class SideBranch(nn.Module):
    """Two dropouts of the same activation: the second meets rows of one draw after the first made rows of all."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        halves = [F.dropout(h, P, self.training), F.dropout(h.sin(), P, self.training)]
        y: Tensor = self.head(torch.cat(halves, 1))
        return y


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def compare(model: credo.MCDropout, x: object, samples: int = 5) -> None:
    """Folded, looped, whole and in parts: 1e-5, a hundred ulp of outputs of order 1."""
    looped = model.predict(x, samples=samples, seed=3, vectorize="loop").draws
    folded = model.predict(x, samples=samples, seed=3, vectorize="fold").draws
    torch.testing.assert_close(folded, looped, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(looped[0], looped[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_folded_draws_are_those_of_the_loop(name: str) -> None:
    model, shape = build(name)
    for count in (1, 4):
        compare(model, rows(count, *shape))


@pytest.mark.parametrize("name", ["time-first", "encoder-time-first", "view"])
def test_rows_that_are_not_in_front_are_folded_too(name: str) -> None:
    make, x = LAYOUTS[name]
    torch.manual_seed(0)
    compare(credo.MCDropout(make(), GAUSSIAN), x)


class Residual(nn.Module):
    """A residual sum over dropout: what comes before it has the rows of one draw, what comes after those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.drop = nn.Linear(4, 4), nn.Linear(4, 2), nn.Dropout(P)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        y: Tensor = self.head(h + self.drop(h.tanh()))
        return y


@pytest.mark.parametrize("make", [Branches, SideBranch, Residual])
def test_branches_are_folded(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    compare(credo.MCDropout(make(), GAUSSIAN), rows(5, 4))


def test_a_dropped_branch_is_dropped_for_all_rows_of_its_draw() -> None:
    """Each draw keeps or drops each of two branches: four functions, all rows of a draw by the same one."""
    torch.manual_seed(0)
    net, x = Branches(), rows(5, 4)
    draws = credo.MCDropout(net, GAUSSIAN).predict(x, samples=40, seed=0, vectorize="fold").draws
    with torch.no_grad():
        kinds = []
        for a in (0.0, 2.0):
            for b in (0.0, 2.0):
                h = x + a * net.first(x).tanh()
                kinds.append(h + b * net.second(h).tanh())
    distance = torch.stack([(draws - kind).abs().amax((1, 2)) for kind in kinds])
    assert float(distance.min(0).values.max()) < 1e-5
    assert set(distance.argmin(0).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rates_at_the_ends(p: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.Dropout(p), nn.Linear(9, 9), nn.Dropout(0.5), nn.Linear(9, 1))
    compare(credo.MCDropout(net, GAUSSIAN), rows(5, 4))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (AcrossRows, rows(5, 4)),
        (MeanOverRows, rows(5, 4)),
        (Graph, {"edge_index": EDGES, "x": rows(7, 4)}),
        (PositionDropout, rows(5, 4)),
    ],
)
def test_rows_that_see_each_other_are_looped(make: Callable[[], nn.Module], x: object) -> None:
    torch.manual_seed(0)
    model = credo.MCDropout(make(), GAUSSIAN)
    looped = model.predict(x, samples=20, seed=0, vectorize="loop").draws
    assert torch.equal(model.predict(x, samples=20, seed=0).draws, looped)
    with pytest.raises(credo.errors.InputError, match="but 'loop' is"):
        model.predict(x, samples=20, seed=0, vectorize="fold")


@pytest.mark.parametrize("name", ["Dropout2d", "LSTM", "encoder"])
def test_draws_do_not_depend_on_how_many_there_are(name: str) -> None:
    model, shape = build(name)
    x = rows(4, *shape)
    many = model.predict(x, samples=24, seed=0).draws
    torch.testing.assert_close(many[:3], model.predict(x, samples=3, seed=0).draws, rtol=1e-5, atol=1e-5)
    parts = model.predict(x, samples=24, seed=0, batch_size=3).draws
    torch.testing.assert_close(many, parts, rtol=1e-5, atol=1e-5)


def test_what_was_found_is_not_used_after_a_rate_changed() -> None:
    """A plan and shared work are kept between predictions; a network whose first dropout is switched off has others."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1)]
    model = credo.MCDropout(nn.Sequential(*layers), credo.Gaussian(0.1))
    x = torch.randn(10, 4)
    first = model.predict(x, samples=30, seed=0).draws
    torch.testing.assert_close(model.predict(x, samples=30, seed=0).draws, first)
    layers[1].p = 0.0
    again = model.predict(x, samples=30, seed=0).draws
    torch.testing.assert_close(credo.MCDropout(model.net, credo.Gaussian(0.1)).predict(x, 30, 0).draws, again)
    assert not torch.allclose(again, first)
    assert float(again.var(0).min()) > 0.0
