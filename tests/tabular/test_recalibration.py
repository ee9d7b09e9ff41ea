"""Calibration of estimators by held-out rows and by predictions out of fold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.errors import InputError
from credo.tabular.recalibration import predict_out_of_fold
from credo.tabular.splitting import RowDetails

QUICK = {"method": "map", "epochs": 4, "hidden": (5,), "random_state": 0, "likelihood": "gaussian"}


def table(rows: int = 120) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"u": rng.normal(size=rows), "word": rng.choice(["a", "b"], rows)})
    return X, (X["u"] + (X["word"] == "a") + rng.normal(0, 0.5, rows)).to_numpy()


def test_with_folds_every_row_trains_and_every_row_calibrates(tmp_path) -> None:
    X, y = table()
    plain = credo.Regressor(**QUICK).fit(X, y)
    model = credo.Regressor(calibrate="conformal", calibration_folds=4, **QUICK).fit(X, y)
    torch.testing.assert_close(model.predict_dist(X).mean, plain.predict_dist(X).mean, rtol=0, atol=0)
    assert len(model.calibrator_.scores) == len(y)
    lower, upper = model.predict_dist(X).interval(0.9)
    assert np.mean((lower.numpy() <= y) & (y <= upper.numpy())) > 0.85
    model.save(tmp_path / "run")
    assert credo.load(tmp_path / "run").calibrator_.scores == model.calibrator_.scores


def test_the_factor_is_that_of_the_out_of_fold_predictions() -> None:
    """The fold of a row is predicted by an estimator that is fitted to the other rows alone."""
    X, y = table(60)
    model = credo.Regressor(calibrate="variance", calibration_folds=2, **QUICK).fit(X.to_numpy(), y)
    assert model.calibrator_.factor > 0
    with_time = credo.Regressor(calibrate="variance", calibration_folds=2, **QUICK).fit(X, y, time=np.arange(60))
    details = RowDetails.read(60, None, None, np.arange(60))
    order, predictive = predict_out_of_fold(with_time, X, y, with_time._encode_target(y), details)
    assert order.tolist() == list(range(20, 60))  # the first third is only trained on
    same_seed = QUICK | {"random_state": with_time.seed_ % 2**32}
    earlier = credo.Regressor(**same_seed).fit(X[:20], y[:20])
    torch.testing.assert_close(predictive[:20].mean, earlier.predict_dist(X[20:40]).mean)


def test_groups_are_not_divided() -> None:
    X, y = table(60)
    with pytest.raises(InputError, match="number of groups"):
        credo.Regressor(calibrate="variance", calibration_folds=5, **QUICK).fit(X, y, groups=np.arange(60) % 3)


def test_temperature_of_classes() -> None:
    X, y = table()
    labels = np.where(y > 0.5, "high", "low")
    options = {name: value for name, value in QUICK.items() if name != "likelihood"}
    model = credo.Classifier(calibrate="temperature", calibration_folds=3, class_weight="balanced", **options)
    model.fit(X, labels)
    assert model.calibrator_.temperature != 1.0
    with pytest.warns(UserWarning, match="single row"), pytest.raises(InputError, match="two rows of every class"):
        model.fit(X, np.where(np.arange(120) == 0, "rare", labels))


def test_arguments() -> None:
    X, y = table(60)
    with pytest.raises(InputError, match="calibration_folds"):
        credo.Regressor(calibrate="variance", calibration_folds=1, **QUICK).fit(X, y)
    with pytest.raises(InputError, match="needs at least 19 rows"):
        credo.Regressor(calibrate="conformal", calibration_folds=2, **QUICK).fit(X[:15], y[:15])
