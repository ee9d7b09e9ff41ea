"""Tables read from files and written to them. A file or folder is written completely or not at all."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pandas.api.types import is_float_dtype, is_object_dtype, is_string_dtype

from credo._arguments import check_integer
from credo._files import atomic_file, check_folder_writable, write_lock
from credo._text import closest_name, counted, listed, quoted
from credo.errors import InputError
from credo.tabular.dialects import Dialect
from credo.tabular.parsing import parse_number
from credo.tabular.readings import complete_dialect
from credo.tabular.table_files import open_table
from credo.tabular.table_interface import TableFile

MIN_ROWS = 10
"""Minimum number of rows of a training table."""

MAX_ROWS, MAX_CELLS, MAX_SIZE = 2**24, 2**29, 2**32
"""Maximum numbers of rows, cells and bytes of a table in memory, so that a small compressed file cannot fill it."""

DIGITS = "%.10g"
"""The format of floating-point numbers in CSV files of predictions."""

_QUOTED = re.compile(r'[",;\t|\r\n]|^[\s\ufeff]')
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def read_table(
    path: str | Path,
    *,
    target: str | None = None,
    min_rows: int = 1,
    decimal: str | None = None,
    dayfirst: bool | None = None,
    types: Mapping[str, str] | None = None,
    encoding: str | None = None,
    as_text: Sequence[str] = (),
) -> pd.DataFrame:
    """Read a CSV or Parquet file. The format is detected from the content, not from the name.

    CSV may be delimited by commas, semicolons, tabs or bars, in UTF-8, UTF-16, Korean CP949 or Western CP1252, with or
    without a byte order mark, and gzipped. Its first line contains the names of the columns; blank lines, and titles
    and comments above the names, are skipped.

    Columns of plain numbers are converted. Cells that may be written in another way, such as ``1.234,50 €``,
    ``31.12.2024`` or ``?``, remain text: the estimators decide from the whole column how it is read, say so where there
    is more than one way, and save the decision, so that a later file is read in the same way. ``decimal``, ``dayfirst``
    and ``types`` choose otherwise; they are attached to the table (``table.attrs``), and its parts inherit them.

    Args:
        path: the file.
        target: a column that must be there; ``None``: any columns.
        min_rows: the minimum number of rows.
        decimal: the decimal mark, ``"."`` or ``","``, of columns that can be read in both ways, such as ``1,234``;
            ``None``: that of the other columns, or ``","`` if the delimiter is a semicolon.
        dayfirst: whether the day is before the month in dates such as ``03/04/2024``; ``None``: as in other columns of
            dates, or ``True`` if the decimal mark is ``","``.
        types: the types of some columns, ``"number"``, ``"date"`` or ``"category"``, by name.
        encoding: the encoding of a CSV file; ``None``: detected.
        as_text: columns of a CSV file that are not converted: ``007`` is not 7, and ``NA`` is not missing.

    Returns:
        The table.

    Raises:
        InputError: if the file cannot be read, is damaged or too large, or has no column ``target`` or too few rows.

    Example:
        >>> import pathlib, tempfile
        >>> import pandas as pd
        >>> from credo.tabular import read_table
        >>> path = pathlib.Path(tempfile.mkdtemp(), "houses.csv")
        >>> pd.DataFrame({"area": [50, 80], "price": [100, 150]}).to_csv(path, sep=";", index=False)
        >>> read_table(path, target="price").shape
        (2, 2)
    """
    dialect = Dialect.make(decimal, dayfirst, types)
    file = open_table(Path(path), encoding)
    for name in dialect.types:
        if name not in file.names:
            raise InputError(f"{path} has no column {quoted(name)} to read as given: {_suggest_column(name, file)}")
    if target is not None and target not in file.names:
        raise InputError(f"{path} has no column {quoted(target)}: {_suggest_column(target, file)}")
    if file.n_rows < min_rows:
        raise InputError(
            f"{path} has {counted(file.n_rows, 'row')} below its header, but at least {min_rows} are needed: add some"
        )
    if file.n_rows > MAX_ROWS or file.n_rows * len(file.names) > MAX_CELLS or file.size > MAX_SIZE:
        raise InputError(
            f"{path} has {counted(file.n_rows, 'row')} of {counted(len(file.names), 'column')}, "
            f"{file.size / 2**30:.1f} GiB, which is too much to be read as a whole: use a sample of the rows"
        )
    frame = file.read([name for name in as_text if name in file.names])
    return complete_dialect(replace(dialect, delimiter=file.delimiter), frame).attach(frame)


def read_chunks(
    path: str | Path, rows: int = 50_000, *, encoding: str | None = None, as_text: Sequence[str] = ()
) -> Iterator[pd.DataFrame]:
    """Read a CSV or Parquet file in chunks, for files larger than memory.

    The whole file is validated before the first chunk is returned. The dtypes of a chunk are those of its own rows: a
    column may contain integers in one chunk and text in the next. :class:`~credo.tabular.columns.Columns` encodes a row
    the same way in any chunk.

    Args:
        path: the file, as in :func:`read_table`.
        rows: the maximum number of rows per chunk.
        encoding: the encoding of a CSV file; ``None``: detected.
        as_text: columns of a CSV file that are not converted, such as those of ``model.columns_.formats``, whose text
            a model reads as in training.

    Returns:
        An iterator over the chunks.

    Raises:
        InputError: if the file cannot be read or is damaged.
    """
    file = open_table(Path(path), encoding)
    return file.chunks(check_integer(rows, "rows", minimum=1), [name for name in as_text if name in file.names])


def write_table(chunks: Iterable[pd.DataFrame], path: str | Path) -> int:
    """Write a table in chunks: as Parquet if the name ends in ``.parquet``, gzipped CSV for ``.gz``, else CSV.

    Returns:
        The number of rows.
    """
    suffix = Path(path).suffix.lower()
    with atomic_file(path) as part:
        if suffix == ".parquet":
            return _write_parquet(chunks, part, Path(path))
        opened = gzip.open if suffix == ".gz" else open
        with opened(part, "wt", encoding="utf-8", newline="") as stream:
            return write_csv(chunks, stream)


def write_csv(chunks: Iterable[pd.DataFrame], stream: IO[str]) -> int:
    """Write a table as CSV in chunks, and return the number of rows."""
    rows = 0
    for chunk in chunks:
        stream.write(to_csv(chunk, DIGITS, header=rows == 0))
        rows += len(chunk)
    stream.flush()
    return rows


def to_csv(frame: pd.DataFrame, digits: str | None = None, header: bool = True) -> str:
    """``frame`` as CSV that :func:`read_table` reads back with the same text in every cell.

    Python's csv module, and so pandas, does not quote a bare carriage return before Python 3.13, nor cells with
    semicolons, tabs or bars, which may be mistaken for delimiters.

    Args:
        frame: the table.
        digits: the format of floats, such as ``"%.10g"``; ``None``: as many digits as needed to restore them.
        header: whether to begin with the names of the columns.

    Returns:
        The text of the file.

    Raises:
        InputError: if a cell contains a character that CSV cannot.
    """
    columns = [_fields(frame.iloc[:, j], digits) for j in range(frame.shape[1])]
    lines = [",".join(_field(str(name)) for name in frame.columns)] if header else []
    lines += [",".join(row) or '""' for row in zip(*columns, strict=True)]  # an empty line would be skipped
    text = "".join(f"{line}\n" for line in lines)
    if "\0" in text or not _is_unicode(text):
        raise InputError(
            f"a column holds a NUL character or half of a surrogate pair, which CSV cannot: {_unwritable(frame)}"
        )
    return text


def escape_formulas(chunks: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables without text that a spreadsheet would interpret as a formula.

    A cell, or a name of a column, that begins with ``=``, ``+``, ``-``, ``@`` or white space before one of these, and
    is not a number, is prefixed with an apostrophe.

    Reference: OWASP, CSV injection, https://owasp.org/www-community/attacks/CSV_Injection.
    """
    for chunk in chunks:
        texts = {name: [escape_formula(cell) for cell in chunk[name]] for name in chunk if _is_text(chunk[name])}
        columns = {name: pd.Series(cells, chunk.index, dtype=object) for name, cells in texts.items()}
        yield chunk.assign(**columns).rename(columns=escape_formula)


def escape_formula(cell: Any) -> Any:
    """``cell``, prefixed with an apostrophe if a spreadsheet would interpret it as a formula."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and math.isnan(parse_number(cell))
    return f"'{cell}" if is_formula else cell


@contextlib.contextmanager
def reserve_folder(path: str | Path, names: Collection[str], marker: str) -> Iterator[None]:
    """Check that a folder can be written, and lock it until the end of the context.

    Args:
        path: the folder.
        names: the files that will be written to it.
        marker: the one of them by which a folder that may be replaced is recognized.

    Raises:
        InputError: if it cannot be written, contains other files, or is being written by another process.
    """
    with write_lock(path) as folder:
        check_folder_writable(folder, names)
        if folder.exists() and any(folder.iterdir()) and not (folder / marker).exists():
            raise InputError(f"{folder} holds other things and no {marker}: choose a new folder")
        yield


def _suggest_column(name: str, file: TableFile) -> str:
    closest = closest_name(name, file.names)
    return (
        f"did you mean {quoted(closest)}?" if closest else f"choose from {listed([quoted(n) for n in file.names], 12)}."
    )


def _write_parquet(chunks: Iterable[pd.DataFrame], part: Path, target: Path) -> int:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f"{target} would be a Parquet file, which needs pyarrow: pip install pyarrow") from error
    rows, schema = 0, None
    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            try:
                table = arrow.Table.from_pandas(chunk, schema, preserve_index=False)
            except arrow.ArrowException as error:
                raise InputError(
                    f"{target} cannot be written, because a column of the input mixes values of different types: write "
                    f"CSV, or leave it out ({error})"
                ) from error
            if schema is None:
                schema = table.schema
                writer = stack.enter_context(parquet.ParquetWriter(part, schema))
            writer.write_table(table)
            rows += len(chunk)
    return rows


def _fields(column: pd.Series, digits: str | None) -> list[str]:
    missing = column.isna().tolist()
    if digits is not None and is_float_dtype(column.dtype):
        return ["" if is_missing else digits % cell for cell, is_missing in zip(column.tolist(), missing, strict=True)]
    return ["" if is_missing else _field(str(cell)) for cell, is_missing in zip(column.tolist(), missing, strict=True)]


def _field(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""')) if _QUOTED.search(text) else text


def _is_text(column: pd.Series) -> bool:
    return bool(is_object_dtype(column.dtype) or is_string_dtype(column.dtype))


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
