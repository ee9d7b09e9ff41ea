"""What the three kinds of PCA share: scikit-learn's checks, rows in chunks, and bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils.data import DataLoader

import credo
from credo.decomposition import PCA, BayesianPCA, ProbabilisticPCA
from credo.errors import InputError
from decomposition.tables import planted_table, spread_table

MODELS = (
    PCA(2),
    PCA(0.9, whiten=True),
    ProbabilisticPCA(2),
    ProbabilisticPCA(2, method="em", tol=1e-10, random_state=0),
    BayesianPCA(tol=1e-10),
)
TABLE = planted_table(9000, 20, 2)


@parametrize_with_checks([PCA(), PCA(1), ProbabilisticPCA(), ProbabilisticPCA(1, method="em"), BayesianPCA()])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves, and ask for very few steps
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def assert_same(found, expected):
    for name in ("mean_", "components_", "explained_variance_", "noise_variance_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-10, err_msg=name)


def pieces():
    yield from np.array_split(TABLE, 13)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_chunks_and_memory_maps_match_the_array(model, tmp_path):
    np.save(tmp_path / "table.npy", TABLE)
    whole = clone(model).fit(TABLE)
    sources = {
        "memory map": np.load(tmp_path / "table.npy", mmap_mode="r"),
        "function": pieces,
        "iterator": pieces(),
        "loader": DataLoader(torch.from_numpy(TABLE), batch_size=500),
        "frame": pd.DataFrame(TABLE).rename(columns=str),
        "fortran order": np.asfortranarray(TABLE),
        "other strides": np.repeat(TABLE, 2, axis=0)[::2],
        "read-only": np.broadcast_to(TABLE, TABLE.shape),
    }
    for source in sources.values():
        assert_same(clone(model).fit(source), whole)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_partial_fit_matches_fit(model):
    whole, step = clone(model).fit(TABLE), clone(model)
    for piece in pieces():
        step.partial_fit(piece)
    assert_same(step, whole)
    assert step.n_samples_ == len(TABLE)
    continued = clone(model).fit(TABLE[:4000]).partial_fit(TABLE[4000:])
    assert_same(continued, whole)
    assert_same(continued.fit(TABLE), whole)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_partial_fit_accepts_single_rows(model):
    table = spread_table(40)
    step = clone(model).fit(table[:30])
    for row in table[30:]:
        step.partial_fit(row[None])
    assert_same(step, clone(model).fit(table))


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_pickle_round_trip_and_numpy_attributes(model):
    fitted = clone(model).fit(TABLE)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(TABLE[:5]), fitted.transform(TABLE[:5]))
    again.partial_fit(TABLE[:100])
    learned = {name: value for name, value in vars(fitted).items() if name.endswith("_")}
    assert not any(isinstance(value, torch.Tensor) for value in learned.values())


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_feature_names_out(model):
    frame = pd.DataFrame(TABLE[:200]).rename(columns="c{}".format)
    fitted = clone(model).set_output(transform="pandas").fit(frame)
    name = type(model).__name__.lower()
    assert list(fitted.transform(frame).columns) == [f"{name}{i}" for i in range(fitted.n_components_)]
    assert list(fitted.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        fitted.transform(frame.rename(columns={"c0": "other"}))


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_failed_fit_leaves_estimator_unchanged(model):
    fitted = clone(model).fit(TABLE)
    before = fitted.transform(TABLE[:5])
    with pytest.raises(InputError, match="no variance"):
        fitted.fit(np.ones((50, 4)))
    np.testing.assert_array_equal(fitted.transform(TABLE[:5]), before)
    untouched = clone(model)
    with pytest.raises(InputError):
        untouched.fit(np.ones((50, 4)))
    assert vars(untouched) == vars(clone(model))


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_bad_input_raises(model):
    for method in ("transform", "inverse_transform", "score", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(TABLE)
    for method in ("sample", "get_covariance", "get_precision"):
        with pytest.raises(NotFittedError):
            getattr(model, method)()
    fitted = clone(model).fit(TABLE)
    with pytest.raises(ValueError, match="expecting 20 features"):
        fitted.transform(TABLE[:, :3])
    with pytest.raises(ValueError, match="20 features"):
        fitted.partial_fit(TABLE[:, :3])
    with pytest.raises(ValueError, match=r"n_samples = 1|2 rows|3 rows"):
        clone(model).fit(TABLE[:1])
    with pytest.raises(ValueError, match="infinity"):
        clone(model).fit(np.where(TABLE > 3.0, np.inf, TABLE))
    with pytest.raises(InputError, match="n must be an integer of at least 1"):
        fitted.sample(0)
    with pytest.raises(InputError, match="device"):
        clone(model).set_params(device="abacus").fit(TABLE)


def test_pipeline_and_grid_search():
    y = PCA(2).fit_transform(TABLE).sum(1)
    search = GridSearchCV(make_pipeline(PCA(), LinearRegression()), {"pca__n_components": [1, 2, 10]}, cv=3)
    assert search.fit(TABLE, y).best_score_ > 0.99
    assert search.best_params_["pca__n_components"] >= 2
    # held-out likelihood finds the planted dimension
    by_likelihood = GridSearchCV(ProbabilisticPCA(), {"n_components": [1, 2, 3, 5]}, cv=5).fit(TABLE)
    assert by_likelihood.best_params_ == {"n_components": 2}


def test_package_is_imported_lazily():
    assert credo.decomposition.PCA is PCA
