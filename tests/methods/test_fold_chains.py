"""Chains of several data sets as one batch, their random numbers, and targets that are replayed on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.errors import UnsupportedError
from credo.methods import _replay
from credo.methods._fold_chains import fit_folds, joint_target
from credo.methods._streams import Streams
from credo.training.supervised import SupervisedTask
from training.test_capture import FailingGraph, FakeGraph

SIZES, SEEDS, CHAINS = (7, 12, 9), (3, 1, 4), 2
SHORT: dict[Any, dict[str, Any]] = {
    credo.HMC: {"warmup": 12, "draws": 6, "leapfrog_steps": 4},
    credo.MCLMC: {"warmup": 20, "draws": 3, "thinning": 4},
}
PRIORS = {"0.*": credo.HierarchicalNormal("input"), "*": credo.HierarchicalNormal("layer")}


def folds(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, ...]]:
    """Three tables of different sizes; the rows of one have weights."""
    source = torch.Generator().manual_seed(0)
    tables: list[tuple[Tensor, ...]] = []
    for size in SIZES:
        x = torch.randn(size, 3, dtype=dtype, generator=source)
        noise = 0.3 * torch.randn(size, 1, dtype=dtype, generator=source)
        tables.append((x, x.sum(1, keepdim=True).sin() + noise))
    tables[1] = (*tables[1], torch.rand(SIZES[1], dtype=dtype, generator=source))
    return tables


def sampler(method: Any = credo.HMC, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)
    settings: dict[str, Any] = {"chains": CHAINS, **SHORT[method], **options}
    return method(net, credo.Gaussian("learned").to(dtype), PRIORS, **settings)


def test_the_target_of_all_folds_is_that_of_each_fold() -> None:
    """Log densities and gradients of 2 chains on each of 3 folds, with weights of rows, to rounding in float64."""
    model, tables = sampler(), folds()
    data = [model._load(table, SupervisedTask(model)) for table in tables]
    together = joint_target([model] * len(tables), data)
    position = 0.5 * torch.randn(len(tables) * CHAINS, 27, dtype=torch.float64)
    for _ in range(12):  # recorded as a list of operations from the tenth evaluation on
        found = together(position)
    for f, own in enumerate(data):
        rows = slice(f * CHAINS, (f + 1) * CHAINS)
        expected = joint_target([model], [own])(position[rows])
        torch.testing.assert_close(found.log_density[rows], expected.log_density, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.gradient[rows], expected.gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", SHORT)
def test_copies_have_the_draws_that_they_have_alone(method: Any) -> None:
    """Also the report. Chains start at the network: 500 steps of Adam before would let rounding errors grow to 1e-5."""
    tables = folds()
    fitted = fit_folds(sampler(method, init="network"), tables, SEEDS)
    for model, table, seed in zip(fitted, tables, SEEDS, strict=True):
        alone = sampler(method, init="network").fit(table, seed=seed)
        for name, draws in alone.posterior.by_chain().items():
            torch.testing.assert_close(model.posterior.by_chain()[name], draws, rtol=1e-6, atol=1e-6)
        assert model._report.details == alone._report.details
        x = table[0]
        torch.testing.assert_close(
            model.predict(x, samples=6, seed=0).mean, alone.predict(x, samples=6, seed=0).mean, rtol=1e-6, atol=1e-6
        )


def test_a_sampler_of_minibatches_runs_on_one_data_set() -> None:
    model = credo.SGLD(nn.Linear(3, 1).double(), credo.Gaussian(0.1), warmup=2, draws=2)
    with pytest.raises(UnsupportedError, match="one data set at a time"):
        fit_folds(model, folds(), SEEDS)


def test_streams_of_a_chain_do_not_depend_on_other_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those of one data set on other data sets; also where the numbers of many steps are drawn at once."""
    for at_once in (1, 64):
        both, one = Streams(torch.device("cpu"), (5, 6), 4), Streams(torch.device("cpu"), 6, 3)
        monkeypatch.setattr(both, "_at_once", at_once)
        monkeypatch.setattr(one, "_at_once", at_once)
        for _ in range(3):
            assert torch.equal(both.normal(20, torch.float32)[2:], one.normal(20, torch.float32)[:2])
            assert torch.equal(both.uniform()[2:], one.uniform()[:2])
            shape = torch.Size([2, 1])
            found = both.gamma("a", 3.0, shape), one.gamma("a", 3.0, shape)
            assert torch.equal(found[0][2:], found[1][:2])
        assert len(both.uniform().unique()) == 4


def install(monkeypatch: pytest.MonkeyPatch, graph: type[FakeGraph]) -> list[FakeGraph]:
    graph.made = []
    monkeypatch.setattr(_replay, "make_graph", lambda device: graph())
    monkeypatch.setattr(_replay, "_DEVICES", ("cpu",))
    return graph.made


@pytest.mark.parametrize("method", SHORT)
@pytest.mark.parametrize("graph", [FakeGraph, FailingGraph])
def test_replayed_chains_are_those_of_eager_ones(
    method: Any, graph: type[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With unknown variances, which change between replays; equal to the bit, as the same operations run."""
    eager = sampler(method).fit(folds()[0], seed=0)
    graphs = install(monkeypatch, graph)
    replayed = sampler(method).fit(folds()[0], seed=0)
    assert len(graphs) == 1
    assert bool(graphs[0].replays) is (graph is FakeGraph)
    for name, draws in eager.posterior.by_chain().items():
        assert torch.equal(replayed.posterior.by_chain()[name], draws)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", SHORT)
def test_replayed_chains_on_a_gpu(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding in float64, with and without replays."""
    replayed = fit_folds(sampler(method, init="network"), folds(), SEEDS, device="cuda")
    monkeypatch.setattr(_replay, "_DEVICES", ())
    eager = fit_folds(sampler(method, init="network"), folds(), SEEDS, device="cuda")
    for a, b in zip(replayed, eager, strict=True):
        for name, draws in b.posterior.by_chain().items():
            torch.testing.assert_close(a.posterior.by_chain()[name], draws, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_target_on_a_gpu_is_captured() -> None:
    """Its values at other positions than that of the capture, and after new variances, are the eager ones."""
    model = sampler().to("cuda")
    target = joint_target([model], [model._load(folds()[0], SupervisedTask(model))])
    source = torch.Generator("cuda").manual_seed(0)
    for _ in range(20):
        position = torch.randn(CHAINS, 27, dtype=torch.float64, device="cuda", generator=source)
        state = target(position)
        torch.testing.assert_close(tuple(state), tuple(target._evaluate(position)))
    assert target._replayed.is_captured, target._replayed.failure
    refresh = target.refresher(0)
    assert refresh is not None
    torch.testing.assert_close(tuple(refresh(position, state)), tuple(target(position)))
