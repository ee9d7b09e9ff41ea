"""Bayesian logistic regression."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.linalg import LinAlgWarning
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo import Predictive
from credo.errors import InputError
from credo.linear import BayesianLogisticRegression, Polynomial

from .tables import standardized, tiny

METHODS = ("laplace", "variational")


@parametrize_with_checks([BayesianLogisticRegression(method=method) for method in METHODS])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
@pytest.mark.parametrize("alpha", [0.3, 10.0])
def test_mode_matches_scikit_learn(load, alpha):
    x, y = standardized(load)
    ours = BayesianLogisticRegression(weight_precision=alpha, tol=1e-12).fit(x, y)
    theirs = LogisticRegression(C=1.0 / alpha, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_covariance_is_the_inverse_hessian_of_the_log_posterior(classes):
    x, y = tiny(classes=classes)
    model = BayesianLogisticRegression(weight_precision=2.0, intercept_precision=0.5).fit(x, y)
    # the prior of the intercept is about the logit at the mean of x
    to_centered = torch.eye(3, dtype=torch.float64)
    to_centered[-1, :-1] = torch.tensor(x.mean(0))
    phi, labels = torch.tensor(np.column_stack((x, np.ones(len(x))))), torch.tensor(y)
    precision = torch.tensor([2.0, 2.0, 0.5])

    def log_joint(weights: torch.Tensor) -> torch.Tensor:
        w = weights.view(-1, 3)
        logits = phi @ w.mT
        if classes == 2:
            logits = torch.cat((torch.zeros_like(logits), logits), 1)
        squares = precision * (w @ to_centered.mT).square()
        return logits.log_softmax(1).gather(1, labels[:, None]).sum() - 0.5 * squares.sum()

    mean = torch.tensor(np.column_stack((model.coef_, model.intercept_)).ravel())
    covariance = torch.linalg.inv(-torch.autograd.functional.hessian(log_joint, mean))
    if classes == 3:
        # the shift that all classes share keeps its prior, and is left out
        back = torch.linalg.inv(to_centered)
        shift = back @ torch.diag(1.0 / precision).double() @ back.mT
        covariance -= torch.kron(torch.full((3, 3), 1.0 / 3.0, dtype=torch.float64), shift)
    np.testing.assert_allclose(model.covariance_, covariance, rtol=1e-9, atol=1e-9)
    # Newton's last step gained less than tol per row, and the error behind it is of the order of that gain
    gradient = torch.autograd.functional.jacobian(log_joint, mean)
    assert float(gradient.abs().max()) < 1e-7 * len(x)


def test_probabilities_are_useful_for_separable_classes():
    """Laplace's estimate of the evidence calls for α = 1e-5 here, where 99 % of the rows are misclassified."""
    x, y = standardized(load_wine)
    model = BayesianLogisticRegression(weight_precision="evidence").fit(x, y)
    assert model.score(x, y) > 0.99
    assert -np.log(model.predict_proba(x)[np.arange(len(y)), y]).mean() < 0.1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
def test_probabilities_are_averages_over_the_posterior(method, load):
    x, y = standardized(load)
    x = x[:, :4]
    model = BayesianLogisticRegression(method=method, weight_precision=0.1, random_state=0).fit(x, y)
    draws = model.sample(4000)
    logits = np.einsum("nd,scd->snc", x, draws.coef) + draws.intercept[:, None]
    logits = np.concatenate((np.zeros_like(logits), logits), -1) if logits.shape[-1] == 1 else logits
    p = torch.tensor(logits).softmax(-1).numpy()
    errors = p.std(0) / math.sqrt(len(p))
    # 4 standard errors of the draws, and the error of the quadrature for several classes
    allowance = 0.0 if len(model.classes_) == 2 else 1e-3
    assert (abs(model.predict_proba(x) - p.mean(0)) <= 4.0 * errors + allowance + 1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_averaging_makes_probabilities_less_extreme(method):
    x, y = standardized(load_breast_cancer)
    model = BayesianLogisticRegression(method=method).fit(x, y)
    plug_in = expit(x @ model.coef_[0] + model.intercept_[0])
    averaged = model.predict_proba(x)[:, 1]
    assert (abs(averaged - 0.5) <= abs(plug_in - 0.5) + 1e-9).all()
    assert ((averaged > 0.5) == (plug_in > 0.5)).all()


def test_predictive_splits_the_uncertainty():
    x, y = standardized(load_iris)
    model = BayesianLogisticRegression(random_state=0).fit(x, y)
    p = model.predict_dist(np.vstack((x, 30.0 * x[:1])), samples=2000)
    assert isinstance(p, Predictive)
    assert (p.n_draws, len(p)) == (2000, len(x) + 1)
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic)
    errors = p.draws.std(0) / math.sqrt(2000)
    # 4 standard errors and the quadrature's error
    assert bool(((p.mean[:-1] - torch.tensor(model.predict_proba(x))).abs() <= 4.0 * errors[:-1] + 1e-3).all())
    again = model.predict_dist(x, samples=2000)
    torch.testing.assert_close(again.mean, p.mean[:-1])


def test_separable_classes_have_a_finite_posterior():
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    for method in METHODS:
        model = BayesianLogisticRegression(method=method, weight_precision=1e-3).fit(x, [0, 0, 1, 1])
        assert np.isfinite(model.covariance_).all()
        assert np.isfinite(model.coef_).all()
        assert model.score(x, [0, 0, 1, 1]) == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_string_labels_and_data_frames(method):
    x, y = load_iris(return_X_y=True, as_frame=True)
    words = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    model = BayesianLogisticRegression(method=method).fit(x, words)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert model.score(x, words) > 0.9
    assert list(model.feature_names_in_) == list(x.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename(columns=str.upper))
    assert isinstance(pd.Series(model.predict(x)).iloc[0], str)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
def test_chunks_give_the_result_of_the_array(method, load, tmp_path):
    x, y = standardized(load)
    x, y = x[:150, :4], y[:150]
    words = np.array(["a", "b", "c"])[y]

    def chunks():
        # iris comes sorted: the first chunk has only one class
        for start in range(0, len(x), 45):
            yield x[start : start + 45], words[start : start + 45]

    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = BayesianLogisticRegression(method=method).fit(x, words)
    for other in (
        BayesianLogisticRegression(method=method).fit(chunks),
        BayesianLogisticRegression(method=method).fit(mapped, words),
    ):
        np.testing.assert_allclose(other.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(other.predict_proba(x), whole.predict_proba(x), atol=1e-8)
    with pytest.raises(InputError, match="only once"):
        BayesianLogisticRegression(method=method).fit(chunks())


def test_basis_gives_a_nonlinear_boundary():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=(200, 1))
    y = (abs(x[:, 0]) < 1.5).astype(int)
    assert BayesianLogisticRegression().fit(x, y).score(x, y) < 0.7
    bent = BayesianLogisticRegression(Polynomial(2)).fit(x, y)
    assert bent.score(x, y) > 0.95
    assert bent.coef_.shape == (1, 2)


def test_global_random_state_is_neither_used_nor_changed():
    x, y = tiny()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    model = BayesianLogisticRegression(random_state=3).fit(x, y)
    first, second = model.sample(5), model.sample(5)
    model.predict_dist(x)
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(first.coef, second.coef)
    assert first.coef.shape == (5, 1, 2)
    assert first.intercept.shape == (5, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lapalce"}, "did you mean 'laplace'"),
        ({"weight_precision": 0.0}, "weight_precision must be a positive number, got 0.0"),
        ({"weight_precision": "evidenc"}, "did you mean 'evidence'"),
        ({"intercept_precision": -1.0}, "intercept_precision must be a positive number"),
        ({"basis": "wavelet"}, "unknown basis"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1"),
        ({"tol": -1.0}, r"tol of an estimator"),
    ],
)
def test_bad_parameters_raise(settings, message):
    x, y = tiny()
    with pytest.raises(InputError, match=message):
        BayesianLogisticRegression(**settings).fit(x, y)


def test_bad_data_raise():
    x, y = tiny()
    model = BayesianLogisticRegression()
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(NotFittedError):
        model.sample()
    with pytest.raises(InputError, match="one class, 1"):
        model.fit(x, np.ones(len(x), int))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(x > 1, np.nan, x), y)
    with pytest.raises(ValueError, match="continuous"):
        model.fit(x, x[:, 0])
    assert not hasattr(model, "classes_")
    model.fit(x, y)
    with pytest.raises(InputError, match="one class"):
        model.fit(x, np.ones(len(x), int))
    assert len(model.classes_) == 2
    with pytest.raises(ValueError, match="features"):
        model.predict(x[:, :1])
    with pytest.raises(InputError, match="n_samples must be an integer of at least 1, got 0"):
        model.sample(0)


@pytest.mark.parametrize("classes", [2, 3])
def test_constant_repeated_huge_and_shifted_columns(classes):
    x, y = tiny(40, classes=classes)
    odd = np.column_stack((x, x[:, 0], np.full(len(x), 7.0), 1e8 * x[:, 1], 1e8 + x[:, 1]))
    for method in METHODS:
        model = BayesianLogisticRegression(method=method).fit(odd, y)
        assert np.isfinite(model.predict_proba(odd)).all()
    with pytest.warns(ConvergenceWarning, match="has not converged after 1 iteration"):
        BayesianLogisticRegression(max_iter=1).fit(x, y)


def test_nearly_collinear_features_warn():
    rng = np.random.default_rng(0)
    year = rng.uniform(1990.0, 2020.0, size=(40, 1))
    y = (np.sin((year[:, 0] - 1990.0) / 5.0) + 0.5 * rng.normal(size=40) > 0.0).astype(int)
    with pytest.warns(LinAlgWarning, match=r"may change the log evidence by .* nats.*: scale the inputs"):
        BayesianLogisticRegression(Polynomial(5), fit_intercept=False).fit(year, y)
    BayesianLogisticRegression(Polynomial(5), fit_intercept=False).fit((year - 2005.0) / 15.0, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_do_not_depend_on_the_origin(classes):
    x, y = tiny(40, classes=classes)
    here = BayesianLogisticRegression().fit(x, y)
    there = BayesianLogisticRegression().fit(x + 1000.0, y)
    # 1000 costs three of sixteen digits, squares twice as many
    np.testing.assert_allclose(there.predict_proba(x + 1000.0), here.predict_proba(x), atol=1e-9)
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-9)
    assert there.log_evidence_ == pytest.approx(here.log_evidence_, abs=1e-8)


def test_refitting_with_the_other_method_removes_the_bounds():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(30, 2)), random.integers(2, size=30)
    model = BayesianLogisticRegression(method="variational").fit(X, y)
    before = model.lower_bound_
    assert hasattr(model, "lower_bounds_")
    assert not hasattr(model.set_params(method="laplace").fit(X, y), "lower_bounds_")
    assert model.lower_bound_ != before
