"""Every way of evaluating draws gives the same, and which way is taken is decided as documented."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.evaluation import evaluator
from credo.evaluation.choice import Workload, describe, draws_at_once

SAMPLES = 40


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 1)), nn.Conv2d(1, 4, (2, 1)), nn.Tanh(), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(8, 2)
    )


MODELS = {
    "weights": lambda: credo.BayesByBackprop(mlp(), credo.Gaussian(1.0), initial_scale=0.3),
    "convolutions": lambda: credo.BayesByBackprop(cnn(), credo.Gaussian(1.0), initial_scale=0.3),
    "head": lambda: credo.BayesByBackprop(cnn(), credo.Gaussian(1.0), bayesian="5.*", initial_scale=0.3),
    "dropped-weights": lambda: credo.MCDropout(mlp(), credo.Gaussian(1.0), p=0.3),
    "dropout": lambda: credo.MCDropout(cnn(), credo.Gaussian(1.0)),
}


def build(name: str) -> tuple[credo.Method, Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), torch.randn(9, 3)


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("name", MODELS)
def test_all_ways_agree(name: str, batch_size: int | None) -> None:
    """Tolerance: 1e-5, a hundred ulp of outputs of order 1."""
    model, x = build(name)
    together = "fold" if name == "dropout" else "vmap"
    looped = model.predict(x, SAMPLES, 0, vectorize="loop").draws
    for vectorize in (together, "auto", "loop"):
        found = model.predict(x, SAMPLES, 0, batch_size, vectorize).draws
        torch.testing.assert_close(found, looped, rtol=1e-5, atol=1e-5)
    assert float(looped.var(0).min()) > 0


@pytest.mark.parametrize("name", ["weights", "dropped-weights"])
def test_inputs_of_the_wrong_width_are_not_taken_for_an_obstacle(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, x = build(name)
    predictor = model._predictor(SAMPLES, 0)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        predictor(x[:, :2])
    assert not caplog.records
    assert not model._findings.looped
    with pytest.MonkeyPatch.context() as patch:  # and the same predictor still evaluates draws together
        patch.setattr(evaluator.Evaluator, "_looped", None)
        together = predictor(x, vectorize="vmap").draws
    torch.testing.assert_close(together, model.predict(x, SAMPLES, 0).draws, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_measurement_changes_neither_draws_nor_random_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(name)
    looped = model.predict(x, SAMPLES, 0, vectorize="loop").draws
    monkeypatch.setattr(Workload, "choose_by_rule", lambda self, offered: None)
    state = torch.get_rng_state()
    assert model._findings.ways == {}
    torch.testing.assert_close(model.predict(x, SAMPLES, 0).draws, looped, rtol=1e-5, atol=1e-5)
    assert len(model._findings.ways) == 1, "found once"
    assert set(model._findings.ways.values()) <= {"vmap", "fold", "loop"}
    model.predict(x[:8], SAMPLES, 0)
    assert len(model._findings.ways) == 2, "another power of two of rows"
    torch.testing.assert_close(model.predict(x, SAMPLES, 0).draws, looped, rtol=1e-5, atol=1e-5)
    assert len(model._findings.ways) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert copy.deepcopy(model)._findings.ways == {}
    assert pickle.loads(pickle.dumps(model))._findings.ways == {}


def test_a_way_that_is_not_possible_is_refused() -> None:
    x = torch.randn(4, 3)
    weights, dropout = build("weights")[0], build("dropout")[0]
    with pytest.raises(credo.errors.InputError, match="unknown vectorize"):
        weights.predict(x, vectorize="batch")
    with pytest.raises(credo.errors.InputError, match="'vmap' or 'loop' is"):
        weights.predict(x, vectorize="fold")
    with pytest.raises(credo.errors.InputError, match="'fold' or 'loop' is"):
        dropout.predict(x, vectorize="vmap")


def test_an_ensemble_passes_the_way_on() -> None:
    ensemble = credo.DeepEnsemble([mlp(), mlp()], base=credo.BayesByBackprop, likelihood=credo.Gaussian(1.0))
    x = torch.randn(4, 3)
    first, second = (ensemble.predict(x, samples=6, seed=0, vectorize=way).mean for way in ("vmap", "loop"))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    with pytest.raises(credo.errors.InputError, match="vectorize"):
        ensemble.predict(x, vectorize="fold")


def test_on_a_cpu_the_rule_is_fixed() -> None:
    """Small networks together, large ones and convolutions with drawn weights in a loop; never by a clock."""
    x = torch.zeros(64, 3)

    def rule(weights: int, way: str, convolves: bool = False, samples: int = 100) -> str | None:
        return describe(mlp(), x, weights, convolves, samples).choose_by_rule(way)

    assert rule(100, "vmap") == "vmap"
    assert rule(10**6, "vmap") == "loop"
    assert rule(100, "vmap", convolves=True) == "loop"
    assert rule(100, "fold") == rule(100, "fold", convolves=True) == "fold"
    assert rule(10**6, "fold") == rule(10**5, "fold", convolves=True) == "loop"
    assert rule(100, "fold", samples=4) == "loop"


def test_memory_of_draws_at_once_is_bounded() -> None:
    x = torch.zeros(1000, 100)
    for bytes_per_draw, row_bytes in ((10**6, None), (1, 10**4), (10**10, 10**8)):
        count = draws_at_once(x, bytes_per_draw, row_bytes)
        activations = 400 if row_bytes is None else row_bytes
        assert count == 1 or (count * 1000 * activations <= 2**26 and count * bytes_per_draw <= 2**27)


def test_prediction_does_not_import_the_compiler() -> None:
    """Torch imports its compiler for modes that watch operations, which would take longer than a prediction."""
    code = """
        import sys, torch, credo
        model = credo.BayesByBackprop(torch.nn.Linear(2, 1), credo.Gaussian(1.0))
        model.predict(torch.zeros(3, 2), samples=20)
        assert not {"torch._dynamo", "sympy"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_draws_are_kept_from_the_second_batch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network is drawn anew for every group of a first batch; kept draws give the same outputs."""
    monkeypatch.setattr(evaluator, "_LOOP_BYTES", 1)
    model, x = credo.BayesByBackprop(mlp(), credo.Gaussian(1.0)), torch.randn(4, 3)
    predictor = model._predictor(5, 0)
    first, second = (predictor.outputs(x, vectorize="loop") for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, predictor.outputs(x, vectorize="vmap"))
