"""Reading of CSV and Parquet files: values, chunks and errors."""

from __future__ import annotations

import csv
import gzip
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credo.errors import InputError
from credo.tabular.columns import Columns
from credo.tabular.files import MIN_ROWS, read_chunks, read_table, write_table
from credo.tabular.parsing import to_labels
from credo.tabular.table_files import open_table
from credo.tabular.table_interface import MAX_COLUMNS
from credo.tabular.targets import ClassTarget, RegressionTarget
from tabular.hostile import CORPUS, NOTED, REFUSED, SILENT, TARGET, Case, good_columns, to_csv


def notes_on(case: Case, path: Path) -> list[str]:
    """Everything that is said while a file becomes targets and features."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = read_table(path, target=TARGET, min_rows=MIN_ROWS)
    target = (RegressionTarget if case.task == "regression" else ClassTarget).learn(table[TARGET])
    columns = Columns.learn(table.drop(columns=TARGET))
    return [*(str(warning.message) for warning in caught), *target.notes, *columns.notes]


def named(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(REFUSED)
def test_bad_tables_raise(case, tmp_path):
    with pytest.raises(InputError) as caught:
        notes_on(case, case.write(tmp_path))
    sentence = str(caught.value)
    assert "\n" not in sentence
    for expected in case.words:
        assert expected.casefold() in sentence.casefold()


@named(NOTED)
def test_odd_tables_warn(case, tmp_path):
    said = " ".join(notes_on(case, case.write(tmp_path)))
    for expected in case.words:
        assert expected.casefold() in said.casefold()


@named(SILENT)
def test_good_tables_do_not_warn(case, tmp_path):
    path = case.write(tmp_path)
    assert notes_on(case, path) == []
    table, good = read_table(path), good_columns()
    assert len(table) == len(good["x"])
    assert table["x"].tolist() == good["x"]
    assert table["color"].tolist() == good["color"]


def test_case_names_are_unique():
    assert len({case.name for case in CORPUS}) == len(CORPUS)


def test_names_and_quoted_cells_are_unchanged(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text('größe, spaced ,"new\nline",,"say ""hi"""\n1,2,"a\nb",3,"c,d"\n', encoding="utf-8")
    table = read_table(path)
    assert list(table.columns) == ["größe", " spaced ", "new\nline", "Unnamed: 3", 'say "hi"']
    assert table.iloc[0].tolist() == [1, 2, "a\nb", 3, "c,d"]


def test_csv_field_size_limit_is_restored(tmp_path):
    before = csv.field_size_limit()
    path = tmp_path / "huge.csv"
    path.write_text(f"a,b\n1,{'x' * (before + 1)}\n")
    assert len(read_table(path)["b"][0]) == before + 1
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_chunks_equal_the_table(tmp_path, rows):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(to_csv(good_columns())))
    chunks = list(read_chunks(path, rows))
    assert {len(piece) for piece in chunks[:-1]} <= {rows}
    pd.testing.assert_frame_equal(pd.concat(chunks), read_table(path))


def test_bad_last_line_raises_before_the_first_chunk(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv(good_columns()) + b"1,2\n")
    with pytest.raises(InputError, match="line 42"):
        read_chunks(path, 5)


def test_mixed_line_endings_lose_no_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,2\n\r,\t\n3,4\n")
    with pytest.raises(InputError, match="line ending"):
        read_table(path)
    with pytest.raises(InputError, match="line ending"):
        list(read_chunks(path))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_quoted_delimiters_are_ignored(tmp_path, rows):
    """To a semicolon, the quotes of every other line pair up with those of the next."""
    path = tmp_path / "t.csv"
    path.write_text('a,"b;c"\n' + '1,"2;3"\n' * rows)
    table = read_table(path)
    assert list(table.columns) == ["a", "b;c"]
    assert table["b;c"].tolist() == ["2;3"] * rows


def test_delimiter_is_found_despite_a_quote_inside_a_field(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('size;what\n1;5" pipe\n2;rope, 3 m\n')
    assert read_table(path)["what"].tolist() == ['5" pipe', "rope, 3 m"]


BOMBS = {
    "cell": b"a,b\n1," + b"x" * 10_000_000,
    "quoted lines": b'a,b\n1,"' + b"xxxx xxxx xxxx xxxx xxxx\n" * 400_000 + b'"\n',
    "header": b"a," * 5_000_000,
    "bytes": b"a,b\n1,\xff" + b"x" * 10_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_rows_longer_than_the_limit_raise(tmp_path, name):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(BOMBS[name], 1))
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match=r"more than 4,194,304 characters|not text in UTF-8 \(byte 0xff in line 2\)"):
        read_table(path)


def test_too_many_columns_raise(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(map(str, range(MAX_COLUMNS + 1)))] * 2))
    with pytest.raises(InputError, match="has 100,001 columns, but a table may have 100,000 at most"):
        read_table(path)


@pytest.mark.parametrize(
    ("limit", "words"),
    [("MAX_ROWS", "40 rows of 4 columns"), ("MAX_CELLS", "too much to be read as a whole"), ("MAX_SIZE", "GiB")],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_larger_than_memory_raise(tmp_path, monkeypatch, limit, words, suffix):
    path = tmp_path / f"t{suffix}"
    write_table([pd.DataFrame(good_columns())], path)
    monkeypatch.setattr(f"credo.tabular.files.{limit}", 39)
    with pytest.raises(InputError, match=words):
        read_table(path)
    assert sum(map(len, read_chunks(path))) == 40


def test_long_rows_give_small_chunks(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 10 + f"3,{'x' * 96}\n")
    for limit, size in (("_MAX_CHUNK_CHARACTERS", 300), ("_MAX_CHUNK_CELLS", 6)):
        with monkeypatch.context() as patch:
            patch.setattr(f"credo.tabular.table_interface.{limit}", size)
            assert [len(piece) for piece in read_chunks(path)] == [3, 3, 3, 2]


@pytest.mark.parametrize("line", [2, 30_000])
def test_nul_characters_raise(tmp_path, line):
    lines = ["a,b", *["1,some text"] * 40_000]
    lines[line - 1] = '1,"some\0text"'
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"binary file|line 30000 of .* holds a NUL character"):
        read_table(path)


def test_as_text_keeps_cells_unchanged(tmp_path):
    cells = ["007", "NA", "", "None", " x ", "1e3", "nan"]
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv({"code": cells, "x": cells}))
    (piece,) = open_table(path).chunks(100, as_text=["code"])
    assert piece["code"].tolist() == cells
    assert piece["x"].isna().tolist() == [cell in {"NA", "", "None", "nan"} for cell in cells]


def test_one_row_is_enough_to_predict(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    assert read_table(path).shape == (1, 2)
    with pytest.raises(InputError, match="rows must be an integer of at least 1, got 0"):
        read_chunks(path, 0)


def test_paths_that_are_not_files_raise(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_table(str(tmp_path / "nowhere.csv"))
    with pytest.raises(InputError, match="a pipe or a device"):
        read_table(os.devnull)


def test_missing_target_column_raises(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("Price,rooms,year\n1,2,3\n")
    with pytest.raises(InputError, match=r"t\.csv has no column 'price': did you mean 'Price'\?"):
        read_table(path, target="price")
    with pytest.raises(InputError, match="choose from 'Price', 'rooms', 'year'"):
        read_table(path, target="q")


TEXTS = [
    "",
    "NA",
    "nan",
    "True",
    "TRUE",
    "false",
    "a",
    " a ",
    "é",
    "0x1",
    "1_000",
    "1,5",
    "2024-01-05",
    'q"q',
    "two\nlines",
]
DIGITS = ["1", "007", "1.0", "-0", "2.50", "1e3", "1e999", "inf", "١٢", "9223372036854775808", "18446744073709551616"]
CELLS = st.sampled_from([*TEXTS, *DIGITS])


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_labels_do_not_depend_on_the_chunk(rows):
    """pandas gives a piece the dtypes of its own rows: "007" is 7 alone and text beside an "a"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(to_csv({"a": [a for a, _ in rows], "b": [b for _, b in rows]}))
        whole, chunks = read_table(path), list(read_chunks(path, 1))
    for j, name in enumerate("ab"):
        as_written = to_labels(pd.Series([row[j] for row in rows], dtype=object))
        assert to_labels(whole[name]) == as_written
        assert [to_labels(piece[name])[0] for piece in chunks] == as_written


def test_reading_parquet_without_pyarrow_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match="pip install pyarrow"):
        read_table(path)


def test_parquet_is_read_completely_and_in_chunks(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(good_columns()).assign(gaps=[None, *range(39)])
    frame.index = pd.Index([f"row {i}" for i in range(len(frame))])
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    table = read_table(path, target=TARGET, min_rows=MIN_ROWS)
    pd.testing.assert_frame_equal(table, frame.reset_index(drop=True), check_dtype=False)
    columns = Columns.learn(table)
    chunks = np.vstack([columns.encode(piece) for piece in read_chunks(path, 7)])
    np.testing.assert_array_equal(chunks, columns.encode(table))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged Parquet"):
        read_table(path)
