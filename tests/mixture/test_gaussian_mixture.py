"""Mixtures of Gaussians by EM: against scikit-learn from the same start, closed forms, and difficult data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture as Reference
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo.errors import InputError
from credo.mixture import GaussianMixture, _covariances
from credo.mixture._covariances import update_factor

TYPES = ("full", "tied", "diag", "spherical")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@parametrize_with_checks([GaussianMixture(), GaussianMixture(2, covariance_type="diag")])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def clusters(rows: int = 400, features: int = 3, seed: int = 0) -> np.ndarray:
    """Four Gaussian clusters that overlap a little."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0.0, 3.0, (4, features))
    roots = rng.normal(0.0, 1.0, (4, features, features)) / np.sqrt(features)
    labels = rng.integers(4, size=rows)
    return means[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(rows, features)))


def start(X: np.ndarray, components: int, covariance_type: str, seed: int = 0) -> dict[str, np.ndarray]:
    """The arguments that start both libraries from the same parameters."""
    rng, features = np.random.default_rng(seed), X.shape[1]
    precision = 1.0 / X.var(0)
    precisions = {
        "full": np.stack([np.diag(precision)] * components),
        "tied": np.diag(precision),
        "diag": np.stack([precision] * components),
        "spherical": np.full(components, 1.0 / X.var(0).mean()),
    }[covariance_type]
    assert precisions.shape[-1] in (features, components)
    weights = rng.dirichlet(np.full(components, 5.0))
    means = X[rng.choice(len(X), components, replace=False)]
    return {"weights_init": weights, "means_init": means, "precisions_init": precisions}


@pytest.mark.parametrize("covariance_type", TYPES)
def test_steps_without_covariance_floor_match_scikit_learn(covariance_type):
    X = clusters()
    begin = start(X, 4, covariance_type)
    options = {"covariance_type": covariance_type, "tol": 0.0, "reg_covar": 0.0, "max_iter": 20}
    ours, theirs = GaussianMixture(4, **options, **begin).fit(X), Reference(4, **options, **begin).fit(X)
    assert ours.n_iter_ == theirs.n_iter_ == 20
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-9)
    new = clusters(seed=1)[:50]
    assert_allclose(ours.predict_proba(new), theirs.predict_proba(new), atol=1e-8)
    assert_allclose(ours.score_samples(new), theirs.score_samples(new), rtol=1e-8)
    assert_allclose([ours.bic(new), ours.aic(new)], [theirs.bic(new), theirs.aic(new)], rtol=1e-8)
    assert (ours.predict(new) == theirs.predict(new)).all()


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("data", [load_iris, load_wine, load_breast_cancer])
def test_log_likelihood_is_at_least_that_of_scikit_learn(data, covariance_type):
    X = data().data[:, :6]
    X = (X - X.mean(0)) / X.std(0)
    begin = start(X, 3, covariance_type)
    options = {"covariance_type": covariance_type, "reg_covar": 1e-9, **begin}
    ours, theirs = (kind(3, **options).fit(X) for kind in (GaussianMixture, Reference))
    # they add 1e-9 to variances of 1e-2 and more: each of at most 18 logs of one moves by up to 1e-7
    assert ours.score(X) >= theirs.score(X) - 2e-6
    assert ours.n_iter_ == theirs.n_iter_


@pytest.mark.parametrize("covariance_type", TYPES)
def test_bound_is_the_log_likelihood_and_never_falls(covariance_type):
    X = clusters()
    model = GaussianMixture(4, covariance_type=covariance_type, init_params="random_from_data", random_state=3).fit(X)
    assert model.lower_bound_ == pytest.approx(model.score_samples(X).sum(), rel=1e-12)
    assert (np.diff(model.lower_bounds_) >= -1e-9 * len(X)).all()
    assert len(model.lower_bounds_) == model.n_iter_ + 1
    assert_allclose(model.predict_proba(X).sum(1), 1.0)


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("features", [1, 3])
def test_one_component_matches_closed_form(covariance_type, features):
    X = clusters(features=features)
    model = GaussianMixture(covariance_type=covariance_type).fit(X)
    covariance = np.cov(X.T, ddof=0).reshape(features, features)
    expected = {
        "full": covariance[None],
        "tied": covariance,
        "diag": np.diag(covariance)[None],
        "spherical": np.diag(covariance).mean(keepdims=True),
    }[covariance_type]
    assert_allclose(model.means_, X.mean(0)[None], rtol=1e-12)
    assert_allclose(model.covariances_, expected, rtol=1e-10, atol=1e-12)
    assert_allclose(model.weights_, [1.0])
    assert model.converged_


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random", "random_from_data"])
def test_chunks_and_memory_maps_match_the_array(init_params, tmp_path):
    X = clusters(rows=3000)
    mapped = np.memmap(tmp_path / "X", X.dtype, "w+", shape=X.shape)
    mapped[:] = X
    model = GaussianMixture(4, init_params=init_params, random_state=0)
    whole = model.fit(X)
    expected, labels = (whole.means_, whole.covariances_, whole.weights_), whole.predict(X)
    for source in (mapped, lambda: iter(np.array_split(X, 7)), pd.DataFrame(X).to_numpy(np.float64)):
        again = model.fit(source)
        for ours, wanted in zip((again.means_, again.covariances_, again.weights_), expected, strict=True):
            assert_allclose(ours, wanted, rtol=1e-7, atol=1e-9)
        assert (again.predict(source) == labels).all()


def test_random_state_is_reproducible_and_leaves_global_generators_alone():
    X, before = clusters(), torch.get_rng_state()
    first, again = (GaussianMixture(4, init_params="random", random_state=5).fit(X) for _ in range(2))
    assert_allclose(first.means_, again.means_, rtol=0.0)
    assert_allclose(first.sample(5)[0], again.sample(5)[0], rtol=0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_more_starts_do_not_lower_the_bound():
    X = clusters(seed=4)
    options = {"init_params": "random_from_data", "random_state": 0}
    one, ten = (GaussianMixture(4, n_init=n, **options).fit(X) for n in (1, 10))
    assert ten.lower_bound_ >= one.lower_bound_


@pytest.mark.parametrize("covariance_type", TYPES)
def test_rows_whose_distance_overflows_raise(covariance_type):
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = GaussianMixture(2, covariance_type=covariance_type, random_state=0, reg_covar=1e-12).fit(1e-5 * X)
    with pytest.raises(InputError, match="their distance cannot be squared"):
        model.predict_proba([[1e151, 0.0]])
    assert np.isfinite(model.predict_proba([[1e140, 0.0]])).all()


@pytest.mark.parametrize("covariance_type", TYPES)
def test_samples_have_the_moments_of_the_mixture(covariance_type):
    model = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(clusters())
    X, labels = model.sample(40_000)
    share = np.bincount(labels, minlength=4) / len(X)
    # 4.5 standard errors: one such test in 150,000 fails by chance
    assert (np.abs(share - model.weights_) < 4.5 * np.sqrt(model.weights_ / len(X))).all()
    for k in range(4):
        mine = X[labels == k]
        covariance = np.linalg.inv(_precision_matrix(model, k))
        assert (np.abs(mine.mean(0) - model.means_[k]) < 4.5 * np.sqrt(np.diag(covariance) / len(mine))).all()
        spread = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / len(mine))
        assert (np.abs(np.cov(mine.T) - covariance) < 4.5 * spread).all()


def _precision_matrix(model: GaussianMixture, k: int) -> np.ndarray:
    precision = model.precisions_ if model.covariance_type == "tied" else model.precisions_[k]
    features = model.means_.shape[1]
    return precision if np.ndim(precision) == 2 else np.diag(np.broadcast_to(precision, features))


def test_covariance_floor_raises_only_small_eigenvalues():
    rng = np.random.default_rng(0)
    root, axes = rng.normal(size=(4, 4)), np.linalg.qr(rng.normal(size=(4, 4)))[0]
    for variances in ([3.0, 2.0, 1.0, 0.5], [3.0, 2.0, 1e-3, 0.0]):
        covariance = axes @ np.diag(variances) @ axes.T
        factor = np.triu(root) + 3.0 * np.eye(4)
        white = torch.from_numpy(factor.T @ covariance @ factor)
        found = update_factor(torch.from_numpy(factor), 0.5 * (white + white.T), floor=0.1).numpy()
        expected = axes @ np.diag(np.maximum(variances, 0.1)) @ axes.T
        assert_allclose(np.linalg.inv(found @ found.T), expected, atol=1e-12)
        assert_allclose(found, np.triu(found))
        assert (np.diag(found) > 0.0).all()


@pytest.mark.parametrize("covariance_type", ["diag", "tied"])
def test_fast_and_exact_sums_agree(covariance_type, monkeypatch):
    X = clusters()
    options = {"covariance_type": covariance_type, "random_state": 0, "max_iter": 10, "tol": 0.0}
    fast = GaussianMixture(4, **options).fit(X)
    monkeypatch.setattr(_covariances, "EXPANSION_LIMIT", 0.0)
    careful = GaussianMixture(4, **options).fit(X)
    assert_allclose(careful.covariances_, fast.covariances_, rtol=1e-9, atol=1e-11)
    assert_allclose(careful.means_, fast.means_, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("case", ["collinear", "constant", "copies", "one_hot", "outlier", "far_away", "all_equal"])
def test_singular_data_are_fitted_with_covariance_floor(case, covariance_type):
    X = clusters()
    rng = np.random.default_rng(0)
    data = {
        "collinear": np.column_stack([1e4 * X, 2e4 * X[:, 0] + 5.0]),
        "constant": np.column_stack([X, np.full(len(X), 7.0)]),
        "copies": np.repeat(X[:4], 25, axis=0),
        "one_hot": np.eye(5)[rng.integers(5, size=300)],
        "outlier": np.vstack([X, 1e5 + np.zeros((1, 3))]),
        "far_away": np.column_stack([X, 1e9 + X[:, 1]]),
        "all_equal": np.ones((20, 2)),
    }[case]
    model = GaussianMixture(4, covariance_type=covariance_type, random_state=0, max_iter=30).fit(data)
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_", "lower_bounds_"):
        assert np.isfinite(getattr(model, name)).all()
    assert model._components().min_variance >= 1e-6 * (1.0 - 1e-6)
    assert np.isfinite(model.score_samples(data)).all()


def test_as_many_components_as_rows():
    X = clusters(rows=12)
    model = GaussianMixture(12, random_state=0).fit(X)
    assert_allclose(np.sort(model.means_, axis=0), np.sort(X, axis=0), atol=1e-6)
    assert_allclose(model.covariances_, 1e-6 * np.broadcast_to(np.eye(3), (12, 3, 3)), atol=1e-12)


def test_fit_is_invariant_to_location_and_scale():
    X, scale, shift = clusters(), np.array([1e-2, 1.0, 1e5]), np.array([1e7, -1e5, 1e9])
    begin = start(X, 4, "full")
    moved = {
        "weights_init": begin["weights_init"],
        "means_init": begin["means_init"] * scale + shift,
        "precisions_init": begin["precisions_init"] / np.outer(scale, scale),
    }
    plain = GaussianMixture(4, reg_covar=0.0, **begin).fit(X)
    other = GaussianMixture(4, reg_covar=0.0, **moved).fit(X * scale + shift)
    # a value of 1e9 in float64 is off by 1e-7, and 1e7 beside a deviation of 0.03 by 1e-7 of it
    assert_allclose((other.means_ - shift) / scale, plain.means_, atol=1e-5)
    assert_allclose(other.covariances_ / np.outer(scale, scale), plain.covariances_, rtol=1e-5, atol=1e-5)
    gain = len(X) * np.log(scale).sum()
    assert other.lower_bound_ + gain == pytest.approx(plain.lower_bound_, abs=1e-3)


def test_some_initial_values_can_be_given():
    X = clusters()
    begin = start(X, 4, "full")
    model = GaussianMixture(4, means_init=begin["means_init"], max_iter=1, random_state=0)
    other = GaussianMixture(4, max_iter=1, random_state=0)
    assert model.fit(X).lower_bounds_[0] < other.fit(X).lower_bounds_[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"n_components": 2.5}, "n_components must be an integer"),
        ({"n_components": True}, "n_components must be an integer of at least 1, got True"),
        ({"n_components": 401}, "as many rows as there are components.*n_samples=400 and n_components=401"),
        ({"covariance_type": "ful"}, "unknown covariance_type 'ful': did you mean 'full'"),
        ({"init_params": "kmean"}, "unknown init_params 'kmean': did you mean 'kmeans'"),
        ({"max_iter": 0}, "max_iter must be an integer"),
        ({"n_init": 0}, "n_init must be an integer"),
        ({"tol": -1.0}, "tol must be a number of at least 0"),
        ({"reg_covar": -1.0}, "reg_covar must be a number of at least 0"),
        ({"n_components": 2, "weights_init": [0.5, 0.6]}, "weights_init must be 0 or more and sum to 1"),
        ({"n_components": 2, "means_init": [[1.0, 2.0]]}, r"means_init .* shape \(2, 3\), got shape \(1, 2\)"),
        ({"precisions_init": -np.eye(3)[None]}, "precisions_init must be symmetric and positive definite"),
        ({"precisions_init": np.triu(np.ones((1, 3, 3)))}, "precisions_init must be symmetric"),
        ({"precisions_init": [[-1.0, 1, 1]], "covariance_type": "diag"}, "precisions_init must be above 0, got -1"),
        ({"precisions_init": [1e9], "covariance_type": "spherical"}, "precisions_init .* 1/reg_covar = 1e\\+06"),
    ],
)
def test_bad_arguments_raise(arguments, words):
    with pytest.raises(InputError, match=words):
        GaussianMixture(**arguments).fit(clusters())


@pytest.mark.parametrize("covariance_type", TYPES)
def test_singular_covariance_without_floor_raises_and_leaves_estimator_unchanged(covariance_type):
    X = clusters()
    model = GaussianMixture(2, covariance_type=covariance_type, reg_covar=0.0, random_state=0).fit(X)
    before = model.means_.copy()
    with pytest.raises(InputError, match="raise reg_covar"):
        model.fit(np.repeat(X[:2], 10, axis=0))
    assert_allclose(model.means_, before)


def test_new_rows_are_checked():
    X = clusters()
    with pytest.raises(NotFittedError):
        GaussianMixture().predict(X)
    model = GaussianMixture(2, random_state=0).fit(X)
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="NaN"):
        model.score_samples(np.full((2, 3), np.nan))
    with pytest.raises(InputError, match="n_samples must be an integer of at least 1"):
        model.sample(0)
    with pytest.raises(InputError, match="read only once"):
        GaussianMixture(2).fit(iter([X]))


def test_unconverged_fit_warns():
    with pytest.warns(ConvergenceWarning, match="GaussianMixture has not converged after 1 iterations"):
        GaussianMixture(4, init_params="random", max_iter=1, random_state=0).fit(clusters())
