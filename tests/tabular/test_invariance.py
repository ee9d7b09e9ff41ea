"""The encoding of a row does not depend on other rows, their order or dtypes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from credo.errors import InputError
from credo.tabular.columns import Columns
from tabular.hostile import mixed_frame

NUMBERS = st.one_of(
    st.none(), st.integers(-(10**20), 10**20), st.floats(), st.sampled_from([1, 2.5, "3", " 4e-3", "?", True])
)
WORDS = st.sampled_from(["a", "b", "c", " a", "1", 1, 1.0, "01", True, "true", None, "NA", "é", "d" * 200])
DATES = st.one_of(st.none(), st.datetimes(), st.dates().map(str), st.sampled_from(["2024-03", "soon", "2020/05/06"]))

UNREADABLE = pytest.mark.filterwarnings("ignore:(Infinite values|Values that are not .*) count as missing:UserWarning")


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Some columns of mixed objects."""
    n = draw(st.integers(2, 12))
    kinds = draw(st.lists(st.sampled_from([NUMBERS, WORDS, DATES]), min_size=1, max_size=4))
    cells = {f"c{j}": draw(st.lists(kind, min_size=n, max_size=n)) for j, kind in enumerate(kinds)}
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})


def learned(table: pd.DataFrame) -> Columns:
    try:
        return Columns.learn(table)
    except InputError:
        assume(False)
        raise


@UNREADABLE
@settings(max_examples=100)
@given(table=tables(), data=st.data())
def test_encoding_of_a_row_does_not_depend_on_other_rows(table, data):
    columns = learned(table)
    together = columns.encode(table)  # other warnings would be errors: nothing here is new
    assert np.isfinite(together).all()
    assert together.dtype == np.float32
    order = data.draw(st.permutations(range(len(table))))
    np.testing.assert_array_equal(columns.encode(table.iloc[order]), together[order])
    np.testing.assert_array_equal(columns.encode(table[table.columns[::-1]]), together)
    for i in range(len(table)):
        row = table.iloc[[i]]
        np.testing.assert_array_equal(columns.encode(row), together[[i]])
        np.testing.assert_array_equal(columns.encode(row.infer_objects()), together[[i]])


@settings(max_examples=60)
@given(table=tables(), data=st.data())
def test_learned_columns_do_not_depend_on_row_order(table, data):
    order = data.draw(st.permutations(range(len(table))))
    first, second = learned(table).get_config(), learned(table.iloc[order]).get_config()
    del first["notes"], second["notes"]  # their examples are the first that were met
    assert first == second


@UNREADABLE
@settings(max_examples=60)
@given(table=tables())
def test_learned_columns_round_trip_through_json(table):
    columns = learned(table)
    again = Columns.from_config(json.loads(json.dumps(columns.get_config(), allow_nan=False)))
    np.testing.assert_array_equal(again.encode(table), columns.encode(table))


def rows_alone(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Each row as a frame with the dtypes that its own cells suggest."""
    for i in range(len(frame)):
        yield pd.DataFrame({name: [frame[name].iloc[i]] for name in frame})


def test_mixed_table_is_encoded_row_by_row():
    frame = mixed_frame()
    columns = Columns.learn(frame)
    alone = np.vstack([columns.encode(row) for row in rows_alone(frame)])
    np.testing.assert_array_equal(alone, columns.encode(frame))
