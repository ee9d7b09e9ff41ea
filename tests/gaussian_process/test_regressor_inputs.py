"""Data and settings of Gaussian process regression: what is accepted and what raises."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as theirs
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo.errors import InputError
from credo.gaussian_process import GaussianProcessRegressor, regressor
from credo.gaussian_process.kernels import RBF, White

from .curve import KERNEL, curve, fixed


@parametrize_with_checks([GaussianProcessRegressor()])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves, and of constant targets
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_blocks_do_not_change_the_predictions():
    X, y = curve(30)
    gp, new = fixed().fit(X, y), np.linspace(-3.0, 3.0, 3000)[:, None]
    mean, std = gp.predict(new, return_std=True)
    for row in (0, 1234, 2999):
        one, deviation = gp.predict(new[[row]], return_std=True)
        np.testing.assert_allclose([one[0], deviation[0]], [mean[row], std[row]], rtol=1e-12)


def test_chunks_memory_maps_and_data_frames_give_the_same_result(tmp_path):
    X, y = curve(40, 2)
    np.save(tmp_path / "X.npy", X)
    whole = GaussianProcessRegressor().fit(X, y)
    frame = pd.DataFrame(X, columns=["a", "b"])
    chunks = GaussianProcessRegressor().fit(lambda: ((X[i : i + 7], y[i : i + 7]) for i in range(0, 40, 7)))
    mapped = GaussianProcessRegressor().fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    framed = GaussianProcessRegressor().fit(frame, pd.Series(y))
    for other, table in ((chunks, X), (mapped, X), (framed, frame)):
        np.testing.assert_allclose(other.predict(table), whole.predict(X), rtol=1e-9)
    assert list(framed.feature_names_in_) == ["a", "b"]


def test_copies_and_clones():
    X, y = curve()
    gp = GaussianProcessRegressor(KERNEL, noise=White(0.1)).fit(X, y)
    for other in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        np.testing.assert_array_equal(other.predict(X), gp.predict(X))
    fresh = clone(gp)
    assert fresh.kernel == KERNEL
    assert not hasattr(fresh, "kernel_")
    assert "kernel=1.5 * RBF(length_scale=0.7)" in repr(gp)
    gp.L_.flags.writeable = False  # as joblib maps it from a file
    assert np.isfinite(gp.predict(X)).all()


def test_failed_fit_leaves_the_estimator_unchanged():
    X, y = curve()
    gp = fixed().fit(X, y)
    before = gp.predict(X)
    with pytest.raises(ValueError, match="NaN"):
        gp.fit(np.full((5, 3), np.nan), np.ones(5))
    np.testing.assert_array_equal(gp.predict(X), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": theirs.RBF()}, "kernel must be None or one of credo.gaussian_process.kernels"),
        ({"kernel": RBF() + White(0.1)}, "must not contain White if the noise is learned"),
        ({"kernel": (RBF() + White(0.1)) * 2.0}, "must not contain White if the noise is learned"),
        ({"noise": -0.1}, "noise must be 'learned', a number of at least 0"),
        ({"noise": None}, "noise must be 'learned', a number of at least 0"),
        ({"noise": "learnd"}, "did you mean 'learned'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'"),
        ({"n_restarts_optimizer": -1}, "n_restarts_optimizer must be an integer of at least 0"),
        ({"kernel": RBF(1e6)}, "length_scale must start within its bounds 1e-05 to 1e\\+05, got 1e\\+06"),
        ({"kernel": RBF((1.0, 2.0))}, "one for each of the 1 features"),
        ({"device": "abacus"}, "device must be one that torch can use"),
    ],
)
def test_bad_parameters_raise(options, message):
    with pytest.raises(InputError, match=message):
        GaussianProcessRegressor(**options).fit(*curve(5))


def test_bad_data_raise():
    X, y = curve()
    gp = GaussianProcessRegressor()
    with pytest.raises(NotFittedError):
        gp.predict(X)
    with pytest.raises(NotFittedError):
        gp.leave_one_out()
    with pytest.raises(ValueError, match="1d array"):
        gp.fit(X, np.c_[y, y])
    with pytest.raises(ValueError, match="inconsistent"):
        gp.fit(X, y[:-1])
    gp = fixed().fit(X, y)
    with pytest.raises(InputError, match="cannot both be True"):
        gp.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="1 features as input"):
        gp.predict(np.c_[X, X])
    for n in (0, 2.5):
        with pytest.raises(InputError, match="n_samples must be an integer of at least 1"):
            gp.sample_y(X, n)


def test_too_many_rows_raise_and_many_rows_warn(monkeypatch):
    X, y = curve(50)
    monkeypatch.setattr(regressor, "_memory", lambda device: 4 * 8 * 40**2)
    with pytest.raises(InputError, match="of 50 rows needs about 0 GiB"):
        fixed().fit(X, y)
    monkeypatch.undo()
    monkeypatch.setattr(regressor, "MANY_ROWS", 49)
    with pytest.warns(UserWarning, match="consider a sample of the rows"):
        fixed().fit(X, y)
