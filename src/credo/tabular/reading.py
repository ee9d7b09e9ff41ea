"""Tables from CSV and Parquet files, whole or in pieces, or a sentence that says what is wrong with the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from credo.errors import InputError
from credo.tabular.sources import Source, open_source
from credo.tabular.wording import counted, listed, nearest, quoted

FEWEST_ROWS = 10
"""Rows that a table needs for a model to learn anything from it."""

MOST_ROWS, MOST_CELLS, LARGEST_SIZE = 2**24, 2**29, 2**32
"""Rows, cells and bytes of a table that is read as a whole, so that a small compressed file cannot fill the memory."""


def read_table(path: str | Path, *, target: str | None = None, min_rows: int = 1) -> pd.DataFrame:
    """The table in a file.

    CSV may be separated by commas, semicolons, tabs or bars, in UTF-8 with or without a byte order mark, and gzipped;
    its first line holds the names of the columns, numbers have a decimal point, and lines without anything are
    skipped. Which format a file has is seen from its content, not from its name.

    Args:
        path: the file.
        target: a column that must be there.
        min_rows: how many rows it must have; :data:`FEWEST_ROWS` for a table to learn from.
    """
    source = open_source(Path(path))
    if target is not None and target not in source.names:
        raise InputError(f"{path} has no column {quoted(target)}: {_advice(target, source)}")
    if source.n_rows < min_rows:
        raise InputError(
            f"{path} has {counted(source.n_rows, 'row')} below its header, but at least {min_rows} are needed: add some"
        )
    if source.n_rows > MOST_ROWS or source.n_rows * len(source.names) > MOST_CELLS or source.size > LARGEST_SIZE:
        raise InputError(
            f"{path} has {counted(source.n_rows, 'row')} of {counted(len(source.names), 'column')}, "
            f"{source.size / 2**30:.1f} GiB, which is too much to be read as a whole: draw some of the rows"
        )
    return source.read()


def read_chunks(path: str | Path, rows: int = 50_000) -> Iterator[pd.DataFrame]:
    """The table in a file, some rows at a time, for files larger than memory.

    All of the file is checked before the first piece comes, so that nothing is half done where its last line is bad.
    The dtypes of a piece are those of its own rows: a column may hold integers in one and text in the next.
    :class:`~credo.tabular.columns.Columns` encodes a row alike in any piece.

    Args:
        path: the file, as :func:`read_table` takes it.
        rows: the most rows of one piece.
    """
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    return open_source(Path(path)).pieces(rows)


def _advice(target: str, source: Source) -> str:
    near = nearest(target, source.names)
    return f"did you mean {quoted(near)}?" if near else f"choose from {listed([quoted(n) for n in source.names], 12)}."
