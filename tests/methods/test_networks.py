"""Networks run unchanged: wrapped, trained for two steps, asked, saved and loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.methods import Method, NetworkMethod
from networks import CASES, Case

METHODS: dict[str, Callable[[Case], Method]] = {
    "bbb": lambda case: credo.BayesByBackprop(case.make(), case.likelihood(), forward=case.forward),
    "bbb-weight": lambda case: credo.BayesByBackprop(
        case.make(), case.likelihood(), credo.ScaleMixture(), estimator="weight", forward=case.forward
    ),
    "mc-dropout": lambda case: credo.MCDropout(case.make(), case.likelihood(), p=0.1, forward=case.forward),
    "ensemble": lambda case: credo.DeepEnsemble(case.make, 2, likelihood=case.likelihood(), forward=case.forward),
}


def two_steps(model: Method, case: Case) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(case.x, case.y, n_data=100)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_a_network_runs_unchanged(name: str, method: str, tmp_path: Path) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = METHODS[method](case)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    keys = set(case.make().state_dict())
    net = model.members[0].net if isinstance(model, credo.DeepEnsemble) else model.net
    assert isinstance(net, nn.Module)
    assert set(net.state_dict()) == keys, "the network was rewritten"

    losses = two_steps(model, case)

    assert all(torch.isfinite(torch.tensor(losses)))
    still = [key for key, value in model.named_parameters() if torch.equal(value, before[key])]
    assert still == []
    p = model.predict(case.x, samples=64, seed=0)  # so many that each unit is dropped in some of them, 1 − 0.9⁶⁴
    assert p.mean.shape == case.y.shape if p.mean.dim() == case.y.dim() else p.mean.shape[:-1] == case.y.shape
    assert bool(torch.isfinite(p.draws).all())
    assert bool((p.epistemic > 0).all())
    assert set(net.state_dict()) == keys

    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=case.make(), forward=case.forward)
    again = loaded.predict(case.x, samples=64, seed=0)
    assert torch.equal(again.draws, p.draws)


@pytest.mark.parametrize("name", CASES)
def test_a_draw_is_the_network_with_drawn_weights(name: str) -> None:
    """Whatever path prediction takes (vectorized, looped, fused kernels), draw s is the network holding sample s.

    Tolerance: fused and batched kernels sum in another order; 1e-5 is 84 ulp of float32 at outputs of order 1.
    """
    case = CASES[name]
    torch.manual_seed(0)
    model = credo.BayesByBackprop(case.make(), case.likelihood(), initial_scale=0.1, forward=case.forward).eval()
    drawn = model.posterior.sample(3, seed=5)
    call: Any = case.forward or (lambda net, x: net(x))
    outputs = []
    for s in range(3):
        twin = copy.deepcopy(model.net)
        for key, value in drawn.items():
            twin.get_parameter(key).data.copy_(value[s])
        outputs.append(call(twin, case.x))
    expected = model.likelihood.predictive(torch.stack(outputs).detach())
    torch.testing.assert_close(model.predict(case.x, samples=3, seed=5).draws, expected.draws, rtol=1e-5, atol=1e-5)


def _compiled_step(method: str, name: str, backend: str) -> None:
    """A training step without a graph break, whose gradient is that of the loss it computes.

    A compiler may take random numbers in another order than eager torch, and a backward pass that drew them again
    would be wrong without a word. So the gradient along a random direction is held against the central difference of
    the compiled loss itself, with one seed: in float64 with h = 1e-6 they agree to about 1e-8.
    """
    torch.manual_seed(0)
    case = CASES[name]
    model = COMPILED[method](case).double().train()
    x, y = (t.double() if t.is_floating_point() else t for t in (case.x, case.y))
    model._prepare(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    parameters = list(model.parameters())
    direction = [torch.randn_like(p) for p in parameters]

    def loss() -> Tensor:
        if isinstance(model, credo.BayesByBackprop):
            model.get_buffer("_warmup.steps").zero_()
        torch.manual_seed(0)
        value: Tensor = compiled(x, y, n_data=100)
        return value

    def loss_at(step: float) -> float:
        for parameter, vector in zip(parameters, direction, strict=True):
            parameter.data.add_(vector, alpha=step)
        value = loss().item()
        for parameter, vector in zip(parameters, direction, strict=True):
            parameter.data.sub_(vector, alpha=step)
        return value

    gradients = torch.autograd.grad(loss(), parameters)
    slope = sum(float((g * v).sum()) for g, v in zip(gradients, direction, strict=True))
    difference = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6
    assert slope == pytest.approx(difference, rel=1e-5, abs=1e-6)


COMPILED: dict[str, Callable[[Case], NetworkMethod]] = {
    "bbb": lambda case: credo.BayesByBackprop(case.make(), case.likelihood()),
    "bbb-flipout-mixture": lambda case: credo.BayesByBackprop(
        case.make(), case.likelihood(), credo.ScaleMixture(), estimator="flipout", kl_warmup=5
    ),
    "bbb-weight": lambda case: credo.BayesByBackprop(case.make(), case.likelihood(), estimator="weight", samples=2),
    "mc-dropout": lambda case: credo.MCDropout(case.make(), case.likelihood(), p=0.1),
    "map": lambda case: credo.MAP(case.make(), case.likelihood()),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("mlp", method) for method in COMPILED),
        ("resnet", "bbb"),
        pytest.param("resnet", "mc-dropout", marks=pytest.mark.slow),  # the hooks of the MLP, on other layers
    ],
)
def test_a_training_step_compiles_without_a_graph_break(name: str, method: str) -> None:
    _compiled_step(method, name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "method"), [*(("mlp", method) for method in COMPILED), ("lenet", "bbb"), ("lenet", "mc-dropout")]
)
def test_a_training_step_compiles_with_inductor(name: str, method: str) -> None:
    _compiled_step(method, name, "inductor")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_is_refused() -> None:
    compiled: Any = torch.compile(nn.Linear(2, 1), backend="eager")
    with pytest.raises(credo.errors.UnsupportedError, match="compile"):
        credo.BayesByBackprop(compiled)
