"""Weights, groups and times of rows, from ``fit`` to the training of the network."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import credo
from credo.methods import MAP
from credo.tabular import methods


def table(rows: int = 120, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.choice(["x", "y"], rows)})
    return frame, (frame["a"] + rng.normal(0, 0.1, rows)).rename("target")


def test_rows_of_weight_0_are_left_out() -> None:
    frame, y = table()
    weight = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.5)
    used = weight > 0
    spoilt = y.where(used, 1e6)
    first = credo.Regressor(epochs=2, samples=5, random_state=0).fit(frame, spoilt, sample_weight=weight)
    second = credo.Regressor(epochs=2, samples=5, random_state=0).fit(frame[used], y[used], sample_weight=weight[used])
    np.testing.assert_array_equal(first.predict(frame), second.predict(frame))


@pytest.mark.parametrize("method", ["map", "ensemble"])
def test_weights_are_frequencies(method: str) -> None:
    """Half of the targets are 0 and half 1; with weights 1 and 3 the mean and the probability of 1 are near 3/4."""
    frame, _ = table(400)
    y = pd.Series(np.arange(400) % 2)
    weight = np.where(y == 1, 3.0, 1.0)
    regressor = credo.Regressor(method, epochs=30, hidden=(), random_state=0).fit(frame, y.astype(float), weight)
    classifier = credo.Classifier(method, epochs=30, hidden=(), random_state=0).fit(frame, y, weight)
    # a linear function of two irrelevant columns: 4 standard errors of the mean of 400 rows are 0.09
    assert np.mean(regressor.predict(frame)) == pytest.approx(0.75, abs=0.09)
    assert np.mean(classifier.predict_proba(frame)[:, 1]) == pytest.approx(0.75, abs=0.09)


def test_early_stopping_and_calibration_hold_out_whole_groups_or_the_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The column x tells which rows were trained on, validated with and calibrated on."""
    seen: dict[str, np.ndarray] = {}
    plain_fit = MAP.fit

    def fit(self: MAP, data, **options):  # type: ignore[no-untyped-def]
        seen["trained"], seen["validated"] = data[0][:, 0], options["validation"][0][:, 0]
        return plain_fit(self, data, **options)

    monkeypatch.setattr(MAP, "fit", fit)
    rows = 200
    frame, y = pd.DataFrame({"x": np.arange(rows, dtype=float)}), pd.Series(np.sin(np.arange(rows)))
    given = {"groups": np.arange(rows) // 10, "time": np.arange(rows)}
    for name, values in given.items():
        model = credo.Regressor("map", calibrate="variance", epochs=1, random_state=0)
        model.fit(frame, y, **{name: values})
        features = model.columns_.features(model.columns_.read(frame))[:, 0]
        trained, validated = (np.flatnonzero(np.isin(features, seen[part])) for part in ("trained", "validated"))
        held_out = np.setdiff1d(np.arange(rows), np.concatenate([trained, validated]))
        assert (len(trained), len(validated), len(held_out)) == ((150, 10, 40) if name == "groups" else (144, 16, 40))
        if name == "time":
            assert trained.max() < validated.min()
            assert validated.max() < held_out.min()
        else:
            parts = [set(values[part]) for part in (trained, validated, held_out)]
            assert len(set.union(*parts)) == sum(map(len, parts))


def test_partial_fit_takes_weights() -> None:
    frame, y = table(60)
    model = credo.Regressor(epochs=2, samples=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.partial_fit(frame, y, sample_weight=np.ones(60)).partial_fit(frame, y, sample_weight=np.full(60, 2.0))
    assert np.isfinite(model.predict(frame)).all()
    assert methods.get("bbb").posterior_as_prior is not None
