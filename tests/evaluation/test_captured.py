"""Captured predictions: the mechanics, on the CPU, with a graph that runs the recorded work again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import credo
from credo import kernels
from credo.evaluation import captured, evaluator
from credo.posteriors import _gaussian_sampler
from evaluation.test_evaluator import MODELS, SAMPLES, build
from training.test_capture import FailingGraph, FakeGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    return install(monkeypatch, FakeGraph)


def install(monkeypatch: pytest.MonkeyPatch, graph: type[FakeGraph], faster: bool = True) -> list[FakeGraph]:
    """Let predictions on the CPU be captured; the first of every three times is that of the eager prediction."""
    graph.made = []
    times = iter([1.0, 0.5, 0.5] * 100 if faster else [1.0, 2.0, 2.0] * 100)

    def seconds(run: Callable[[], object], device: torch.device) -> float:
        run()
        return next(times)

    monkeypatch.setattr(captured, "make_graph", lambda device: graph())
    monkeypatch.setattr(captured, "_DEVICES", ("cpu",))
    monkeypatch.setattr(captured, "CAPTURED_BYTES", 2**20)
    monkeypatch.setattr(evaluator, "seconds", seconds)
    return graph.made


def together(name: str) -> str:
    return "fold" if name == "dropout" else "vmap"


@pytest.mark.parametrize("name", MODELS)
def test_a_replay_gives_the_draws_of_the_loop(name: str, graphs: list[FakeGraph]) -> None:
    """For other inputs, seeds and weights than those of the capture. Tolerance as between any two ways."""
    model, x = build(name)
    for _ in range(2):
        model.predict(x, SAMPLES, 0, vectorize=together(name))
    assert len(graphs) == (2 if name in ("head", "dropout") else 1), "one more where draws share work"
    before = graphs[-1].replays
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(1.1)
    for seed in (1, 2):
        other = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed))
        found = model.predict(other, SAMPLES, seed, vectorize=together(name)).draws
        looped = model.predict(other, SAMPLES, seed, vectorize="loop").draws
        torch.testing.assert_close(found, looped, rtol=1e-5, atol=1e-5)
    assert graphs[-1].replays == before + 2


def reference_draws(
    mean: Tensor, scale: Tensor, seed: Tensor, numbers: Tensor, table: Tensor, out: Tensor, antithetic: bool
) -> None:
    """What :func:`credo.kernels.gaussian_draws` does, with the random numbers of torch."""
    for k, number in enumerate(numbers.tolist()):
        stream = torch.Generator().manual_seed(int(seed) % 2**40 + (number // 2 if antithetic else number))
        noise = torch.randn(mean.shape, generator=stream) * (-1.0 if antithetic and number % 2 else 1.0)
        for block, (start, gap, size) in enumerate(table.tolist()):
            part = slice(block * kernels.DRAWN_TOGETHER, block * kernels.DRAWN_TOGETHER + size)
            out[start + k * gap :][:size] = (mean + scale * noise)[part]


@pytest.fixture
def draws_in_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Gaussian draws on the CPU be computed as on a GPU, in the graph."""
    monkeypatch.setattr(_gaussian_sampler, "accepts", lambda tensors: True)
    monkeypatch.setattr(_gaussian_sampler, "gaussian_draws", reference_draws)


@pytest.mark.usefixtures("draws_in_graph")
@pytest.mark.parametrize("name", ["weights", "convolutions", "head"])
def test_draws_in_a_graph_are_those_of_the_loop(name: str, graphs: list[FakeGraph]) -> None:
    """With other weights, scales and seeds than those of the capture, and with draws in pairs."""
    model, x = build(name)
    for _ in range(2):
        model.predict(x, SAMPLES, 0, vectorize="vmap")
    before = graphs[-1].replays
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    found = model.predict(x, SAMPLES, 1, vectorize="vmap").draws
    torch.testing.assert_close(found, model.predict(x, SAMPLES, 1, vectorize="loop").draws, rtol=1e-5, atol=1e-5)
    assert graphs[-1].replays == before + 1
    model.posterior.antithetic = True
    paired = model.predict(x, SAMPLES, 1, vectorize="loop").draws
    assert not torch.allclose(found, paired)
    for _ in range(3):
        again = model.predict(x, SAMPLES, 1, vectorize="vmap").draws
        torch.testing.assert_close(again, paired, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True])
def test_groups_of_draws_are_replayed_one_after_the_other(
    in_graph: bool, graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Seven draws, three at most at once: groups of 3, 3 and 1."""
    if in_graph:
        request.getfixturevalue("draws_in_graph")
    monkeypatch.setattr(evaluator, "draws_at_once", lambda *args: 3)
    model, x = build("weights")
    expected = model.predict(x, 7, 0, vectorize="loop").draws
    for _ in range(3):
        torch.testing.assert_close(model.predict(x, 7, 0, vectorize="vmap").draws, expected, rtol=1e-5, atol=1e-5)
    assert graphs[0].replays == 9


def test_buffers_are_those_of_the_network(graphs: list[FakeGraph]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model, x = credo.BayesByBackprop(net, credo.Gaussian(1.0)), torch.randn(9, 3)
    for _ in range(2):
        model.predict(x, 5, 0, vectorize="vmap")
    net[1].running_mean.add_(1.0)
    found = model.predict(x, 5, 0, vectorize="vmap").draws
    torch.testing.assert_close(found, model.predict(x, 5, 0, vectorize="loop").draws, rtol=1e-5, atol=1e-5)
    assert graphs[0].replays > 0


def change_setting(net: nn.Sequential) -> None:
    net[1].negative_slope = 0.9


def add_hook(net: nn.Sequential) -> None:
    net[0].register_forward_hook(lambda module, args, output: 2.0 * output)


def replace_weight(net: nn.Sequential) -> None:
    net[2].weight = nn.Parameter(2.0 * net[2].weight.detach())


@pytest.mark.parametrize("change", [change_setting, add_hook, replace_weight])
def test_a_changed_network_is_not_replayed(change: Callable[[nn.Sequential], None], graphs: list[FakeGraph]) -> None:
    """All but the first layer belong to the network, not to the draw."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.1), nn.Linear(4, 1))
    model, x = credo.BayesByBackprop(net, credo.Gaussian(1.0), bayesian="0.*"), torch.randn(9, 3)
    for _ in range(3):
        before = model.predict(x, 5, 0, vectorize="vmap").draws
    change(net)
    after = model.predict(x, 5, 0, vectorize="vmap").draws
    torch.testing.assert_close(after, model.predict(x, 5, 0, vectorize="loop").draws, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(after, before)


@pytest.mark.parametrize(("graph", "faster"), [(FailingGraph, True), (FakeGraph, False)])
def test_predictions_go_on_where_a_capture_fails_or_does_not_pay(
    graph: type[FakeGraph], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install(monkeypatch, graph, faster)
    model, x = build("weights")
    expected = model.predict(x, 5, 0, vectorize="loop").draws
    for _ in range(5):
        torch.testing.assert_close(model.predict(x, 5, 0, vectorize="vmap").draws, expected, rtol=1e-5, atol=1e-5)
    assert len(made) == 1, "tried once"


def test_a_network_with_values_of_its_own_is_not_captured(graphs: list[FakeGraph]) -> None:
    """A tensor that is no buffer may change without being seen."""

    class Shifted(nn.Linear):
        shift: Tensor

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.shift

    net = Shifted(3, 1)
    net.shift = torch.ones(())
    model, x = credo.BayesByBackprop(net, credo.Gaussian(1.0)), torch.randn(9, 3)
    for _ in range(4):
        model.predict(x, 5, 0, vectorize="vmap")
    assert graphs == []


def test_two_kinds_of_predictions_are_kept(graphs: list[FakeGraph]) -> None:
    model, x = build("weights")
    for rows in (9, 8, 7, 7, 8, 9):
        for _ in range(2):
            model.predict(x[:rows], 5, 0, vectorize="vmap")
    assert len(graphs) == 4, "the oldest was captured again"


def test_a_prediction_that_is_used_is_not_forgotten_for_others(graphs: list[FakeGraph]) -> None:
    model, x = build("weights")
    for rows in (9, 9, 8, 9, 7, 9):
        model.predict(x[:rows], 5, 0, vectorize="vmap")
    assert len(graphs) == 1
