"""Laplace's approximation and the quadratic bounds of logistic regression."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.special import log_expit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from credo.linear import BayesianLogisticRegression

from .tables import standardized, tiny


def log_integral(log_likelihood, alpha: float) -> float:
    """log ∫ p(y | w) p(w) dw for two weights of prior precision ``alpha``, by quadrature."""
    reach = 8.0 / math.sqrt(alpha)

    def joint(a: float, b: float) -> float:
        log_prior = math.log(alpha / (2.0 * math.pi)) - 0.5 * alpha * (a * a + b * b)
        return math.exp(log_likelihood(np.array([a, b])) + log_prior)

    value, error = dblquad(joint, -reach, reach, -reach, reach, epsabs=0.0, epsrel=1e-8)
    assert error < 1e-6 * value
    return math.log(value)


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_evidence_and_bounds_against_quadrature(alpha):
    x, y = tiny()
    signed = np.where(y == 1, 1.0, -1.0)[:, None] * x
    settings = {"weight_precision": alpha, "fit_intercept": False}
    exact = log_integral(lambda w: log_expit(signed @ w).sum(), alpha)

    laplace = BayesianLogisticRegression(method="laplace", **settings).fit(x, y)
    # Laplace's method has a relative error of order 1/N
    assert abs(laplace.log_evidence_ - exact) < 1.0 / len(x)

    variational = BayesianLogisticRegression(method="variational", tol=1e-10, **settings).fit(x, y)
    second_moment = variational.covariance_ + np.outer(variational.coef_, variational.coef_)
    xi = np.sqrt(np.einsum("nd,de,ne->n", x, second_moment, x))
    curvature = np.tanh(xi / 2.0) / (4.0 * xi)

    def jaakkola_jordan(w: np.ndarray) -> float:
        z = signed @ w
        return float((log_expit(xi) + 0.5 * (z - xi) - curvature * (z**2 - xi**2)).sum())

    assert variational.lower_bound_ == pytest.approx(log_integral(jaakkola_jordan, alpha), abs=1e-6)
    assert variational.lower_bound_ < exact


def test_bound_for_many_classes_lies_below_the_evidence():
    x, y = tiny(rows=9, columns=1, classes=3)
    settings = {"weight_precision": 1.0, "fit_intercept": False}
    model = BayesianLogisticRegression(method="variational", **settings).fit(x, y)
    # three weights, integrated over the prior by Monte Carlo: the likelihood lies in [0, 1], so its mean has the
    # standard error of the draws
    w = np.random.default_rng(0).normal(size=(200_000, 3))
    logits = torch.tensor(w[:, None, :] * x)
    log_p = logits.log_softmax(-1)[:, np.arange(len(y)), y].sum(1)
    likelihood = log_p.exp()
    error = float(likelihood.std() / math.sqrt(len(w)))
    assert model.lower_bound_ <= math.log(float(likelihood.mean()) + 4.0 * error)


def test_boehning_bound_is_laplace_evidence_with_another_curvature():
    x, y = tiny(classes=3)
    settings = {"weight_precision": 1.5, "fit_intercept": False, "tol": 1e-12}
    bound = BayesianLogisticRegression(method="variational", **settings).fit(x, y)
    laplace = BayesianLogisticRegression(method="laplace", **settings).fit(x, y)
    np.testing.assert_allclose(bound.coef_, laplace.coef_, atol=1e-6)
    # weights of all classes, with the shift that the prior alone decides, or without it
    contrast = np.eye(3) - 1.0 / 3.0
    shift = np.kron(np.full((3, 3), 1.0 / 3.0), np.eye(2) / 1.5)
    curvature = np.kron(0.5 * contrast, x.T @ x) + 1.5 * np.eye(6)
    np.testing.assert_allclose(bound.covariance_, np.linalg.inv(curvature) - shift, atol=1e-10)
    log_det = [np.linalg.slogdet(model.covariance_ + shift)[1] for model in (bound, laplace)]
    assert bound.lower_bound_ == pytest.approx(laplace.log_evidence_ + 0.5 * (log_det[0] - log_det[1]), abs=1e-8)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
@pytest.mark.parametrize("alpha", [1.0, "evidence"])
def test_bound_never_falls_and_has_the_best_precision(load, alpha):
    x, y = standardized(load)
    model = BayesianLogisticRegression(method="variational", weight_precision=alpha).fit(x, y)
    gains = np.diff(model.lower_bounds_)
    assert (gains >= -1e-9 * abs(model.lower_bound_)).all()
    assert model.converged_
    assert model.log_evidence_ is None
    if alpha == "evidence":
        for factor in (0.8, 1.25):
            other = clone(model).set_params(weight_precision=factor * model.weight_precision_).fit(x, y)
            assert other.lower_bound_ < model.lower_bound_


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("noisy", "laplace"),
        ("separable", "laplace"),
        ("iris", "laplace"),
        ("other units", "laplace"),
        ("noisy", "variational"),
        ("wine", "variational"),
    ],
)
def test_precision_selected_by_evidence_is_the_best(name, method):
    """Against every α on a grid, by the number that is reported."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    noise = 0.0 if name == "separable" else 0.7
    y = (x[:, 0] + 0.5 * x[:, 1] + noise * rng.normal(size=60) > 0).astype(int)
    unit = 1e-7 if name == "other units" else 1.0
    if name in {"iris", "wine"}:
        x, y = standardized({"iris": load_iris, "wine": load_wine}[name])
    model = BayesianLogisticRegression(method=method, weight_precision="evidence").fit(unit * x, y)
    others = [
        BayesianLogisticRegression(method=method, weight_precision=unit**2 * alpha).fit(unit * x, y).lower_bound_
        for alpha in np.logspace(-2.0, 2.0, 9)
    ]
    # iterations stop where one gains less than tol a row; ten such may remain
    assert model.lower_bound_ >= max(others) - 10 * 1e-7 * len(x)


@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_laplace_bound_lies_close_below_the_evidence(alpha):
    x, y = tiny()
    signed = np.where(y == 1, 1.0, -1.0)[:, None] * x
    model = BayesianLogisticRegression(weight_precision=alpha, fit_intercept=False).fit(x, y)
    exact = log_integral(lambda w: log_expit(signed @ w).sum(), alpha)
    # the bound is exact, so that it exceeds the evidence by no more than the quadrature's error
    assert exact - 0.5 < model.lower_bound_ <= exact + 1e-6


def test_labels_without_signal_give_a_large_precision():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 2)), np.tile([0, 1], 20)
    x = x - x.mean(0)
    for label in (0, 1):
        x[y == label] -= x[y == label].mean(0)
    model = BayesianLogisticRegression(weight_precision="evidence").fit(x, y)
    assert model.weight_precision_ == pytest.approx(1e8 * np.square(x).mean())
    np.testing.assert_allclose(model.predict_proba(x), 0.5, atol=1e-3)
