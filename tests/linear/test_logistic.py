"""Bayesian logistic regression against scikit-learn, autograd, quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import dblquad, quad
from scipy.linalg import LinAlgWarning
from scipy.special import expit, log_expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo import Predictive
from credo.errors import InputError
from credo.linear import BayesianLogisticRegression, Polynomial
from credo.linear._integrals import expected_sigmoid, expected_softmax, expected_softplus
from credo.linear._softmax import contrasts

METHODS = ("laplace", "variational")


def table(load) -> tuple[np.ndarray, np.ndarray]:
    x, y = load(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def tiny(rows: int = 12, columns: int = 2, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = (x[:, 0] + rng.normal(size=rows) > 0).astype(int)
    return x, y if classes == 2 else np.arange(rows) % classes


@parametrize_with_checks([BayesianLogisticRegression(method=method) for method in METHODS])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
@pytest.mark.parametrize("alpha", [0.3, 10.0])
def test_the_mode_is_scikit_learns_ridge_solution(load, alpha):
    x, y = table(load)
    ours = BayesianLogisticRegression(weight_precision=alpha, tol=1e-12).fit(x, y)
    theirs = LogisticRegression(C=1.0 / alpha, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_covariance_is_the_inverse_hessian_of_the_log_posterior(classes):
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
def test_evidences_against_quadrature(alpha):
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


def test_the_bound_for_many_classes_lies_below_the_evidence():
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


def test_boehnings_bound_is_laplaces_evidence_with_another_curvature():
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
def test_the_bound_never_falls_and_holds_the_best_precision(load, alpha):
    x, y = table(load)
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
def test_the_precision_by_evidence_is_the_best_of_all(name, method):
    """Against every α on a grid, by the number that is reported."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    noise = 0.0 if name == "separable" else 0.7
    y = (x[:, 0] + 0.5 * x[:, 1] + noise * rng.normal(size=60) > 0).astype(int)
    unit = 1e-7 if name == "other units" else 1.0
    if name in {"iris", "wine"}:
        x, y = table({"iris": load_iris, "wine": load_wine}[name])
    model = BayesianLogisticRegression(method=method, weight_precision="evidence").fit(unit * x, y)
    others = [
        BayesianLogisticRegression(method=method, weight_precision=unit**2 * alpha).fit(unit * x, y).lower_bound_
        for alpha in np.logspace(-2.0, 2.0, 9)
    ]
    # iterations stop where one gains less than tol a row; ten such may remain
    assert model.lower_bound_ >= max(others) - 10 * 1e-7 * len(x)


def test_probabilities_are_useful_where_classes_can_be_separated():
    """Laplace's estimate of the evidence calls for α = 1e-5 here, where 99 % of the rows are misclassified."""
    x, y = table(load_wine)
    model = BayesianLogisticRegression(weight_precision="evidence").fit(x, y)
    assert model.score(x, y) > 0.99
    assert -np.log(model.predict_proba(x)[np.arange(len(y)), y]).mean() < 0.1


@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_laplaces_bound_lies_below_the_evidence_and_close_to_it(alpha):
    x, y = tiny()
    signed = np.where(y == 1, 1.0, -1.0)[:, None] * x
    model = BayesianLogisticRegression(weight_precision=alpha, fit_intercept=False).fit(x, y)
    exact = log_integral(lambda w: log_expit(signed @ w).sum(), alpha)
    # the bound is exact, so that it exceeds the evidence by no more than the quadrature's error
    assert exact - 0.5 < model.lower_bound_ <= exact + 1e-6


def test_labels_without_signal_give_a_huge_precision():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 2)), np.tile([0, 1], 20)
    x = x - x.mean(0)
    for label in (0, 1):
        x[y == label] -= x[y == label].mean(0)
    model = BayesianLogisticRegression(weight_precision="evidence").fit(x, y)
    assert model.weight_precision_ == pytest.approx(1e8 * np.square(x).mean())
    np.testing.assert_allclose(model.predict_proba(x), 0.5, atol=1e-3)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1.999, 2.001, 5.0, 300.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.4, 6.0])
def test_expected_softplus_against_adaptive_quadrature(mean, scale):
    def integrand(z: float) -> float:
        return float(np.logaddexp(0.0, mean + scale * z)) * norm.pdf(z)

    turn = float(np.clip(-mean / scale, -10.0, 10.0)) if scale else 0.0  # where a wide softplus has its corner
    exact = (
        quad(integrand, -10, turn, epsabs=1e-12, limit=400)[0] + quad(integrand, turn, 10, epsabs=1e-12, limit=400)[0]
    )
    found = expected_softplus(*torch.tensor([[mean], [scale**2]], dtype=torch.float64))
    assert float(found) == pytest.approx(exact, abs=1e-9 * (1.0 + abs(mean) + scale))


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1.999, 2.001, 5.0, 300.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.4, 6.0])
def test_expected_sigmoid_against_adaptive_quadrature(mean, scale):
    # the two forms of the integral, each where scipy finds it easy
    if scale > 2.0:
        exact = quad(lambda t: expit(t) * expit(-t) * norm.cdf((mean - t) / scale), -40, 40, epsabs=1e-12, limit=200)[0]
    else:
        exact = quad(lambda z: expit(mean + scale * z) * norm.pdf(z), -10, 10, epsabs=1e-12, limit=200)[0]
    found = expected_sigmoid(*torch.tensor([[mean], [scale**2]], dtype=torch.float64))
    assert float(found) == pytest.approx(exact, abs=1e-9)


def test_expected_softmax_of_two_classes_is_the_sigmoid():
    mean, variance = torch.tensor([[0.3], [-2.0]], dtype=torch.float64), torch.tensor([2.0, 0.0], dtype=torch.float64)
    found = expected_softmax(mean, variance[:, None, None], contrasts(2, mean))
    # 512 points in one dimension: equidistribution to 1/512
    exact = expected_sigmoid(mean[:, 0], variance)
    torch.testing.assert_close(found, torch.stack((1.0 - exact, exact), 1), atol=1 / 512, rtol=0.0)


@pytest.mark.parametrize("classes", [3, 4, 7])
def test_contrasts_are_orthonormal_and_sum_to_zero(classes):
    g = contrasts(classes, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(g.mT @ g, torch.eye(classes - 1, dtype=torch.float64))
    torch.testing.assert_close(g.sum(0), torch.zeros(classes - 1, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("load", [load_breast_cancer, load_iris])
def test_probabilities_are_averages_over_the_posterior(method, load):
    x, y = table(load)
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
    x, y = table(load_breast_cancer)
    model = BayesianLogisticRegression(method=method).fit(x, y)
    plug_in = expit(x @ model.coef_[0] + model.intercept_[0])
    averaged = model.predict_proba(x)[:, 1]
    assert (abs(averaged - 0.5) <= abs(plug_in - 0.5) + 1e-9).all()
    assert ((averaged > 0.5) == (plug_in > 0.5)).all()


def test_predictive_splits_uncertainty():
    x, y = table(load_iris)
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
def test_labels_may_be_words_and_tables_frames(method):
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
def test_chunks_give_what_the_array_gives(method, load, tmp_path):
    x, y = table(load)
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


def test_a_basis_bends_the_boundary():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=(200, 1))
    y = (abs(x[:, 0]) < 1.5).astype(int)
    assert BayesianLogisticRegression().fit(x, y).score(x, y) < 0.7
    bent = BayesianLogisticRegression(Polynomial(2)).fit(x, y)
    assert bent.score(x, y) > 0.95
    assert bent.coef_.shape == (1, 2)


def test_the_global_random_state_is_neither_used_nor_changed():
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
        ({"max_iter": 0}, "max_iter must be 1 or more"),
        ({"tol": -1.0}, r"tol of an estimator"),
    ],
)
def test_settings_without_meaning(settings, message):
    x, y = tiny()
    with pytest.raises(InputError, match=message):
        BayesianLogisticRegression(**settings).fit(x, y)


def test_bad_tables():
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
    with pytest.raises(InputError, match="number of draws must be at least 1, got 0"):
        model.sample(0)


@pytest.mark.parametrize("classes", [2, 3])
def test_columns_that_are_constant_repeated_huge_or_far_away(classes):
    x, y = tiny(40, classes=classes)
    odd = np.column_stack((x, x[:, 0], np.full(len(x), 7.0), 1e8 * x[:, 1], 1e8 + x[:, 1]))
    for method in METHODS:
        model = BayesianLogisticRegression(method=method).fit(odd, y)
        assert np.isfinite(model.predict_proba(odd)).all()
    with pytest.warns(ConvergenceWarning, match="has not converged after 1 iteration"):
        BayesianLogisticRegression(max_iter=1).fit(x, y)


def test_features_that_float64_cannot_tell_apart_are_said():
    rng = np.random.default_rng(0)
    year = rng.uniform(1990.0, 2020.0, size=(40, 1))
    y = (np.sin((year[:, 0] - 1990.0) / 5.0) + 0.5 * rng.normal(size=40) > 0.0).astype(int)
    with pytest.warns(LinAlgWarning, match=r"may change the log evidence by .* nats.*: scale the inputs"):
        BayesianLogisticRegression(Polynomial(5), fit_intercept=False).fit(year, y)
    BayesianLogisticRegression(Polynomial(5), fit_intercept=False).fit((year - 2005.0) / 15.0, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_do_not_depend_on_where_the_origin_is(classes):
    x, y = tiny(40, classes=classes)
    here = BayesianLogisticRegression().fit(x, y)
    there = BayesianLogisticRegression().fit(x + 1000.0, y)
    # 1000 costs three of sixteen digits, squares twice as many
    np.testing.assert_allclose(there.predict_proba(x + 1000.0), here.predict_proba(x), atol=1e-9)
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-9)
    assert there.log_evidence_ == pytest.approx(here.log_evidence_, abs=1e-8)


def test_refitting_by_the_other_method_leaves_no_bound_behind():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(30, 2)), random.integers(2, size=30)
    model = BayesianLogisticRegression(method="variational").fit(X, y)
    before = model.lower_bound_
    assert hasattr(model, "lower_bounds_")
    assert not hasattr(model.set_params(method="laplace").fit(X, y), "lower_bounds_")
    assert model.lower_bound_ != before
