"""Encoding of columns: formulas, inferred types, notes and errors."""

from __future__ import annotations

import datetime
import json
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from credo.errors import InputError, LoadError
from credo.tabular.columns import Columns, as_frame
from credo.tabular.encoders import MAX_FEATURE, PERIODS
from credo.tabular.parsing import is_missing, parse_date, parse_number, to_label
from credo.tabular.readings import read_column
from tabular.hostile import good_columns, mixed_frame

ROWS = 60


def features(columns: Columns, frame: Any) -> dict[str, list[float]]:
    """Encoded columns by their names."""
    return dict(zip(columns.feature_names, columns.encode(frame).T.tolist(), strict=True))


def test_numbers_are_standardized():
    x = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
    columns = Columns.learn(pd.DataFrame({"x": x}))
    assert columns.feature_names == ("x",)
    np.testing.assert_allclose(columns.encode(pd.DataFrame({"x": x}))[:, 0], (x - 4.0) / x.std(), rtol=1e-6)
    assert columns.notes == ()


def test_long_tailed_columns_have_an_asinh_feature():
    x = np.exp(np.linspace(0.0, 12.0, 100))
    columns = Columns.learn(pd.DataFrame({"x": x}))
    assert columns.feature_names == ("x", "x (asinh)")
    lower, median, upper = np.quantile(x, [0.25, 0.5, 0.75])
    u = np.arcsinh((x - median) / ((upper - lower) / 1.349))
    encoded = columns.encode(pd.DataFrame({"x": x}))
    np.testing.assert_allclose(encoded[:, 0], (x - x.mean()) / x.std(), rtol=1e-5)
    np.testing.assert_allclose(encoded[:, 1], (u - u.mean()) / u.std(), rtol=1e-5)
    assert columns.summary()[0].treatment == "scaled, with asinh beside it"


def test_outlying_values_do_not_enter_the_scaling():
    """A number that is a million times too large is clipped to the range of the others; they keep their features."""
    x = np.arange(1.0, 101.0)
    wrong = np.append(x, 5e7)
    columns, clean = Columns.learn(pd.DataFrame({"x": wrong})), Columns.learn(pd.DataFrame({"x": np.append(x, 100.0)}))
    (note,) = columns.notes
    assert note == "Far from all other values, and clipped to their range: check: 'x' (1 value: '5e+07' in row 100)."
    assert columns.summary()[0].treatment == "scaled, clipped to this range"
    np.testing.assert_array_equal(columns.encode(pd.DataFrame({"x": x})), clean.encode(pd.DataFrame({"x": x})))
    encoded = columns.encode(pd.DataFrame({"x": [5e7, 100.0, -1e9, 1.0]}))[:, 0]
    assert encoded[0] == encoded[1]
    assert encoded[2] == encoded[3]
    assert columns.scaling.outside(np.array([[5e7], [50.0]]))[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(
    "x", [[0.0] * 90 + [1.0] * 10, [-5.0] * 12 + [-2.4] * 30 + [-2.3] * 48 + [0.0] * 10], ids=["rare flag", "grid"]
)
def test_mostly_constant_columns_are_not_long_tailed(x):
    z = Columns.learn(pd.DataFrame({"x": x})).encode(pd.DataFrame({"x": x}))[:, 0]
    np.testing.assert_allclose(z, (np.array(x) - np.mean(x)) / np.std(x), rtol=1e-5)


def test_features_are_linear_up_to_a_million_standard_deviations():
    train = pd.DataFrame({"x": np.linspace(-1.0, 1.0, 101)})
    columns, std = Columns.learn(train), float(np.linspace(-1.0, 1.0, 101).std())
    z = np.array([-1e9, -2e6, -1e6, -20.0, -3.0, 0.0, 3.0, 20.0, 1e6, 1e30, 1e300])
    encoded = columns.encode(pd.DataFrame({"x": z * std}))[:, 0]
    # features are float32, of relative precision 6e-8
    np.testing.assert_allclose(encoded, np.clip(z, -MAX_FEATURE, MAX_FEATURE), rtol=1e-6, atol=1e-12)


def test_distance_from_the_training_range():
    train = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0, 4.0], "t": pd.date_range("2024-01-01", periods=5)})
    columns = Columns.learn(train)
    new = pd.DataFrame({"x": [-1.0, 2.0, 6.0, np.nan], "t": ["2024-01-03", "2023-12-31", None, "2024-01-05"]})
    with pytest.warns(UserWarning, match="Missing values, of which training had none"):
        rows = columns.read(new)
    scaling = columns.scaling
    np.testing.assert_array_equal(
        scaling.outside(rows.values), [[True, False], [False, True], [True, False], [False, False]]
    )
    distance = scaling.distance(rows.values, scaling.clip(rows.values))
    np.testing.assert_allclose(distance * np.sqrt(2.0), [[-1.0, 0.0], [0.0, -1.0], [2.0, 0.0], [0.0, 0.0]])
    wider = scaling.widened(rows.values)
    assert not wider.outside(rows.values).any()
    np.testing.assert_array_equal(wider.encode(rows.values), scaling.encode(rows.values))


def test_missing_numbers_are_imputed_and_marked():
    train = pd.DataFrame({"a": [1.0, 2.0, 4.0, 9.0, np.nan], "b": [1.0, 2.0, 4.0, 9.0, 9.0]})
    columns = Columns.learn(train)
    assert columns.feature_names == ("a", "b", "a (missing)")
    assert "'a' (20.0% of rows)" in columns.notes[0]
    with pytest.warns(UserWarning, match=r"Missing values, of which training had none.*'b' \(1 row\)"):
        found = columns.encode(pd.DataFrame({"a": [np.nan, 3.0], "b": [None, 4.0]}))
    np.testing.assert_array_equal(found[0], [*found[1, :2], 1.0])
    assert found[1, 2] == 0.0


def test_constant_with_missing_values_has_a_missing_feature():
    columns = Columns.learn(pd.DataFrame({"a": [7.0, np.nan] * 6}))
    assert columns.feature_names == ("a (missing)",)
    assert columns.summary()[0].treatment == "used for whether it is missing only"


def test_infinite_features_count_as_missing():
    train = pd.DataFrame({"a": [1.0, 2.0, np.inf, 4.0, -np.inf]})
    columns = Columns.learn(train)
    assert any("Infinite values count as missing: 'a' (2 of 5 rows)" in note for note in columns.notes)
    with pytest.warns(UserWarning, match=r"Infinite values count as missing: 'a' \(2 rows\)"):
        assert columns.encode(train)[:, 1].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0]
    clean = Columns.learn(pd.DataFrame({"a": [1.0, 2.0, 4.0, np.nan]}))
    with pytest.warns(UserWarning, match=r"Infinite values count as missing: 'a' \(2 rows\)"):
        assert clean.encode(train)[:, 1].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4],
        [True, False, True, False],
        pd.array([1, 2, None, 4], dtype="Int64"),
        pd.array([True, None, False, True], dtype="boolean"),
        pd.array([0.5, None, 1.5, 2.0], dtype="Float64"),
        [Decimal("1.5"), Decimal("2.5"), None, Decimal("4")],
        ["1", " 2.0 ", "-3e2", "4"],
        np.array([1, 2, 3, 4], dtype=np.uint8),
        pd.to_timedelta([1, 2, 3, 4], unit="D"),
    ],
    ids=str,
)
def test_number_dtypes_are_parsed(values):
    frame = pd.DataFrame({"a": values})
    assert read_column(frame["a"]).kind == "number"
    plain = [np.nan if is_missing(v) else v / pd.Timedelta(days=1) if hasattr(v, "days") else float(v) for v in values]
    expected = Columns.learn(pd.DataFrame({"a": plain}))
    np.testing.assert_array_equal(Columns.learn(frame).encode(frame), expected.encode(pd.DataFrame({"a": plain})))


def test_parsing_of_cells():
    assert [parse_number(c) for c in ("1,234", "1_000", "12%", "x", None, object(), 1j)] == pytest.approx(
        [math.nan] * 7, nan_ok=True
    )
    assert [to_label(c) for c in ("007", 7, 7.0, " 7 ", "7.0", np.int8(7))] == ["7"] * 6
    assert [to_label(c) for c in (True, "TRUE", "true", np.bool(True))] == ["True"] * 4
    assert [to_label(c) for c in (None, np.nan, pd.NA, pd.NaT, "", " NA ", "null")] == [None] * 7
    assert to_label("0.10") == to_label(0.1) == "0.1"
    long = "x" * 10**6
    assert len(to_label(long)) < 101
    assert to_label(long) != to_label(long + "y")


def test_dates_in_all_formats_are_equal():
    texts = ["2024-03-31", "2024/03/31", "2024-03-31T00:00", "2024-03-31 02:00:00+02:00", "2024-03-31T00:00:00Z"]
    others = [datetime.date(2024, 3, 31), datetime.datetime(2024, 3, 31), np.datetime64("2024-03-31")]
    assert {parse_date(cell) for cell in [*texts, *others, pd.Timestamp("2024-03-31"), "20240331T000000"]} == {19813.0}
    assert parse_date("2024-03") == parse_date("2024-03-01")
    not_dates = ("03/04/2024", "2024", "20240331", "soon", None, pd.NaT, 19813.0)
    assert all(math.isnan(parse_date(cell)) for cell in not_dates)


def test_dates_become_days_and_cycles():
    text = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=ROWS, freq="25D").strftime("%Y-%m-%d")})
    columns = Columns.learn(text)
    assert columns.notes == ("Read as dates and used as days: 'd' (2020-01-01 to 2024-01-15).",)
    stamps = pd.to_datetime(text["d"])
    expected = columns.encode(text)
    for form in (stamps, stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), stamps.astype(object)):
        np.testing.assert_array_equal(columns.encode(form.to_frame()), expected)
    found = features(columns, text)
    days = np.arange(ROWS) * 25.0 + parse_date("2020-01-01")
    assert found["d"] == pytest.approx((days - days.mean()) / days.std(), rel=1e-5)
    assert found["d (sin of year)"] == pytest.approx(np.sin(2 * np.pi * days / PERIODS["year"]), abs=1e-6)
    assert found["d (cos of week)"] == pytest.approx(np.cos(2 * np.pi * days / 7.0), abs=1e-6)
    assert "d (sin of day)" not in found


def test_cycles_need_two_periods():
    hours = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=ROWS, freq="h")})
    assert Columns.learn(hours).feature_names == ("d", "d (sin of day)", "d (cos of day)")


def test_categories_are_one_hot_with_rare_ones_combined():
    train = pd.DataFrame({"c": ["red"] * 5 + ["blue"] * 3 + ["mauve", "taupe"] + [None] * 2})
    columns = Columns.learn(train)
    assert columns.feature_names == ("c=red", "c=blue", "c (other)", "c (missing)")
    np.testing.assert_array_equal(columns.encode(train).argmax(axis=1), [0] * 5 + [1] * 3 + [2] * 2 + [3] * 2)
    assert columns.encode(train).sum(axis=1).tolist() == [1.0] * 12
    with pytest.warns(UserWarning, match=r"did not have count as other: 'c' \(3 rows, such as 'pink', 'cyan'\)"):
        found = columns.encode(pd.DataFrame({"c": ["pink", "cyan", "pink", "taupe"]}))
    assert found.argmax(axis=1).tolist() == [2] * 4


def test_at_most_thirty_categories_have_a_feature():
    train = pd.DataFrame({"c": [f"c{i:02d}" for i in range(40) for _ in range(3)] + ["c39"]})
    columns = Columns.learn(train)
    assert columns.feature_names == ("c=c39", *(f"c=c{i:02d}" for i in range(29)), "c (other)")


def test_new_category_without_other_has_zero_features():
    columns = Columns.learn(pd.DataFrame({"c": ["a", "b"] * 6}))
    with pytest.warns(UserWarning, match="training did not have"):
        assert columns.encode(pd.DataFrame({"c": ["z", None]})).tolist() == [[0.0, 0.0]] * 2


def test_pandas_categories_of_numbers_are_categories():
    frame = pd.DataFrame({"c": pd.Categorical([3, 1, 3, 1, 2, 2])})
    columns = Columns.learn(frame)
    assert columns.feature_names == ("c=1", "c=2", "c=3")
    np.testing.assert_array_equal(columns.encode(frame.astype(float)), columns.encode(frame))


def test_uninformative_columns_are_left_out_and_optional():
    n = 20
    frame = pd.DataFrame(
        {
            "x": np.arange(n),
            "empty": [None] * n,
            "nan": np.nan,
            "same": 3,
            "word": "a",
            "id": [f"k{i}" for i in range(n)],
        }
    )
    columns = Columns.learn(frame)
    assert columns.feature_names == ("x",)
    said = " ".join(columns.notes)
    for expected in ("no value is given: 'empty', 'nan'", "the same: 'same', 'word'", "'id'"):
        assert expected in said
    np.testing.assert_array_equal(columns.encode(frame[["x"]]), columns.encode(frame))
    kinds = {row.name: row.treatment.partition(",")[0] for row in columns.summary()}
    assert kinds == dict.fromkeys(frame.columns, "left out") | {"x": "scaled"}


def test_table_without_usable_columns_raises():
    with pytest.raises(InputError, match="no column of the table can be used: Left out, because all values"):
        Columns.learn(pd.DataFrame({"a": [1, 1, 1]}))
    for empty in (pd.DataFrame(), pd.DataFrame({"a": []})):
        with pytest.raises(InputError, match="needs rows and columns"):
            Columns.learn(empty)


def test_column_summaries():
    rows = {row.name: row for row in Columns.learn(mixed_frame()).summary()}
    assert list(rows) == list(mixed_frame().columns)
    assert rows["whole"].content == "0 to 8"
    assert (rows["whole"].kind, rows["whole"].distinct, rows["whole"].missing) == ("number", 9, 0.0)
    assert rows["rare"].missing == pytest.approx(26 / 60)
    assert rows["rare"].content == "Rome 76%, town 0 3%, town 1 3% and 6 more"
    assert rows["rare"].treatment == "one-hot: 1 category and other and missing"
    assert rows["date"].content == "2019-03-01 to 2021-11-28"
    assert rows["stamp"].treatment == "days scaled, time of day and week"
    assert rows["dirty"].missing == pytest.approx(2 / 60)
    json.dumps([row.get_config() for row in rows.values()])


def test_config_round_trip_encodes_identically():
    frame = mixed_frame()
    columns = Columns.learn(frame)
    again = Columns.from_config(json.loads(json.dumps(columns.get_config(), allow_nan=False)))
    np.testing.assert_array_equal(again.encode(frame), columns.encode(frame))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(columns)).encode(frame), columns.encode(frame))
    assert again.feature_names == columns.feature_names
    assert again.notes == columns.notes
    assert again.summary() == columns.summary()
    assert again.get_config() == columns.get_config()


@pytest.mark.parametrize("damage", [{"scaling": None}, {"summaries": [{"nonsense": 1}]}, {"names": 3}])
def test_damaged_config_raises(damage):
    config = Columns.learn(mixed_frame()).get_config()
    with pytest.raises(LoadError, match="damaged"):
        Columns.from_config(config | damage)
    with pytest.raises(LoadError, match="damaged"):
        Columns.from_config({})


def test_column_order_and_extra_columns_do_not_matter():
    frame = pd.DataFrame(good_columns())
    columns = Columns.learn(frame)
    np.testing.assert_array_equal(columns.encode(frame[frame.columns[::-1]]), columns.encode(frame))
    with pytest.warns(UserWarning, match=r"^Ignored, because training had no such column: 'new', 'newer'\.$"):
        found = columns.encode(frame.assign(new=1, newer=2))
    np.testing.assert_array_equal(found, columns.encode(frame))


def test_missing_column_error_suggests_the_closest_name():
    frame = pd.DataFrame({"Price": [1.0, 2.0, 3.0], "rooms": [1, 2, 3]})
    columns = Columns.learn(frame)
    with pytest.raises(InputError, match=r"the column 'Price' is missing, which training had: did you mean ' price'\?"):
        columns.encode(frame.rename(columns={"Price": " price"}))
    with pytest.raises(InputError, match="the columns 'Price', 'rooms' are missing, which training had: add"):
        columns.encode(pd.DataFrame({"q": [1]}))


def test_too_much_text_in_a_number_column_raises():
    train = pd.DataFrame({"a": np.arange(20.0)})
    columns = Columns.learn(train)
    with pytest.raises(InputError, match=r"'a' held numbers in training, but 12 of its 20 cells.*'word'"):
        columns.encode(pd.DataFrame({"a": ["word"] * 12 + ["1"] * 8}))
    with pytest.warns(
        UserWarning, match=r"not numbers as in training count as missing: 'a' \(1 value: 'word' in row 0\)"
    ):
        assert columns.encode(pd.DataFrame({"a": ["word"]})).shape == (1, 1)


def test_too_much_text_in_a_date_column_raises():
    columns = Columns.learn(pd.DataFrame({"d": pd.date_range("2024-01-01", periods=20)}))
    with pytest.raises(InputError, match="'d' held dates in training"):
        columns.encode(pd.DataFrame({"d": ["31.12.2024"] * 20}))


def test_array_columns_are_matched_by_position():
    x = np.random.default_rng(0).normal(size=(20, 3))
    columns = Columns.learn(x)
    assert columns.feature_names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(columns.encode(x.tolist()), columns.encode(x))
    named = Columns.learn(pd.DataFrame(x, columns=list("abc")))
    np.testing.assert_array_equal(named.encode(x), columns.encode(x))
    with pytest.raises(InputError, match="X has 2 features, but Regressor is expecting 3 features as input"):
        as_frame(x[:, :2], columns.names, "Regressor")
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        columns.encode(sparse.csr_array(x))


def test_repeated_column_names_raise():
    with pytest.raises(InputError, match=r"column names must be unique.*'a'"):
        Columns.learn(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))
    with pytest.raises(InputError, match=r"column names must be unique.*'1'"):
        Columns.learn(pd.DataFrame([[1, 2], [3, 4]], columns=["1", 1]))


def test_complex_numbers_raise():
    with pytest.raises(InputError, match="'a' holds complex numbers"):
        Columns.learn(pd.DataFrame({"a": [1j, 2j]}))


def test_empty_table_is_encoded():
    columns = Columns.learn(mixed_frame())
    assert columns.encode(mixed_frame().iloc[:0]).shape == (0, len(columns.feature_names))


def test_wide_tables():
    x = np.random.default_rng(0).normal(size=(50, 10_000))
    x[3, ::10] = np.nan
    columns = Columns.learn(x)
    assert columns.encode(x).shape == (50, 11_000)
    assert len(columns.notes) == 2
    assert all(len(note) < 300 for note in columns.notes)


@pytest.mark.parametrize("code", [-999.0, 9999.0, -1.0, -1000.0, 999.99])
def test_numbers_that_stand_for_a_missing_value_are_noted(code):
    """They are further from all others than those are from each other, and there are several."""
    x = np.r_[np.linspace(40.0, 60.0, 97), [code] * 3]
    (note,) = [note for note in Columns.learn(pd.DataFrame({"x": x})).notes if "stand for" in note]
    assert note == f"May stand for a missing value, but is used as a number: 'x' ({code:g} in 3 rows)."


@pytest.mark.parametrize(
    "x",
    [
        np.r_[np.linspace(40.0, 60.0, 99), -999.0],  # once: an outlying value, if any
        np.r_[np.linspace(0.0, 998.0, 97), [999.0] * 3],  # the end of a range
        np.r_[np.linspace(40.0, 60.0, 97), [-71.5] * 3],  # no such code
        np.tile([0.0, 1.0, -1.0], 30),
    ],
    ids=["once", "range", "number", "signs"],
)
def test_other_numbers_are_not(x):
    assert not [note for note in Columns.learn(pd.DataFrame({"x": x})).notes if "stand for" in note]
