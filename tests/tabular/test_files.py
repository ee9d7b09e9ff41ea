"""Writing of tables and folders, completely or not at all."""

from __future__ import annotations

import gzip
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credo._files import atomic_file
from credo.errors import InputError
from credo.tabular.files import escape_formulas, reserve_folder, to_csv, write_csv, write_table
from credo.tabular.parsing import to_labels
from credo.tabular.table_files import open_table

PIECES = [pd.DataFrame({"a": [1.5, None], "b": ["x", "y, z"]}), pd.DataFrame({"a": [np.pi], "b": ['"q"']})]
TEXT = 'a,b\n1.5,x\n,"y, z"\n3.141592654,"""q"""\n'


def failing():
    yield PIECES[0]
    raise RuntimeError("half way")


def test_chunks_are_written_as_one_csv(tmp_path):
    assert write_table(PIECES, tmp_path / "new" / "a.csv") == 3
    assert (tmp_path / "new" / "a.csv").read_bytes() == TEXT.encode()
    stream = io.StringIO()
    assert write_csv(PIECES, stream) == 3
    assert stream.getvalue() == TEXT


def test_format_follows_from_the_name(tmp_path):
    assert write_table(PIECES, tmp_path / "a.csv.gz") == 3
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode() == TEXT
    pytest.importorskip("pyarrow")
    assert write_table(PIECES, tmp_path / "a.parquet") == 3
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), pd.concat(PIECES, ignore_index=True))


def test_mixed_types_cannot_be_written_as_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    chunks = [pd.DataFrame({"id": [1, 2]}), pd.DataFrame({"id": ["three"]})]
    with pytest.raises(InputError, match="values of different types"):
        write_table(chunks, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_writing_parquet_without_pyarrow_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        write_table(PIECES, tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_failed_write_changes_nothing(tmp_path, name):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text("mine")
    with pytest.raises(RuntimeError, match="half way"):
        write_table(failing(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_existing_file_is_replaced(tmp_path):
    for text in ("old", "new"):
        with atomic_file(tmp_path / "a.txt") as part:
            part.write_text(text)
    assert (tmp_path / "a.txt").read_text() == "new"


ODD = st.text(st.sampled_from(",;|\t\r\n\"' =-\ufeff\u2028\x1c\x85aé0"), max_size=6)
TEXT_CELLS = ODD | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = st.lists(TEXT_CELLS.filter(str.strip), min_size=1, max_size=3, unique=True)


@settings(max_examples=150)
@given(data=st.data(), names=NAMES, suffix=st.sampled_from([".csv", ".csv.gz"]))
def test_text_round_trip(data, names, suffix):
    """What ``--keep`` carries over, and what a run folder holds, whatever the cells and the names of the columns."""
    rows = data.draw(st.lists(st.tuples(*[TEXT_CELLS] * len(names)), min_size=1, max_size=6))
    frame = pd.DataFrame(rows, columns=names, dtype=object)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        assert write_table([frame[:2], frame[2:]], path) == len(frame)
        source = open_table(path)
        back = pd.concat(source.chunks(4, as_text=names))
        whole = source.read()
    assert source.names == tuple(names)
    assert back.to_numpy(object).tolist() == frame.to_numpy(object).tolist()
    for name in names:
        assert to_labels(whole[name]) == to_labels(frame[name])


def test_text_that_csv_cannot_represent_raises():
    with pytest.raises(InputError, match=r"NUL character .* clean 'b'"):
        to_csv(pd.DataFrame({"a": ["x"], "b": ["x\0"]}))
    with pytest.raises(InputError, match=r"surrogate .* clean 'b'"):
        to_csv(pd.DataFrame({"a": [1], "b": ["\ud800"]}, dtype=object))


FORMULAS = ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "-x"]
HARMLESS = ["-2.5", "+1e3", "-inf", "a=b", "", "2024-01-05", "'=1", "p_=1"]


def test_formulas_are_escaped():
    frame = pd.DataFrame({"=name": FORMULAS, "text": FORMULAS, "x": np.linspace(-1.0, 1.0, len(FORMULAS))})
    (safe,) = escape_formulas([frame])
    assert list(safe.columns) == ["'=name", "text", "x"]
    assert safe["text"].tolist() == [f"'{cell}" for cell in FORMULAS]
    assert safe["x"].tolist() == frame["x"].tolist()
    frame = pd.DataFrame({"text": [*HARMLESS, None, 3]}, dtype=object)
    (same,) = escape_formulas([frame])
    pd.testing.assert_frame_equal(same, frame)


def test_unwritable_folders_raise(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a folder"), atomic_file(tmp_path):
        pass
    with pytest.raises(InputError, match="cannot be written"), atomic_file(tmp_path / "file" / "a.csv"):
        pass


def test_other_folders_are_not_replaced(tmp_path):
    names, proof = ("a.json", "b.html"), "a.json"

    def refused(folder, words):
        with pytest.raises(InputError, match=words), reserve_folder(folder, names, proof):
            pytest.fail("work would begin")

    folder = tmp_path / "folder"
    folder.mkdir()
    for good in (folder / "new" / "er", folder):
        with reserve_folder(good, names, proof):
            pass
    assert not list(folder.iterdir())
    (folder / "b.html").touch()
    refused(folder, r"and no a\.json")
    (folder / "a.json").touch()
    with reserve_folder(folder, names, proof):
        pass
    (folder / "c.txt").touch()
    refused(folder, r"holds other things \(c\.txt\)")
    refused(folder / "c.txt" / "new", "cannot be written")
    refused(tmp_path / ("x" * 300), "File name too long")
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.html", "c.txt"]
