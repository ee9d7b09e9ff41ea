"""Files that appear whole or not at all."""

from __future__ import annotations

import gzip
import io
import sys

import numpy as np
import pandas as pd
import pytest

from credo.errors import InputError
from credo.tabular.writing import check_folder, whole_file, write_csv, write_page, write_table

PIECES = [pd.DataFrame({"a": [1.5, None], "b": ["x", "y, z"]}), pd.DataFrame({"a": [np.pi], "b": ['"q"']})]
TEXT = 'a,b\n1.5,x\n,"y, z"\n3.141592654,"""q"""\n'


def failing():
    yield PIECES[0]
    raise RuntimeError("half way")


def test_pieces_become_one_csv(tmp_path):
    assert write_table(PIECES, tmp_path / "new" / "a.csv") == 3
    assert (tmp_path / "new" / "a.csv").read_bytes() == TEXT.encode()
    stream = io.StringIO()
    assert write_csv(PIECES, stream) == 3
    assert stream.getvalue() == TEXT


def test_the_name_decides_on_the_format(tmp_path):
    assert write_table(PIECES, tmp_path / "a.csv.gz") == 3
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode() == TEXT
    pytest.importorskip("pyarrow")
    assert write_table(PIECES, tmp_path / "a.parquet") == 3
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), pd.concat(PIECES, ignore_index=True))


def test_a_column_of_several_kinds_does_not_fit_into_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    pieces = [pd.DataFrame({"id": [1, 2]}), pd.DataFrame({"id": ["three"]})]
    with pytest.raises(InputError, match="values of different kinds"):
        write_table(pieces, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        write_table(PIECES, tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_what_fails_half_way_leaves_everything_as_it_was(tmp_path, name):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text("mine")
    with pytest.raises(RuntimeError, match="half way"):
        write_table(failing(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_page_takes_the_place_of_an_old_one(tmp_path):
    for html in ("<p>old</p>", "<p>größer</p>"):
        write_page(tmp_path / "page.html", html)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "<p>größer</p>"


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a folder"), whole_file(tmp_path):
        pass
    with pytest.raises(InputError, match="cannot be written"), whole_file(tmp_path / "file" / "a.csv"):
        pass


def test_only_a_folder_of_its_own_kind_is_replaced(tmp_path):
    names, proof = ("a.json", "b.html"), "a.json"
    check_folder(tmp_path / "new" / "er", names, proof)
    check_folder(tmp_path, names, proof)
    (tmp_path / "b.html").touch()
    with pytest.raises(InputError, match=r"it has no a\.json"):
        check_folder(tmp_path, names, proof)
    (tmp_path / "a.json").touch()
    check_folder(tmp_path, names, proof)
    (tmp_path / "c.txt").touch()
    with pytest.raises(InputError, match=r"holds other things \(c\.txt\)"):
        check_folder(tmp_path, names, proof)
    with pytest.raises(InputError, match="cannot be made"):
        check_folder(tmp_path / "c.txt" / "new", names, proof)
