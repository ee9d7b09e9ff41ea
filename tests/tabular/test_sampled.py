"""Hamiltonian Monte Carlo on tables: plans, predictions, files, reports."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

import credo
from credo.tabular import sampled
from credo.tabular.sampled import SamplingPlan

SHORT = {"warmup": 60, "draws": 12, "leapfrog_steps": 6, "init_steps": 60}


def curve(rows: int = 80):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(rows, 2))
    return X, 10.0 + np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def fitted():
    X, y = curve()
    return credo.Regressor("hmc", samples=20, calibrate="variance", method_options=SHORT, random_state=0).fit(X, y)


@pytest.mark.parametrize("rows", [20, 200, 1000, 3000, 100_000])
@pytest.mark.parametrize("weights", [50, 3222])
def test_plans_cost_the_same_at_any_size(rows, weights):
    plan = SamplingPlan.make(rows, weights)
    assert 0 <= plan.gradients <= sampled.MAX_GRADIENTS
    assert sampled.CHAINS * rows * weights * plan.gradients <= 10**11
    mean_steps = 0.5 * (plan.leapfrog_steps + 1)
    assert plan.leapfrog_steps == 1 or (sampled.WARMUP + sampled.DRAWS) * mean_steps <= plan.gradients


def test_relevance_is_learned_per_input(fitted):
    priors = fitted.model_.prior
    assert {name: prior.groups for name, prior in priors.items()} == {
        "layers.0.weight": "input",
        "skip.weight": "input",
        "layers.2.weight": "unit",
        "*": "layer",
    }


def test_saved_and_pickled_estimators_predict_the_same(tmp_path, fitted):
    X, _ = curve()
    fitted.save(tmp_path / "run")
    for copy in (credo.load(tmp_path / "run"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
        assert (copy.method_, copy.method_reason_) == ("hmc", "as requested")
        assert copy.notes_ == fitted.notes_
    assert "R-hat" in fitted.notes_[0]


def test_variance_grows_outside_the_range(fitted):
    """The added variance is that of the mean function: 0 inside, and growing with the distance."""
    X = np.array([[0.5, 0.0], [2.0, 0.0], [4.0, 0.0]])
    epistemic = fitted.predict_dist(X).epistemic
    assert epistemic[0] < epistemic[1] < epistemic[2]


def test_report_has_the_convergence_of_the_chains(fitted):
    X, y = curve()
    page = credo.report.render(fitted, X[:20], y[:20])
    assert "Hamiltonian Monte Carlo" in page
    assert "R-hat of the predictions" in page
    assert "Learning rate" not in page
    assert "Epochs" not in page


def test_noise_of_a_linear_model():
    """With n rows σ is known up to a standard error of σ/√(2n); its posterior mean must be within four of them."""
    rng, rows, sigma = np.random.default_rng(1), 200, 0.3
    X = rng.normal(size=(rows, 2))
    y = X @ np.array([2.0, -1.0]) + sigma * rng.normal(size=rows)
    options = {"warmup": 60, "draws": 60, "leapfrog_steps": 8, "init_steps": 100}
    model = credo.Regressor("hmc", noise="learned", hidden=(), method_options=options, random_state=0).fit(X, y)
    noise = model.predict_dist(X[:50]).aleatoric.sqrt().mean()
    assert abs(noise - sigma) < 4.0 * sigma / math.sqrt(2.0 * rows)


def test_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 0.0, "right", "left")
    model = credo.Classifier("hmc", calibrate="temperature", method_options=SHORT, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)


@pytest.mark.parametrize(("draws", "kept"), [(30, 30), (80, 80), (100, 50), (500, 50)])
def test_about_200_draws_are_kept(draws, kept):
    posterior = credo.posteriors.Empirical({"w": torch.arange(4.0 * draws).reshape(4, draws, 1)})
    sampled.thin(posterior)
    assert posterior.shape == (4, kept)
    assert posterior.by_chain()["w"][0, -1] == draws - 1
