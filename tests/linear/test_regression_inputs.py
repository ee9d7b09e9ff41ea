"""Inputs of Bayesian linear regression: scikit-learn's checks, chunks, and errors."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils.data import DataLoader, TensorDataset

from credo.errors import InputError
from credo.linear import BayesianLinearRegression, Polynomial

RNG = np.random.default_rng(0)
X = RNG.normal(size=(700, 3))
Y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.3 * RNG.normal(size=700)


@parametrize_with_checks(
    [
        BayesianLinearRegression(),
        BayesianLinearRegression("gaussian"),
        BayesianLinearRegression(hyperparameters="variational"),
        BayesianLinearRegression(hyperparameters="ard"),
        BayesianLinearRegression(weight_precision=1.0, noise_precision=1.0),
    ]
)
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def chunks():
    for start in range(0, 700, 90):
        yield X[start : start + 90], Y[start : start + 90]


@pytest.mark.parametrize("way", ["evidence", "variational", "ard"])
def test_chunks_give_the_result_of_the_array(way, tmp_path):
    np.save(tmp_path / "x.npy", X)
    whole = BayesianLinearRegression("polynomial", hyperparameters=way).fit(X, Y)
    sources = {
        "memory map": (np.load(tmp_path / "x.npy", mmap_mode="r"), Y),
        "function": (chunks, None),
        "iterator": (chunks(), None),
        "loader": (DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=64), None),
        "frame": (pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(Y)),
        "fortran order": (np.asfortranarray(X), Y),
    }
    for name, (x, y) in sources.items():
        model = BayesianLinearRegression("polynomial", hyperparameters=way).fit(x, y)
        np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-5, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(model.lower_bound_, whole.lower_bound_, rtol=1e-10, err_msg=name)
        new = X[:5] if name != "frame" else x[:5]
        np.testing.assert_allclose(model.predict(new), whole.predict(X[:5]), rtol=1e-5, err_msg=name)


def test_many_features_are_computed_for_few_rows_at_a_time():
    seen = []

    def waves(x):
        seen.append(len(x))
        return np.sin(x[:, :1] * np.arange(1, 401))

    x = np.linspace(0.0, 1.0, 5000)[:, None]
    BayesianLinearRegression(waves, weight_precision=1.0, noise_precision=1.0).fit(x, x[:, 0]).predict(x)
    assert max(seen) <= 400  # no more numbers than are kept of all rows, 401²


def test_basis_that_depends_on_the_range_reads_chunks_twice():
    model = BayesianLinearRegression("gaussian").fit(chunks)
    np.testing.assert_allclose(model.coef_, BayesianLinearRegression("gaussian").fit(X, Y).coef_, rtol=1e-6)
    with pytest.raises(InputError, match="read only once"):
        BayesianLinearRegression("gaussian").fit(chunks())


def test_pipelines_grid_search_and_pickle():
    pipeline = make_pipeline(StandardScaler(), BayesianLinearRegression("polynomial")).fit(X, Y)
    assert pipeline.score(X, Y) > 0.9
    search = GridSearchCV(BayesianLinearRegression(), {"basis": [Polynomial(1), Polynomial(2)]}).fit(X, Y)
    assert search.best_score_ > 0.9
    model = BayesianLinearRegression("fourier", random_state=0).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.partial_fit(X, Y).coef_, model.partial_fit(X, Y).coef_)
    assert not hasattr(clone(model), "coef_")


def test_float32_input_is_computed_in_float64():
    model = BayesianLinearRegression().fit(X.astype(np.float32), Y.astype(np.float32))
    assert model.coef_.dtype == np.float64
    np.testing.assert_allclose(model.coef_, BayesianLinearRegression().fit(X, Y).coef_, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperparameters": "evidnce"}, "did you mean 'evidence'"),
        ({"basis": "spline"}, "unknown basis"),
        ({"weight_precision": 0.0}, "weight_precision must be a positive number"),
        ({"noise_precision": -1.0}, "noise_precision must be"),
        ({"noise_precision": np.inf}, "noise_precision must be"),
        ({"weight_precision": [1.0, 2.0]}, "weight_precision must be"),
        ({"weight_precision": "auto"}, "weight_precision must be"),
        ({"noise_prior": (1.0, 0.0)}, "the rate of noise_prior must be a positive number"),
        ({"weight_prior": (1.0,)}, "weight_prior must be None or a pair"),
        ({"weight_prior": 1.0}, "weight_prior must be None or a pair"),
        ({"prior_mean": [0.0, 1.0]}, r"prior_mean must be a number or of shape \[3\]"),
        ({"prior_mean": "zero"}, "prior_mean must contain finite numbers"),
        ({"prior_mean": np.nan}, "prior_mean must contain finite numbers"),
        ({"prior_covariance": np.eye(2)}, r"prior_covariance must be symmetric, \[3, 3\]"),
        ({"prior_covariance": np.diag([1.0, 1.0, -1.0])}, "positive definite"),
        ({"prior_covariance": np.triu(np.ones((3, 3)))}, "symmetric"),
        ({"hyperparameters": "ard", "weight_precision": 1.0}, "'ard' learns a precision for every weight"),
        ({"hyperparameters": "ard", "prior_covariance": np.eye(3)}, "'ard' learns"),
        ({"tol": -1.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"device": "tpu9"}, "device must be"),
    ],
)
def test_bad_parameters_raise_and_leave_the_estimator_unchanged(options, message):
    model = BayesianLinearRegression(**options)
    with pytest.raises(InputError, match=message):
        model.fit(X, Y)
    assert not hasattr(model, "coef_")
    fitted = BayesianLinearRegression().fit(X, Y)
    coef = fitted.coef_
    with pytest.raises(InputError):
        fitted.set_params(**options).fit(2 * X, Y)
    assert fitted.coef_ is coef


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:1], Y[:1], "1 sample"),
        (np.where(X > 2, np.nan, X), Y, "NaN"),
        (X, np.where(Y > 5, np.inf, Y), "infinity"),
        (X, Y[:10], "inconsistent"),
        (X, None, "requires y"),
        (X, np.stack([Y, Y], axis=1), "1d array"),
        (X, np.array(["a"] * 700), "could not convert"),
        (X[:, 0], Y, "2D array"),
        (X[:0], Y[:0], "0 sample"),
        (chunks, Y, "y must be None"),
        (lambda: iter([X]), None, "pair"),
        (lambda: iter([]), None, "no rows"),
        (lambda: iter([(X, Y), (X[:, :2], Y)]), None, "features"),
    ],
)
def test_bad_data_raise(x, y, message):
    with pytest.raises(ValueError, match=message):
        BayesianLinearRegression().fit(x, y)


def test_unfitted_models_and_wrong_columns_raise():
    for call in (lambda m: m.predict(X), lambda m: m.predict_dist(X), lambda m: m.sample(), lambda m: m.sample_y(X)):
        with pytest.raises(NotFittedError):
            call(BayesianLinearRegression())
    model = BayesianLinearRegression().fit(X, Y)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], Y)
    with pytest.raises(InputError, match="n_samples"):
        model.sample(0)


def test_basis_with_varying_number_of_features_raises():
    with pytest.raises(InputError, match="same features for all rows"):
        BayesianLinearRegression(lambda x: x[:, : 1 + len(x) // 100]).fit(lambda: iter([(X, Y), (X[:50], Y[:50])]))


def test_unconverged_search_warns():
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        model = BayesianLinearRegression(hyperparameters="ard", max_iter=1).fit(X, Y)
    assert not model.converged_
