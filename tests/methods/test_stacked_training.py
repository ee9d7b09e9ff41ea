"""Members of an ensemble trained at once: each ends where it would have ended alone."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.errors import DivergenceError, InputError
from credo.methods import _flat_stack
from credo.methods._recording import record
from credo.training import capture
from training.test_capture import FakeGraph

MEMBERS = 3


def mlp(activation: Callable[[], nn.Module] = nn.Tanh, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 7), activation(), nn.Linear(7, outputs)).double()


def table(classes: bool = False) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(50, 3, generator=source, dtype=torch.float64)
    signal = x.sum(1, keepdim=True).sin()
    weight = torch.rand(50, generator=source, dtype=torch.float64)
    return x, (signal[:, 0] > 0).long() if classes else signal, weight


def nets(count: int = MEMBERS, **options: Any) -> list[nn.Module]:
    torch.manual_seed(0)
    return [mlp(**options) for _ in range(count)]


OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {},
    "weight decay": {"optimizer": torch.optim.SGD, "lr": 0.05, "weight_decay": 0.1},
    "validation": {"validation": table()[:2], "schedule": "constant"},
}


@pytest.mark.parametrize("likelihood", [credo.Gaussian("learned"), credo.Gaussian(0.3), credo.Categorical(), None])
@pytest.mark.parametrize("prior", [None, {"0.*": credo.Normal(0.1, 0.5), "*": credo.ScaleMixture()}], ids=["n", "m"])
@pytest.mark.parametrize("name", OPTIONS)
def test_members_trained_at_once_are_those_trained_alone(name: str, prior: Any, likelihood: Any) -> None:
    """Weights, noise and history agree to rounding, which 12 steps of float64 raise to less than 1e-9."""
    classes = isinstance(likelihood, credo.Categorical)
    data = table(classes)
    own = {"validation": data[:2]} if name == "validation" else {}
    options = {"epochs": 3, "batch_size": 14, "lr": 1e-2, "seed": 4, **OPTIONS[name], **own}
    networks = nets(outputs=2 if classes else 1)
    singles = [credo.MAP(copy.deepcopy(net), copy.deepcopy(likelihood), prior).fit(data, **options) for net in networks]
    ensemble = credo.DeepEnsemble(networks, likelihood=likelihood, prior=prior, members_at_once=True)
    assert ensemble.fit(data, **options) is ensemble
    for single, member in zip(singles, ensemble._models(), strict=True):
        for (key, expected), found in zip(single.state_dict().items(), member.state_dict().values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, msg=key)
        for expected, found in zip(single.history, member.history, strict=True):
            assert {**found, "seconds": 0} == pytest.approx({**expected, "seconds": 0}, rel=1e-8)
        assert (member.n_data, member._training_path) == (50, "eager steps")
    assert [entry["member"] for entry in ensemble.history] == [k for k in range(MEMBERS) for _ in range(3)]


def test_members_trained_at_once_differ_and_predict() -> None:
    ensemble = credo.DeepEnsemble(mlp(), MEMBERS, init="fresh").fit(table(), epochs=2, seed=0)
    p = ensemble.predict(table()[0], samples=MEMBERS)
    assert p.epistemic.gt(0).all()


def test_dropout_draws_a_mask_for_each_member() -> None:
    """Members that start at the same weights stay the same without noise of their own."""

    def train(p: float) -> list[Tensor]:
        net = nn.Sequential(nn.Linear(3, 7), nn.Dropout(p), nn.Linear(7, 1)).double()
        ensemble = credo.DeepEnsemble([copy.deepcopy(net) for _ in range(2)], members_at_once=True)
        return [m.net[0].weight for m in ensemble.fit(table(), epochs=2, seed=0)._models()]

    assert torch.equal(*train(0.0))
    assert not torch.equal(*train(0.5))


class Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def conv() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2, 1)).double()


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def frozen() -> nn.Module:
    net = mlp()
    net[0].requires_grad_(False)
    return net


OBSTACLES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "only one": ([mlp()], {}, {}),
    "noise of its own": ([mlp(), mlp()], {"base": credo.BayesByBackprop}, {}),
    "gradient_clip": ([mlp(), mlp()], {}, {"gradient_clip": 1.0}),
    "the optimizer": ([mlp(), mlp()], {}, {"optimizer": torch.optim.Adagrad}),
    "batch norm": ([normalized(), normalized()], {}, {}),
    "frozen": ([frozen(), frozen()], {}, {}),
    "in any case": ([conv(), conv()], {}, {}),
    "different parameters": ([mlp(), nn.Linear(3, 1).double()], {}, {}),
    "more than their weights": ([mlp(nn.ReLU), mlp(nn.Tanh)], {}, {}),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_members_that_cannot_be_stacked_are_trained_one_after_the_other(reason: str) -> None:
    networks, build, options = OBSTACLES[reason]
    ensemble = credo.DeepEnsemble(
        copy.deepcopy(networks), likelihood=credo.Gaussian(0.3), members_at_once=True, **build
    )
    handler = Recorder()
    logger = logging.getLogger("credo")
    logger.addHandler(handler)
    try:
        ensemble.fit(table(), epochs=2, seed=1, **options)
    finally:
        logger.removeHandler(handler)
    assert any("one after the other" in line and reason in line for line in handler.lines), handler.lines
    assert all(len(member.history) == 2 for member in ensemble._models())


def test_large_networks_are_stacked_on_a_cpu_only_if_asked_for() -> None:
    from credo.methods._stacked_training import find_obstacle

    large = credo.DeepEnsemble([nn.Linear(1000, 300), nn.Linear(1000, 300)])._models()
    assert find_obstacle(large, {}, is_asked_for=False) == "large networks gain nothing on a CPU"
    assert find_obstacle(large, {}, is_asked_for=True) is None


def test_captured_steps_equal_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGraph.made = []
    monkeypatch.setattr(capture, "find_obstacle", lambda fabric, optimizers: None)
    monkeypatch.setattr(capture, "make_graph", lambda device: FakeGraph())
    options = {"epochs": 4, "batch_size": 10, "seed": 2}
    eager, captured = (credo.DeepEnsemble(nets(), likelihood=credo.Gaussian("learned")) for _ in range(2))
    eager.fit(table(), capture=False, **options)
    captured.fit(table(), capture=True, **options)
    assert sum(graph.replays for graph in FakeGraph.made) == 17
    for a, b in zip(eager.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert captured._models()[0]._training_path == "captured steps"


def test_after_an_error_members_are_as_before_or_at_the_last_good_epoch() -> None:
    ensemble = credo.DeepEnsemble(nets(), members_at_once=True)
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    x, y, _ = table()
    with pytest.raises(InputError):
        ensemble.fit((x, torch.cat([y, y], 1)), epochs=1)
    with pytest.raises(DivergenceError):
        ensemble.fit((x, y), epochs=1, lr=1e200, seed=0)
    for name, value in ensemble.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.requires_grad for parameter in ensemble.parameters())
    ensemble.fit((x, y), epochs=1, lr=1e-2, seed=0)
    assert all(parameter.requires_grad for parameter in ensemble.parameters())
    assert not any(torch.equal(value, before[name]) for name, value in ensemble.named_parameters())


def test_the_argument_is_checked_and_saved(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="members_at_once must be True, False or 'auto'"):
        credo.DeepEnsemble(mlp(), members_at_once="yes")
    ensemble = credo.DeepEnsemble(nets(), likelihood=credo.Gaussian(0.3), members_at_once=False)
    ensemble.save(tmp_path / "run")
    assert credo.load(tmp_path / "run", mlp())._at_once is False  # type: ignore[attr-defined]


def test_a_recording_has_the_results_of_the_function() -> None:
    constant = torch.arange(3.0)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        low, high = (x + constant).mul(1).detach().view(3).split([1, 2])
        return low * y, high.sin().view(2)

    recorded = record(function, torch.zeros(3), torch.ones(1))
    x, y = torch.randn(3), torch.randn(1)
    for found, expected in zip(recorded(x, y), function(x, y), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="reads a value"):
        record(lambda x: (x * x.sum().item(),), torch.ones(2))


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, torch.sigmoid])
def test_a_recording_writes_over_products_that_nothing_else_reads(activation: Callable[[Tensor], Tensor]) -> None:
    """The same numbers to the last bit; of two sums with one product, neither may overwrite it."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            z = activation(b + x.bmm(w)).bmm(w)
            (gradient,) = torch.autograd.grad((z + b).square().sum() + (z * b).sum(), w)
        return z.detach(), gradient

    x, w, b = torch.randn(3, 7, 5), torch.randn(3, 5, 5), torch.randn(3, 1, 5)
    recorded = record(function, x, w, b)
    targets = [str(node.target) for node in recorded.graph.nodes]
    assert sum("add_.Tensor" in target for target in targets) >= 1
    assert any("grad_input" in target for target in targets)
    for _ in range(2):
        for found, expected in zip(recorded(x, w, b), function(x, w, b), strict=True):
            assert torch.equal(found, expected)


def test_a_recording_multiplies_thin_matrices_by_faster_operations() -> None:
    """A last layer with one output: its product, and those of both gradients, in any layout of the tensors."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x, w = (part.detach().requires_grad_() for part in (x, w))
            z = x.bmm(w)
            gradients = torch.autograd.grad(z.square().sum(), (x, w))
        return z.detach(), *gradients

    x, w = torch.randn(3, 7, 5).double(), torch.randn(3, 5, 1).double()
    recorded = record(function, x, w)
    names = [getattr(node.target, "__name__", "") for node in recorded.graph.nodes]
    assert names.count("outer_products") == 1
    assert names.count("matrix_vector_products") == 2
    for own in (x, torch.randn(3, 5, 7).double().mT, x[:1].expand(3, 7, 5)):
        for found, expected in zip(recorded(own, w), function(own, w), strict=True):
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected)


def test_often_evaluated_shapes_run_through_a_recording() -> None:
    net, likelihood = mlp(), credo.Gaussian("learned").double()
    module = _flat_stack.RowLogLikelihood(net, likelihood, None)
    stack = _flat_stack.FlatStack(module, [name for name, _ in module.named_parameters()], 4)
    position = torch.randn(4, sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    batch = credo.data.Batch(*table())
    values = [stack.log_likelihood(position, batch) for _ in range(_flat_stack.RECORDED_FROM + 1)]
    assert len(stack._recorded) == 1
    torch.testing.assert_close(values[-1], values[0])


CALLS = itertools.count()


class Drifting(nn.Module):
    """A layer that a recording cannot reproduce: it changes by a part of 1e-9 from call to call."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 1e-9 * next(CALLS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_recording_may_differ_by_rounding_and_by_nothing_else(dtype: torch.dtype) -> None:
    """Sums over 30 rows and 10,000 weights in another order: near the mode 1e-5 of the gradient in float32."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 100), nn.Tanh(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1)).to(dtype)
    x = torch.randn(30, 8, dtype=dtype)
    y = net(x).detach() + 0.01 * torch.randn(30, 1, dtype=dtype)
    for last, is_recorded in ((nn.Identity(), True), (Drifting(), dtype == torch.float32)):
        module = _flat_stack.RowLogLikelihood(nn.Sequential(net, last), credo.Gaussian(0.1), None)
        stack = _flat_stack.FlatStack(module, [name for name, _ in module.named_parameters()], 4)
        weights = torch.cat([p.detach().flatten() for p in module.parameters()])
        position = ((weights - 0.01) / 0.9).expand(4, -1)  # which is checked at 0.9·position + 0.01
        for _ in range(_flat_stack.RECORDED_FROM):
            stack.log_likelihood(position, credo.data.Batch(x, y, None))
        (function,) = stack._recorded.values()
        assert isinstance(function, torch.fx.GraphModule) == is_recorded
