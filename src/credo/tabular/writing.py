"""Tables written to files, and folders for them, that appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import math
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pandas.api import types

from credo._files import rehearse_folder, reserved, whole_file
from credo.errors import InputError
from credo.tabular.cells import number
from credo.tabular.wording import quoted

DIGITS = "%.10g"
"""How numbers are written as text: more digits than a prediction has meaning, few enough to read."""

_QUOTED = re.compile(r'[",;\t|\r\n]|^[\s\ufeff]')
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


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
        stream.write(to_csv(piece, DIGITS, header=rows == 0))
        rows += len(piece)
    stream.flush()
    return rows


def to_csv(frame: pd.DataFrame, digits: str | None = None, header: bool = True) -> str:
    """``frame`` as CSV that :mod:`credo.tabular.sources` reads back with the same text in every cell.

    Python's csv module, and so pandas, leaves a bare carriage return unquoted before Python 3.13, and cells with
    semicolons, tabs or bars, which may be taken for the delimiters.

    Args:
        frame: the table.
        digits: how to write floats, such as ``"%.10g"``; by default with as many digits as it takes.
        header: whether to begin with the names of the columns.
    """
    columns = [_fields(frame.iloc[:, j], digits) for j in range(frame.shape[1])]
    lines = [",".join(_field(str(name)) for name in frame.columns)] if header else []
    lines += [",".join(row) or '""' for row in zip(*columns, strict=True)]  # an empty line would be no row
    text = "".join(f"{line}\n" for line in lines)
    if "\0" in text or not _is_unicode(text):
        raise InputError(
            f"a column holds a NUL character or half of a surrogate pair, which CSV cannot: {_unwritable(frame)}"
        )
    return text


def without_formulas(pieces: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables whose text no spreadsheet takes for a formula.

    A cell, or a name of a column, that begins with ``=``, ``+``, ``-``, ``@`` or white space before one of these, and
    is not a number, gets an apostrophe in front.

    Reference: OWASP, CSV injection, https://owasp.org/www-community/attacks/CSV_Injection.
    """
    for piece in pieces:
        texts = {name: [harmless(cell) for cell in piece[name]] for name in piece if _is_text(piece[name])}
        columns = {name: pd.Series(cells, piece.index, dtype=object) for name, cells in texts.items()}
        yield piece.assign(**columns).rename(columns=harmless)


def harmless(cell: Any) -> Any:
    """``cell``, with an apostrophe in front where a spreadsheet would take it for a formula."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and math.isnan(number(cell))
    return f"'{cell}" if is_formula else cell


@contextlib.contextmanager
def folder_for(path: str | Path, names: Collection[str], proof: str) -> Iterator[None]:
    """Before any work, make sure that a folder can be written; keep other writers away from it until the end.

    Args:
        path: the folder.
        names: the files that will be written to it.
        proof: the one of them without which a folder is not what it would be taken for.

    Raises:
        InputError: it cannot be written, or it holds other things, or another process is writing it.
    """
    with reserved(path) as folder:
        rehearse_folder(folder, names)
        if folder.exists() and any(folder.iterdir()) and not (folder / proof).exists():
            raise InputError(f"{folder} holds other things, for it has no {proof}; choose a new folder")
        yield


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


def _fields(column: pd.Series, digits: str | None) -> list[str]:
    missing = column.isna().tolist()
    if digits is not None and types.is_float_dtype(column.dtype):
        return ["" if gap else digits % cell for cell, gap in zip(column.tolist(), missing, strict=True)]
    return ["" if gap else _field(str(cell)) for cell, gap in zip(column.tolist(), missing, strict=True)]


def _field(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""')) if _QUOTED.search(text) else text


def _is_text(column: pd.Series) -> bool:
    return bool(types.is_object_dtype(column.dtype) or types.is_string_dtype(column.dtype))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unwritable(frame: pd.DataFrame) -> str:
    cells = ((name, cell) for name in frame for cell in (name, *frame[name]) if isinstance(cell, str))
    name = next(name for name, cell in cells if "\0" in cell or not _is_unicode(cell))
    return f"clean {quoted(name)}, or leave it out"
