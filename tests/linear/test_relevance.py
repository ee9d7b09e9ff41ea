"""Automatic relevance determination."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ARDRegression

from credo.linear import BayesianLinearRegression, Polynomial
from credo.linear._algebra import decompose
from credo.linear._relevance import RelevancePosterior

from .tables import direct_evidence, sparse, table_of


def test_ard_removes_irrelevant_weights():
    x, y = sparse(rows=300)
    model = BayesianLinearRegression(hyperparameters="ard").fit(x, y)
    assert model.relevant_[[1, 5]].all()
    plain = BayesianLinearRegression().fit(x, y)
    assert model.log_evidence_ > plain.log_evidence_
    out = ~model.relevant_
    assert out.sum() >= 4  # an irrelevant weight has q² < s with probability 0.68
    assert (model.coef_[out] == 0.0).all()
    assert np.isinf(model.weight_precision_[out]).all()
    assert (model.sigma_[out] == 0.0).all()
    assert (model.sample(3).coef[:, out] == 0.0).all()
    np.testing.assert_allclose(model.coef_[[1, 5]], [2.0, -1.0], atol=5 * 0.3 / math.sqrt(300))


@pytest.mark.parametrize("name", ["sparse", "diabetes"])
def test_ard_agrees_with_scikit_learn(name):
    x, y = sparse() if name == "sparse" else load_diabetes(return_X_y=True)
    model = BayesianLinearRegression(hyperparameters="ard").fit(x, y)
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    theirs = ARDRegression(threshold_lambda=1e9, tol=1e-9, max_iter=10_000, **flat).fit(x, y)
    np.testing.assert_array_equal(model.relevant_, theirs.coef_ != 0.0)
    np.testing.assert_allclose(model.coef_, theirs.coef_, rtol=1e-4)
    np.testing.assert_allclose(model.noise_precision_, theirs.alpha_, rtol=1e-6)


def test_ard_is_at_a_maximum_over_every_single_weight():
    x, y = sparse()
    model = BayesianLinearRegression(hyperparameters="ard", fit_intercept=False).fit(x, y)
    evidence = direct_evidence(x, y, model.weight_precision_, model.noise_precision_)
    np.testing.assert_allclose(model.log_evidence_, evidence, rtol=1e-9)
    for i in range(10):
        for alpha in (1e-3, 1.0, 1e3, 1e6, math.inf):
            changed = model.weight_precision_.copy()
            changed[i] = alpha
            assert direct_evidence(x, y, changed, model.noise_precision_) < evidence + 2e-6


def test_sparsity_and_quality_match_their_definitions():
    x, y = sparse(rows=30)
    alpha = np.array([1.0, 2.0, np.inf, 0.5, np.inf, 3.0, np.inf, 1e4, np.inf, 1.0])
    posterior = RelevancePosterior(decompose(table_of(x, y))[0], torch.from_numpy(alpha), 2.0)
    s, q = posterior.sparsity_and_quality()
    for i in range(10):
        others = [j for j in range(10) if j != i and np.isfinite(alpha[j])]
        covariance = np.eye(30) / 2.0 + x[:, others] / alpha[others] @ x[:, others].T
        np.testing.assert_allclose(s[i], x[:, i] @ np.linalg.solve(covariance, x[:, i]), rtol=1e-7)
        np.testing.assert_allclose(q[i], x[:, i] @ np.linalg.solve(covariance, y), rtol=1e-7, atol=1e-9)


def test_ard_keeps_one_of_two_equal_columns_and_no_noise():
    x, y = sparse()
    twice = BayesianLinearRegression(hyperparameters="ard").fit(np.hstack([x, x]), y)
    once = BayesianLinearRegression(hyperparameters="ard").fit(x, y)
    assert twice.relevant_.sum() == once.relevant_.sum()
    np.testing.assert_allclose(twice.log_evidence_, once.log_evidence_, rtol=1e-9)
    constant = BayesianLinearRegression(hyperparameters="ard").fit(np.ones((20, 2)), y[:20])
    assert not constant.relevant_.any()
    p = constant.predict_dist(np.ones((3, 2)))
    np.testing.assert_allclose(p.mean, y[:20].mean(), rtol=1e-12)
    np.testing.assert_allclose(p.epistemic, constant.intercept_variance_, rtol=1e-9)


@pytest.mark.parametrize("seed", [2, 16, 69])  # the start with all weights once had one precision in any units
def test_ard_does_not_depend_on_units(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(25, 6)) @ rng.normal(size=(6, 6))
    weights = np.where(rng.random(6) < 0.5, rng.normal(size=6), 0.0) / x.std(0)
    y = x @ weights + 10.0 ** rng.uniform(-1.0, 0.7) * rng.normal(size=25)
    units = 10.0 ** rng.uniform(-4.0, 4.0, 6)
    here = BayesianLinearRegression(hyperparameters="ard").fit(x, y)
    there = BayesianLinearRegression(hyperparameters="ard").fit(x * units, y)
    np.testing.assert_array_equal(there.relevant_, here.relevant_)
    assert there.log_evidence_ == pytest.approx(here.log_evidence_, abs=1e-9)


def test_ard_finds_columns_that_are_relevant_only_together():
    """x and x³ together fit a sine, neither does alone: a search from the empty model would stop at one of them."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(60, 1))
    y = np.sin(2 * np.pi * x[:, 0]) + 0.1 * rng.normal(size=60)
    model = BayesianLinearRegression(Polynomial(3), hyperparameters="ard").fit(x, y)
    assert model.score(x, y) > 0.95
