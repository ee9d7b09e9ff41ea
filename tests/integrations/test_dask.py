"""Classical models on Dask: the result of one machine up to rounding, also when a worker is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import credo
from credo.conjugate import BetaBernoulli, NormalGamma
from credo.decomposition import PCA, BayesianPCA, ProbabilisticPCA
from credo.errors import InputError
from credo.linear import BayesianLinearRegression, BayesianLogisticRegression
from credo.mixture import GaussianMixture, KMeans, VariationalGaussianMixture
from credo.tabular.predictions import to_frame

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]

dask = pytest.importorskip("dask", reason="needs the extra dask")
da = pytest.importorskip("dask.array", reason="needs the extra dask")
dd = pytest.importorskip("dask.dataframe", reason="needs the extra dask")

N, D, CHUNK = 5_000, 4, 430


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def data():
    """Three clusters far from the origin, and a target."""
    rng = np.random.default_rng(0)
    centers = 100.0 + 6.0 * rng.normal(size=(3, D))
    X = centers[rng.integers(0, 3, N)] + rng.normal(size=(N, D))
    return X, X @ np.arange(1.0, D + 1.0) + rng.normal(size=N)


def learned(model) -> dict[str, np.ndarray]:
    """All numbers that a fit leaves behind, apart from those of iterations that rounding may add."""
    left_out = {"n_iter_", "lower_bounds_"}
    return {
        name: np.asarray(value)
        for name, value in vars(model).items()
        if name.endswith("_") and name not in left_out and np.asarray(value).dtype.kind in "fi"
    }


UNSUPERVISED = {
    "kmeans": lambda: KMeans(3, random_state=0),
    "mixture by EM": lambda: GaussianMixture(3, random_state=0),
    "variational mixture": lambda: VariationalGaussianMixture(4, random_state=0, max_iter=300),
    "PCA": lambda: PCA(2),
    "probabilistic PCA": lambda: ProbabilisticPCA(2),
    "Bayesian PCA": lambda: BayesianPCA(),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("make", UNSUPERVISED.values(), ids=UNSUPERVISED)
def test_fit_is_that_of_one_machine(make, data):
    """Sums in another order: 1e-8 relative to the largest number of each attribute, after iterations."""
    X = data[0]
    alone, parts = make().fit(X), make().fit(da.from_array(X, chunks=(CHUNK, 2)))
    found = learned(parts)
    for name, value in learned(alone).items():
        scale = np.abs(value).max() if value.size else 1.0
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-8 * scale, err_msg=name)


@pytest.mark.parametrize("hyperparameters", ["evidence", "variational", "ard"])
def test_regression_is_that_of_one_machine(hyperparameters, data):
    X, y = data
    alone = BayesianLinearRegression(hyperparameters=hyperparameters).fit(X, y)
    parts = BayesianLinearRegression(hyperparameters=hyperparameters).fit(
        da.from_array(X, chunks=(CHUNK, -1)), da.from_array(y, chunks=700)
    )
    np.testing.assert_allclose(parts.coef_, alone.coef_, rtol=1e-9)
    np.testing.assert_allclose(parts.sigma_, alone.sigma_, rtol=1e-8, atol=1e-14)
    assert parts.noise_precision_ == pytest.approx(alone.noise_precision_, rel=1e-9)
    assert parts.lower_bound_ == pytest.approx(alone.lower_bound_, rel=1e-9)


def test_logistic_regression_on_partitions(data):
    X, y = data
    labels = (y > np.median(y)).astype(int)
    alone = BayesianLogisticRegression().fit(X, labels)
    parts = BayesianLogisticRegression().fit(da.from_array(X, chunks=(CHUNK, -1)), da.from_array(labels, chunks=CHUNK))
    np.testing.assert_allclose(parts.coef_, alone.coef_, rtol=1e-5)


def test_frames_keep_the_names_of_their_columns(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
    table = dd.from_pandas(frame, npartitions=7)
    alone = BayesianLinearRegression().fit(frame[list("abcd")], y)
    parts = BayesianLinearRegression().fit(table[list("abcd")], table["y"])
    assert list(parts.feature_names_in_) == list("abcd")
    np.testing.assert_allclose(parts.coef_, alone.coef_, rtol=1e-9)
    np.testing.assert_allclose(parts.predict(table[list("abcd")]), alone.predict(frame[list("abcd")]), rtol=1e-9)


def test_empty_partitions_are_left_out(data):
    X = pd.DataFrame(data[0], columns=list("abcd"))
    table = dd.from_pandas(X, npartitions=6)
    table = table.map_partitions(lambda part: part[part.index >= 2_000])
    np.testing.assert_allclose(PCA(2).fit(table).components_, PCA(2).fit(X[2_000:]).components_, atol=1e-9)


def test_conjugate_pairs_are_updated_partition_by_partition(data):
    x = data[0][:, 0]
    coins = (x > 100.0).astype(int)
    alone = BetaBernoulli(1.0, 2.0).update(coins)
    parts = credo.dask.update(BetaBernoulli(1.0, 2.0), da.from_array(coins, chunks=CHUNK))
    assert (float(parts.a), float(parts.b)) == (float(alone.a), float(alone.b))
    prior = NormalGamma(0.0, 1.0, 2.0, 1.0)
    one, other = prior.update(x), credo.dask.update(prior, da.from_array(x, chunks=CHUNK))
    assert float(other.predictive.mean) == pytest.approx(float(one.predictive.mean), rel=1e-10)
    assert float(other.predictive.variance) == pytest.approx(float(one.predictive.variance), rel=1e-9)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_tables_predict_partition_by_partition(kind, table, request):
    model = request.getfixturevalue(kind)
    frame = table.set_axis(table.index * 3, axis=0)
    found = credo.dask.predict(model, dd.from_pandas(frame, npartitions=4), level=0.8)
    expected = to_frame(model.predict_dist(frame), model.target_, level=0.8).set_axis(frame.index, axis=0)
    pd.testing.assert_frame_equal(found.compute(), expected, check_dtype=False, rtol=1e-9)
    assert dict(found.dtypes) == dict(found.compute().dtypes)


def die_once(block: np.ndarray, marker: str, chosen: bool) -> np.ndarray:
    """The block; the first time that it is asked for the chosen one, the worker is killed."""
    if chosen and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_during_a_fit_changes_nothing(data, tmp_path):
    """The second of two workers dies in a pass over the data; its partitions are computed again, to the same bits."""
    distributed = pytest.importorskip("distributed")
    X = data[0]
    blocks = [X[start : start + CHUNK] for start in range(0, N, CHUNK)]

    def fit(marker: Path):
        parts = [dask.delayed(die_once, pure=False)(block, str(marker), i == 7) for i, block in enumerate(blocks)]
        arrays = [da.from_delayed(part, b.shape, b.dtype) for part, b in zip(parts, blocks, strict=True)]
        model = GaussianMixture(3, random_state=0).fit(da.concatenate(arrays))
        return learned(model)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 5, "scheduler": None}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        undisturbed = tmp_path / "undisturbed"
        undisturbed.touch()
        expected, found = fit(undisturbed), fit(tmp_path / "killed")
    assert (tmp_path / "killed").exists()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_what_cannot_be_read_is_named(data, regressor):
    X, y = data
    with pytest.raises(InputError, match="both be Dask"):
        BayesianLinearRegression().fit(da.from_array(X, chunks=(CHUNK, -1)), y)
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=3)
    with pytest.raises(InputError, match="3 and 5 partitions"):
        BayesianLinearRegression().fit(frame, dd.from_pandas(pd.Series(y), npartitions=5))
    with pytest.raises(ValueError, match="NaN"):
        PCA(1).fit(da.from_array(np.where(X.max() - 1e-9 < X, np.nan, X), chunks=(CHUNK, -1)))
    with pytest.raises(InputError, match="frame must be a Dask data frame"):
        credo.dask.predict(regressor, pd.DataFrame())
    with pytest.raises(InputError, match=r"use pair\.update"):
        credo.dask.update(BetaBernoulli(1.0, 1.0), [0, 1])
