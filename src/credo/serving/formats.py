"""Bodies of requests as tables, and tables as bodies of answers: JSON, CSV, Arrow streams and Parquet.

Bodies come from anyone. So compressed ones, whose size in memory is not known before it is too late, are refused, and
what can be checked without decoding, such as the number of rows, is checked first. Nothing is written to a disk.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo._text import quoted
from credo.errors import InputError
from credo.serving.arrow_tables import import_arrow, read_arrow, read_parquet
from credo.serving.options import Refusal, ServerOptions, too_many_rows
from credo.serving.served_model import FLAGS, WARNINGS_LOCK, ServedModel
from credo.tabular.files import DIGITS, escape_formulas, to_csv
from credo.tabular.table_files import open_table

JSON, CSV = "application/json", "text/csv"
ARROW, PARQUET = "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"
FORM = "multipart/form-data"
ANSWERS = (JSON, CSV, ARROW, PARQUET)
"""The media types of answers, the first one if the client does not mind."""

_ALIASES = {
    "text/json": JSON,
    "application/csv": CSV,
    "application/x-parquet": PARQUET,
    "application/parquet": PARQUET,
    "application/vnd.apache.arrow": ARROW,
}
_GZIP = b"\x1f\x8b"
_NO_MEMORY_FILES = not hasattr(os, "memfd_create")


class Table(NamedTuple):
    """A table from the body of a request: its rows, and sentences about how it was read."""

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()


def media_type(header: str | None) -> str:
    """The media type of a body.

    Args:
        header: the header ``Content-Type``.

    Returns:
        One of JSON, CSV, ARROW, PARQUET and FORM.

    Raises:
        Refusal: with status 415, if it is another or missing.
    """
    name = (header or "").partition(";")[0].strip().lower()
    name = _ALIASES.get(name, name)
    if name not in (*ANSWERS, FORM):
        given = quoted(header) if header else "none"
        raise Refusal(415, f"the Content-Type must be one of {', '.join((*ANSWERS, FORM))}, got {given}")
    return name


def accepted_type(header: str | None, default: str) -> str:
    """The media type of an answer: of those that the client accepts, the one it prefers.

    Args:
        header: the header ``Accept``; ``None`` or ``*/*``: anything.
        default: what a client gets that accepts anything.

    Returns:
        One of :data:`ANSWERS`.

    Raises:
        Refusal: with status 406, if the client accepts none of them.
    """
    wishes = []
    for position, part in enumerate((header or "*/*").split(",")[:50]):
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        wishes.append((-_quality(parameters), position, _ALIASES.get(name, name)))
    for quality, _, name in sorted(wishes):
        if quality == 0.0:
            continue
        if name == "*/*":
            return default
        if name in ANSWERS:
            return name
        if name.endswith("/*"):
            matching = [known for known in ANSWERS if known.startswith(name[:-1])]
            if matching:
                return default if default in matching else matching[0]
    raise Refusal(406, f"answers are {', '.join(ANSWERS)}: accept one of them")


def parse_json(body: bytes, options: ServerOptions) -> Any:
    """Parse JSON with limits on its depth, its number of rows and its memory.

    Args:
        body: the text, in UTF-8.
        options: the limits.

    Returns:
        The value.

    Raises:
        Refusal: if it is no JSON, or too large.
    """
    from pydantic_core import from_json

    # Brackets take 30 times their size in memory. Twice as many as rows, because words may contain some.
    if body.count(b"{") + body.count(b"[") > 2 * options.max_rows + 100:
        raise too_many_rows(options)
    try:
        rows = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(422, f"the body is no JSON in UTF-8: {str(error)[:200]}") from error
    if isinstance(rows, list) and len(rows) > options.max_rows:
        raise too_many_rows(options)
    return rows


def read_table(
    body: bytes, kind: str, model: ServedModel, options: ServerOptions, as_text: Sequence[str] = ()
) -> Table:
    """Read the table of a body that is not JSON.

    Args:
        body: its bytes.
        kind: CSV, ARROW or PARQUET.
        model: says which columns are read as text.
        options: the limits.
        as_text: further columns of CSV that are not converted, because they are copied to the answer; ``*``: all.

    Returns:
        The table.

    Raises:
        Refusal: if it is damaged, compressed or too large.
    """
    if not body:
        raise Refusal(422, "the body is empty: send a table")
    if body.startswith(_GZIP):
        raise Refusal(415, "compressed bodies are not accepted: send the table without compression")
    try:
        if kind == CSV:
            return _read_csv(body, options, [*model.estimator.columns_.formats, *as_text])
        return Table(read_arrow(body, options) if kind == ARROW else read_parquet(body, options))
    except InputError as error:
        raise Refusal(422, str(error)) from error


def write_table(frame: pd.DataFrame, kind: str) -> bytes:
    """A table as the body of an answer.

    Args:
        frame: the table.
        kind: CSV, ARROW or PARQUET.

    Returns:
        The bytes. In CSV, cells that a spreadsheet would run as a formula have an apostrophe before them.

    Raises:
        Refusal: if a kept column cannot be written.
    """
    if kind == CSV:
        (escaped,) = escape_formulas([frame])
        try:
            return to_csv(escaped, DIGITS).encode()
        except InputError as error:
            raise Refusal(422, str(error)) from error
    arrow = import_arrow("pyarrow")
    try:
        table = arrow.Table.from_pandas(frame, preserve_index=False)
    except arrow.ArrowException as error:
        raise Refusal(422, f"a kept column mixes values of different types: leave it out ({error})") from error
    sink = io.BytesIO()
    if kind == PARQUET:
        import_arrow("pyarrow.parquet").write_table(table, sink)
    else:
        with import_arrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def write_json(columns: Mapping[str, NDArray[Any]], notes: Sequence[str], version: str) -> bytes:
    """Predictions as JSON, with the digits that ``credo predict`` writes.

    Args:
        columns: the columns of the answer.
        notes: sentences about the rows.
        version: that of the model.

    Returns:
        The text.
    """
    from pydantic_core import to_json

    cells = {name: _json_cells(name, values) for name, values in columns.items()}
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return to_json({"predictions": rows, "notes": list(notes), "model": version}, inf_nan_mode="null")


def _json_cells(name: str, values: NDArray[Any]) -> list[Any]:
    if name == FLAGS:
        return list(map(list, values))
    if values.dtype.kind == "f":
        return [float(DIGITS % value) for value in values.tolist()]
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in values.tolist()]


def _read_csv(body: bytes, options: ServerOptions, as_text: Sequence[str]) -> Table:
    # A row is one line at least, so that the rows of a large body need not be parsed to be counted as too many.
    if max(body.count(b"\n"), body.count(b"\r")) > 2 * options.max_rows + 100:
        raise too_many_rows(options)
    with _file(body) as path, WARNINGS_LOCK, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            file = open_table(path)
            if file.n_rows > options.max_rows:
                raise too_many_rows(options)
            frame = file.read([name for name in file.names if name in as_text or "*" in as_text])
        except InputError as error:
            raise Refusal(422, str(error).replace(str(path), "the table")) from error
        except ValueError as error:  # of pandas
            raise Refusal(422, f"the table cannot be read: {str(error)[:200]}") from error
    return Table(frame, tuple(str(warning.message).replace(str(path), "the table") for warning in caught))


@contextlib.contextmanager
def _file(body: bytes) -> Iterator[Path]:
    """A file with this content, in memory where the system has such files."""
    if _NO_MEMORY_FILES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            path.write_bytes(body)
            yield path
        return
    handle = os.memfd_create("table")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(body)
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
