"""Targets: validation, encoding and decoding."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import credo
from credo.errors import InputError, LoadError
from credo.tabular import Regressor
from credo.tabular.targets import ClassTarget, RegressionTarget, guess_task, known_rows


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["a", "b", "c"], "classification"),
        ([True, False], "classification"),
        (pd.Series([True, None, False]), "classification"),
        (pd.Series([1.5, 2.5, 3.5]).astype("category"), "classification"),
        ([0, 1] * 5, "classification"),
        ([0.0, 1.0, np.nan] * 5, "classification"),
        (["0", "1"] * 5, "classification"),
        (np.arange(50) % 10, "classification"),
        (["1", "2", "three"] * 3, "classification"),
        ([0, 1] * 4, "regression"),
        (np.arange(60) % 11, "regression"),
        ([0.5, 1.5] * 50, "regression"),
        (np.arange(1000), "regression"),
        (["1.5", "2.25", "7"], "regression"),
        ([4, 4, 4, 4, 4, 4], "regression"),
        (pd.array([1, 5, None, 9], dtype="Int64"), "regression"),
    ],
    ids=str,
)
def test_guess_task(y, task):
    assert guess_task(y) == task


def test_targets_are_standardized():
    y = pd.Series([3.0, 5.0, 10.0], name="price")
    target = RegressionTarget.learn(y)
    assert (target.name, target.mean, target.notes) == ("price", 6.0, ())
    assert target.scale == pytest.approx(np.std([3.0, 5.0, 10.0]))
    z = target.standardize(y)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z * target.scale + target.mean, y, rtol=1e-6)


@given(st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=20))
def test_standardized_targets_have_mean_zero_and_std_one(y):
    target = RegressionTarget.learn(y)
    z = target.encode(y).astype(np.float64)
    assert np.isfinite(z).all()
    assert target.scale > 0.0
    y = y if target.limits is None else np.clip(y, *target.limits).tolist()
    if max(y) - min(y) > 1e-3 * max(map(abs, y)):  # else y itself has few digits of its differences
        # Float32 rounds z, at most √20 in size, by 2⁻²⁴ of it; so do mean and mean square.
        rounding = 20**0.5 * 2.0**-23
        assert z.mean() == pytest.approx(0.0, abs=rounding)
        assert (z**2).mean() == pytest.approx(1.0, abs=10 * rounding)


@pytest.mark.parametrize("y", [["1", "2.5", "-3e1"], [Decimal("1"), Decimal("2.5"), Decimal("-30")], [1, 2.5, -30]])
def test_number_types_of_targets(y):
    assert RegressionTarget.learn(y) == RegressionTarget.learn([1.0, 2.5, -30.0])


def test_missing_targets_are_noted():
    y = pd.Series([1.0, None, 3.0, np.nan], name="y")
    target = RegressionTarget.learn(y)
    assert (target.mean, target.scale) == (2.0, 1.0)
    assert target.notes == ("Left out, because the target is missing: 2 of 4 rows.",)
    assert known_rows(y).tolist() == [True, False, True, False]
    assert target.standardize(y[known_rows(y)]).tolist() == [-1.0, 1.0]
    with pytest.raises(InputError, match="such as 'nan'"):
        target.standardize(y)


def test_constant_target_is_noted():
    target = RegressionTarget.learn([0.1] * 7)
    assert (target.mean, target.scale) == (0.1, 1.0)
    assert target.notes == ("The target is 0.1 in every row, and so is every prediction.",)
    assert target.standardize([0.1, 1.1]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("y", "match"),
    [
        ([1.0, np.inf], r"infinite.*1 row.*row 1, counted from 0"),
        ([1.0, 1e200], r"beyond 1e\+100"),
        ([np.nan, np.nan], "missing in every row"),
        ([], "missing in every row"),
        (["low", "high"], r"must hold numbers for regression, but 2 of its 2 values are not.*Classifier"),
        (["1", "2", "x"], "1 of its 3 values"),
        ([[1.0, 2.0]], r"one value per row, got shape \[1, 2\]"),
        (pd.DataFrame({"a": [1], "b": [2]}), "one value per row"),
        (pd.date_range("2024", periods=3), "must hold numbers"),
    ],
    ids=str,
)
def test_bad_quantities_raise(y, match):
    with pytest.raises(InputError, match=match):
        RegressionTarget.learn(y)


LABELS = {
    "int64": [3, 1, 2, 1, 2, 3],
    "int32": np.array([3, 1, 1, 3], dtype=np.int32),
    "float64": [1.0, 2.0, 1.0, 2.0],
    "bool": [True, False, True, False],
    "<U6": ["cat", "monkey", "cat", "monkey"],
}


@pytest.mark.parametrize(("dtype", "y"), LABELS.items(), ids=LABELS)
def test_labels_round_trip(dtype, y):
    target = ClassTarget.learn(y)
    again = ClassTarget.from_config(json.loads(json.dumps(target.get_config())))
    for t in (target, again):
        np.testing.assert_array_equal(t.classes, np.unique(y))
        assert t.classes.dtype == dtype
        assert t.encode(y).dtype == np.int64
        np.testing.assert_array_equal(t.encode(y), np.unique(y, return_inverse=True)[1])
        decoded = t.decode(t.encode(y))
        assert decoded.dtype == dtype
        np.testing.assert_array_equal(decoded, y)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (pd.Series([1, 2, 2, 1]).astype("category"), [1, 2]),
        (pd.Series(list("abab")).astype("category"), ["a", "b"]),
        (pd.array([1, 2, None, 2, 1], dtype="Int64"), [1, 2]),
        (pd.Series([1.0, 2.0, None, 2.0, 1.0]), [1, 2]),
        (pd.Series([True, None, False, True, False]), [False, True]),
        (pd.Series(["a", None, "b", "a", "b"]), ["a", "b"]),
        (np.array(["a", "b", "a", "b"], dtype=object), ["a", "b"]),
    ],
    ids=str,
)
def test_labels_of_pandas(y, classes):
    target = ClassTarget.learn(y)
    assert target.classes.tolist() == classes
    assert [type(c) for c in target.classes.tolist()] == [type(c) for c in classes]
    assert bool(target.notes) == (not known_rows(y).all())
    known = pd.Series(y)[known_rows(y)]
    assert target.decode(target.encode(known)).tolist() == known.tolist()


def test_equal_labels_of_different_types():
    assert ClassTarget.learn([1, 2] * 3).encode(["1", 2.0, " 1.0"]).tolist() == [0, 1, 0]
    assert ClassTarget.learn([True, False] * 3).encode(["TRUE", 0, "False"]).tolist() == [1, 0, 0]
    assert ClassTarget.learn(["007", "x"] * 3).encode([7, "x", "007"]).tolist() == [0, 1, 0]
    assert ClassTarget.learn(["007", "7"] * 3).encode([7, "007", "7"]).tolist() == [1, 0, 1]
    assert ClassTarget.learn(["NA", "EU"] * 3).encode(["NA", "EU"]).tolist() == [1, 0]


def test_unknown_labels_raise():
    target = ClassTarget.learn(pd.Series(["red", "green"] * 3, name="color"))
    with pytest.raises(InputError, match=r"target 'color' holds 'pink' in row 1.*none of the 2.*'green', 'red'"):
        target.encode(["red", "pink"])
    with pytest.raises(InputError, match="row 0"):
        target.encode([None, "red"])


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (["a"] * 5, "holds one class only, 'a'"),
        ([None, None], "missing in every row"),
        (range(20), r"20 classes in 20 rows.*regression"),
        ([f"id{i}" for i in range(20)], "choose another column"),
        ([0.5, 1.5, 0.5, 1.5], r"Unknown label type: .*continuous"),
        ([1.0, np.inf, 1.0, 2.0], "Unknown label type"),
        (pd.Series(["a", 1, "a", 1]), "different types"),
        (pd.date_range("2024", periods=3).repeat(5), r"Unknown label type: .*Timestamp"),
    ],
    ids=str,
)
def test_bad_labels_raise(y, match):
    with pytest.raises(InputError, match=match):
        ClassTarget.learn(y)


def test_two_classes_are_always_accepted():
    assert ClassTarget.learn(["a", "b"]).classes.tolist() == ["a", "b"]


def test_single_row_class_is_noted():
    assert ClassTarget.learn(list("aabbbc")).notes == ("The target has classes with a single row: 'c'.",)


def test_config_round_trip_and_damage_raises():
    target = RegressionTarget.learn(pd.Series([1.0, 2.5, None, 1 / 3], name="y"))
    assert RegressionTarget.from_config(json.loads(json.dumps(target.get_config()))) == target
    for kind in (RegressionTarget, ClassTarget):
        with pytest.raises(LoadError, match="target is damaged"):
            kind.from_config({"name": "y"})
    with pytest.raises(LoadError, match="target is damaged"):
        ClassTarget.from_config({"name": "y", "classes": ["a"], "dtype": "nonsense", "notes": []})


CONSTANTS = [3.5, 0.0, -1e-9, 1e90, 7]
TABLE = pd.DataFrame({"x": np.linspace(-1.0, 1.0, 120), "kind": ["a", "b", "c"] * 40})


@pytest.mark.parametrize("method", ["bbb", "ensemble"])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_constant_target_is_predicted(constant, method, tmp_path):
    """Of rows near and far; to the last digit, and after a round trip."""
    with pytest.warns(UserWarning, match="in every row, and so is every prediction"):
        model = Regressor(method, epochs=1, random_state=0).fit(TABLE, [constant] * len(TABLE))
    model.save(tmp_path / "run")
    far = pd.DataFrame({"x": [0.0, 1e6, -1e30, None], "kind": ["a", "c", None, "b"]})
    for fitted in (model, credo.load(tmp_path / "run")):
        with pytest.warns(UserWarning, match="."):
            p = fitted.predict_dist(far)
        assert p.mean.tolist() == [constant] * 4
        assert (p.epistemic == 0).all()
        assert (p.std <= max(abs(constant) * 1e-15, 1e-99)).all()
        for bound in p.interval(0.95):
            np.testing.assert_allclose(bound, constant, rtol=1e-14, atol=1e-98)
        assert p.log_prob(p.mean).isfinite().all()


@pytest.mark.parametrize("calibrate", ["variance", "quantile", "conformal"])
def test_constant_target_can_be_calibrated(calibrate):
    model = Regressor("map", epochs=1, random_state=0, calibrate=calibrate, calibration_fraction=0.5)
    with pytest.warns(UserWarning, match="in every row"):
        model.fit(TABLE, [3.5] * len(TABLE))
    p = model.predict_dist(TABLE)
    np.testing.assert_allclose(p.mean, 3.5, rtol=1e-14)
    for bound in p.interval(0.9):
        np.testing.assert_allclose(bound, 3.5, rtol=1e-10)


def test_partial_fit_after_a_constant_target_raises():
    model = Regressor("bbb", epochs=1, random_state=0)
    with pytest.warns(UserWarning, match="in every row"):
        model.partial_fit(TABLE, [3.5] * len(TABLE))
    model.partial_fit(TABLE, [3.5] * len(TABLE))
    with pytest.raises(InputError, match=r"all targets so far are 3\.5, .* call fit with different targets"):
        model.partial_fit(TABLE, [3.5] * 119 + [4.0])
    assert model.predict(TABLE[:2]).tolist() == [3.5, 3.5]
