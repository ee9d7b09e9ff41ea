"""What one cell of a table means, whatever its column is stored as.

The same cell may come as the text ``"007"`` in one file, as the integer 7 in another and, where its column has gaps,
as 7.0. Every rule here therefore looks at one cell alone, never at its neighbors or at the dtype of its column, and
gives all three the same number and the same word. Reading a file in pieces cannot change what its rows mean.

* A cell is **missing** if it is ``None``, NaN, NaT, ``pandas.NA``, or text that says so (:data:`MISSING_WORDS`).
* It reads as a **number** if Python's ``float`` takes it, or if it says true or false (1 or 0). Commas are not taken:
  ``"1,234"`` is 1234 to some and 1.234 to others.
* It reads as a **date** in ISO 8601 (``2024-03-31``, ``2024-03``, ``2024-03-31T12:00+02:00``, also with slashes in
  that order). Dates without a time zone are in UTC. ``03/04/2024`` is not taken, for it means two days.
* Its **word** is its text without outer spaces; of a number, the shortest text of that number.
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

from credo.errors import InputError
from credo.tabular.wording import quoted

MISSING_WORDS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"]
)
"""Text that says that nothing is known."""

_TRUTH = {"true": 1.0, "false": 0.0}
_LONGEST_WORD = 100
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY = datetime.timedelta(days=1)


class Measured(NamedTuple):
    """Columns of numbers, then columns of dates as days from 1970.

    Attributes:
        names: of the D columns.
        values: ``[N, D]``; NaN where a cell is missing or cannot be read.
        unread: by column, the cells that hold something that cannot be read.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    unread: dict[str, list[object]]


def is_missing(cell: object) -> bool:
    """Whether nothing is known."""
    if isinstance(cell, str):
        return cell.strip() in MISSING_WORDS
    return bool(types.is_scalar(cell) and pd.isna(cell))


def number(cell: object) -> float:
    """The number that ``cell`` reads as, or NaN."""
    if isinstance(cell, str):
        return _number_of_text(cell.strip())
    if isinstance(cell, abstract.Number | np.bool):
        try:
            return float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return math.nan
    return math.nan


def day(cell: object) -> float:
    """The days from 1970 to the date that ``cell`` reads as, or NaN."""
    moment = _moment(cell)
    if moment is None:
        return math.nan
    since = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - _EPOCH
    return since.days + (since % _DAY) / _DAY


def word(cell: object) -> str | None:
    """The word of ``cell``, or ``None`` where it is missing; of a long text, its beginning and a digest."""
    if is_missing(cell):
        return None
    text = str(cell).strip()
    if text.casefold() in _TRUTH:
        return text.capitalize()
    value = _number_of_text(text)
    if not math.isnan(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if len(text) > _LONGEST_WORD:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{text[: _LONGEST_WORD - 20]}…{digest[:12]}"
    return text


def measure(frame: pd.DataFrame, numbers: Sequence[str], dates: Sequence[str]) -> Measured:
    """The columns ``numbers`` and ``dates`` of ``frame``, in this order; durations count as numbers, in days."""
    names = (*numbers, *dates)
    table = frame[list(names)]
    plain = np.array([isinstance(d, np.dtype) and d.kind in "biuf" for d in table.dtypes], dtype=bool)
    plain[len(numbers) :] = False
    values = np.empty(table.shape)
    values[:, plain] = table.loc[:, plain].to_numpy(np.float64)
    unread: dict[str, list[object]] = {}
    for j in np.flatnonzero(~plain):
        read = _numbers if j < len(numbers) else _days
        values[:, j] = read(table.iloc[:, j], unread)
    return Measured(names, values, unread)


def words(column: pd.Series) -> list[str | None]:
    """The word of every cell."""
    return _map(word, column)


def present(column: pd.Series) -> list[object]:
    """The cells of a column that are not missing."""
    return [cell for cell in column.to_numpy(object) if not is_missing(cell)]


def _numbers(column: pd.Series, unread: dict[str, list[object]]) -> NDArray[np.float64]:
    if types.is_timedelta64_dtype(column.dtype):
        return np.asarray(column / pd.Timedelta(days=1), dtype=np.float64)
    if types.is_complex_dtype(column.dtype):
        raise InputError(f"the column {quoted(column.name)} holds complex numbers; give their parts as two columns")
    if types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    return _read(number, column, unread)


def _days(column: pd.Series, unread: dict[str, list[object]]) -> NDArray[np.float64]:
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not types.is_datetime64_any_dtype(column.dtype):
        return _read(day, column, unread)
    if column.dt.tz is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = column.to_numpy("datetime64[us]")
    days, rest = np.divmod(moments.astype(np.int64), _DAY // datetime.timedelta.resolution)
    return np.where(np.isnat(moments), np.nan, days + rest / (_DAY / datetime.timedelta.resolution))


def _read(rule: Callable[[object], float], column: pd.Series, unread: dict[str, list[object]]) -> NDArray[np.float64]:
    values = np.array(_map(rule, column), dtype=np.float64)
    failed = [cell for cell in column.to_numpy(object)[np.isnan(values)] if not is_missing(cell)]
    if failed:
        unread[str(column.name)] = failed
    return values


def _map(rule: Callable[[object], Any], column: pd.Series) -> list[Any]:
    """``rule`` of every cell. Text is looked up the second time; other cells are not, as 1 and True are equal keys."""
    of_text = functools.cache(rule)
    return [of_text(cell) if type(cell) is str else rule(cell) for cell in column.to_numpy(object)]


def _number_of_text(text: str) -> float:
    if "_" in text:  # Python's own 1_000; in tables, part of an identifier
        return math.nan
    try:
        return float(text) + 0.0  # no negative zero
    except ValueError:
        return _TRUTH.get(text.casefold(), math.nan)


def _moment(cell: object) -> datetime.datetime | None:
    if isinstance(cell, str):
        return _moment_of_text(cell.strip())
    if not isinstance(cell, datetime.date | np.datetime64) or pd.isna(cell):
        return None
    moment: datetime.datetime = pd.Timestamp(cell).to_pydatetime(warn=False)
    return moment


def _moment_of_text(text: str) -> datetime.datetime | None:
    if not (7 <= len(text) <= _LONGEST_WORD and text[:4].isdigit() and not text.isdigit()):
        return None
    iso = text.replace("/", "-")
    try:
        return datetime.datetime.fromisoformat(f"{iso}-01" if len(iso) == 7 else iso)
    except ValueError:
        return None
