"""The value of a single cell: missing, a number, a date or a label.

The same cell may be the text ``"007"`` in one file, the integer 7 in another and, in a column with missing values,
7.0. Every function here therefore looks at one cell alone, never at other rows or at the dtype of the column, and
returns the same number and the same label for all three. Reading a file in chunks cannot change the values.

* A cell is **missing** if it is ``None``, NaN, NaT, ``pandas.NA``, or one of the texts in :data:`MISSING_TEXTS`.
* It is a **number** if Python's ``float`` accepts it, or if it is true or false (1 or 0). Commas are not accepted:
  ``"1,234"`` may be 1234 or 1.234.
* It is a **date** if it is in ISO 8601 (``2024-03-31``, ``2024-03``, ``2024-03-31T12:00+02:00``, also with slashes in
  that order). Dates without a time zone are in UTC. ``03/04/2024`` is ambiguous and not accepted.
* Its **label** is its text without outer spaces; for a number, the shortest text of that number.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import math
import numbers as abstract
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import quoted
from credo.errors import InputError

MISSING_TEXTS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"]
)
"""Texts that stand for a missing value."""

_BOOLEANS = {"true": 1.0, "false": 0.0}
_MAX_LABEL_LENGTH = 100
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY = datetime.timedelta(days=1)


class ParsedColumns(NamedTuple):
    """Columns of numbers, followed by columns of dates as days since 1970.

    Attributes:
        names: the names of the D columns.
        values: the values ``[N, D]``; NaN where a cell is missing or cannot be parsed.
        unparsed: by column, the cells that are not missing and cannot be parsed.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    unparsed: dict[str, list[object]]


def is_missing(cell: object) -> bool:
    """Whether a cell is missing."""
    if isinstance(cell, str):
        return cell.strip() in MISSING_TEXTS
    return bool(types.is_scalar(cell) and pd.isna(cell))


def parse_number(cell: object) -> float:
    """The number in ``cell``, or NaN if it is none."""
    if isinstance(cell, str):
        return _parse_number_text(cell.strip())
    if isinstance(cell, abstract.Number | np.bool):
        try:
            return float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return math.nan
    return math.nan


def parse_date(cell: object) -> float:
    """The date in ``cell`` as days since 1970, or NaN if it is none."""
    date = _parse_datetime(cell)
    if date is None:
        return math.nan
    since = (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)) - _EPOCH
    return since.days + (since % _DAY) / _DAY


def to_label(cell: object) -> str | None:
    """The label of ``cell``, or ``None`` if it is missing; a long text is shorten to its beginning and a digest."""
    if is_missing(cell):
        return None
    text = str(cell).strip()
    if text.casefold() in _BOOLEANS:
        return text.capitalize()
    value = _parse_number_text(text)
    if not math.isnan(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if len(text) > _MAX_LABEL_LENGTH:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{text[: _MAX_LABEL_LENGTH - 20]}…{digest[:12]}"
    return text


def parse_columns(frame: pd.DataFrame, numbers: Sequence[str], dates: Sequence[str]) -> ParsedColumns:
    """Parse the columns ``numbers`` and ``dates`` of ``frame``, in this order; durations are numbers, in days."""
    names = (*numbers, *dates)
    table = frame[list(names)]
    plain = np.array([isinstance(d, np.dtype) and d.kind in "biuf" for d in table.dtypes], dtype=bool)
    plain[len(numbers) :] = False
    values = np.empty(table.shape)
    values[:, plain] = table.loc[:, plain].to_numpy(np.float64)
    unparsed: dict[str, list[object]] = {}
    for j in np.flatnonzero(~plain):
        parse = _parse_numbers if j < len(numbers) else _parse_dates
        values[:, j] = parse(table.iloc[:, j], unparsed)
    return ParsedColumns(names, values, unparsed)


def to_labels(column: pd.Series) -> list[str | None]:
    """The label of every cell."""
    return _map_cells(to_label, column)


def non_missing(column: pd.Series) -> list[object]:
    """The cells of a column that are not missing."""
    return [cell for cell in column.to_numpy(object) if not is_missing(cell)]


def _parse_numbers(column: pd.Series, unparsed: dict[str, list[object]]) -> NDArray[np.float64]:
    if types.is_timedelta64_dtype(column.dtype):
        return np.asarray(column / pd.Timedelta(days=1), dtype=np.float64)
    if types.is_complex_dtype(column.dtype):
        raise InputError(f"the column {quoted(column.name)} holds complex numbers: pass their parts as two columns")
    if types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    return _parse(parse_number, column, unparsed)


def _parse_dates(column: pd.Series, unparsed: dict[str, list[object]]) -> NDArray[np.float64]:
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not types.is_datetime64_any_dtype(column.dtype):
        return _parse(parse_date, column, unparsed)
    if column.dt.tz is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    dates = column.to_numpy("datetime64[us]")
    days, rest = np.divmod(dates.astype(np.int64), _DAY // datetime.timedelta.resolution)
    return np.where(np.isnat(dates), np.nan, days + rest / (_DAY / datetime.timedelta.resolution))


def _parse(
    function: Callable[[object], float], column: pd.Series, unparsed: dict[str, list[object]]
) -> NDArray[np.float64]:
    values = np.array(_map_cells(function, column), dtype=np.float64)
    failed = [cell for cell in column.to_numpy(object)[np.isnan(values)] if not is_missing(cell)]
    if failed:
        unparsed[str(column.name)] = failed
    return values


def _map_cells(function: Callable[[object], Any], column: pd.Series) -> list[Any]:
    """``function`` of every cell. Results are cached for text only, because 1 and True are equal keys."""
    cached = functools.cache(function)
    return [cached(cell) if type(cell) is str else function(cell) for cell in column.to_numpy(object)]


def _parse_number_text(text: str) -> float:
    if "_" in text:  # Python's own 1_000; in tables, part of an identifier
        return math.nan
    try:
        return float(text) + 0.0  # no negative zero
    except ValueError:
        return _BOOLEANS.get(text.casefold(), math.nan)


def _parse_datetime(cell: object) -> datetime.datetime | None:
    if isinstance(cell, str):
        return _parse_datetime_text(cell.strip())
    if not isinstance(cell, datetime.date | np.datetime64) or pd.isna(cell):
        return None
    date: datetime.datetime = pd.Timestamp(cell).to_pydatetime(warn=False)
    return date


def _parse_datetime_text(text: str) -> datetime.datetime | None:
    if not (7 <= len(text) <= _MAX_LABEL_LENGTH and text[:4].isdigit() and not text.isdigit()):
        return None
    iso = text.replace("/", "-")
    try:
        return datetime.datetime.fromisoformat(f"{iso}-01" if len(iso) == 7 else iso)
    except ValueError:
        return None
