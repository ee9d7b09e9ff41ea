"""Tables and pages written to files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

import pandas as pd

from credo._files import check_replaceable, recover
from credo.errors import InputError

DIGITS = "%.10g"
"""How numbers are written as text: more digits than a prediction has meaning, few enough to read."""


def write_table(pieces: Iterable[pd.DataFrame], path: str | Path) -> int:
    """Write a table, some rows at a time, and return how many there were.

    The end of the name decides: ``.parquet``, gzipped CSV for ``.gz``, else CSV.
    """
    suffix = Path(path).suffix.lower()
    with whole_file(path) as part:
        if suffix == ".parquet":
            return _write_parquet(pieces, part, Path(path))
        opened = gzip.open if suffix == ".gz" else open
        with opened(part, "wt", encoding="utf-8", newline="") as stream:
            return write_csv(pieces, stream)


def write_csv(pieces: Iterable[pd.DataFrame], stream: IO[str]) -> int:
    """Write a table as CSV, some rows at a time, and return how many there were."""
    rows = 0
    for piece in pieces:
        piece.to_csv(stream, index=False, header=rows == 0, float_format=DIGITS, lineterminator="\n")
        rows += len(piece)
    stream.flush()
    return rows


def write_page(path: str | Path, html: str) -> None:
    """Write a page of HTML."""
    with whole_file(path) as part:
        part.write_text(html, encoding="utf-8")


def check_folder(path: str | Path, names: Collection[str], proof: str) -> None:
    """Refuse, before any work, a folder that cannot be made, or that holds other things than would be written there.

    Args:
        path: the folder.
        names: the files that would be written to it.
        proof: the one of them without which a folder is not what it would be taken for.
    """
    folder = recover(path)
    check_replaceable(folder, names)
    if folder.exists():
        if any(folder.iterdir()) and not (folder / proof).exists():
            raise InputError(f"{folder} holds other things, for it has no {proof}; choose a new folder")
        return
    parent = next(p for p in folder.parents if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InputError(f"{folder} cannot be made, because {parent} cannot be written to: choose another folder")


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A new file to write to, which takes the place of ``path`` at the end, and is gone where anything failed."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder: give the name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            part.chmod(0o644)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from error


def _write_parquet(pieces: Iterable[pd.DataFrame], part: Path, target: Path) -> int:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f"{target} would be a Parquet file, which needs pyarrow: pip install pyarrow") from error
    rows, schema = 0, None
    with contextlib.ExitStack() as stack:
        for piece in pieces:
            try:
                table = arrow.Table.from_pandas(piece, schema, preserve_index=False)
            except arrow.ArrowException as error:
                raise InputError(
                    f"{target} cannot be written, because a column of the input holds values of different kinds: write "
                    f"CSV, or leave it out ({error})"
                ) from error
            if schema is None:
                schema = table.schema
                writer = stack.enter_context(parquet.ParquetWriter(part, schema))
            writer.write_table(table)
            rows += len(piece)
    return rows
