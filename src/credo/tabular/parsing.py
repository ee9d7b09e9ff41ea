"""The value of a single cell: missing, a number, a date or a label.

The same cell may be the text ``"007"`` in one file, the integer 7 in another and, in a column with missing values,
7.0. Every function here therefore looks at one cell and the format of its column, never at other rows or at the dtype
of the column, and returns the same number and the same label for all three. Reading a file in chunks cannot change the
values.

* A cell is **missing** if it is ``None``, NaN, NaT, ``pandas.NA``, or one of the texts in :data:`MISSING_TEXTS`. In
  columns of numbers and dates, texts such as ``?`` and ``unknown`` are missing too (:func:`is_placeholder`).
* It is a **number** or a **date** if the format of its column reads it as one
  (:class:`~credo.tabular.number_format.NumberFormat`, :class:`~credo.tabular.date_format.DateFormat`). Dates without a
  time zone are in UTC.
* Its **label** is its text without outer spaces; for a number, the shortest text of that number.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import math
import numbers as abstract
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import counted, listed, quoted
from credo.errors import InputError
from credo.tabular.date_format import DateFormat
from credo.tabular.number_format import PERCENT, NumberFormat, parse_plain

MISSING_TEXTS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"]
)
"""Texts that stand for a missing value in any column."""

PLACEHOLDERS = frozenset(
    [
        *("?", "??", "???", ".", "..", "...", "…", "-", "--", "---", "_", "*", "/"),
        *("na", "n.a.", "n. a.", "n.a", "n/a", "n/v", "#n/v", "nan", "nil", "none", "null", "void", "<null>", "(null)"),
        *("missing", "unknown", "unk", "undefined", "not available", "not applicable", "not known", "no data", "empty"),
        *("k.a.", "k. a.", "k.a", "keine angabe", "unbekannt", "fehlt", "nicht verfügbar", "없음", "미상", "해당없음"),
        *("#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!", "#wert!", "#bezug!", "#zahl!", "#error!"),
    ]
)
"""Texts, in lower case, that stand for a missing value in columns of numbers and dates; elsewhere they are words."""

ColumnFormat = NumberFormat | DateFormat

_PLAIN, _DATES = NumberFormat(), DateFormat()
_DASHES = str.maketrans(dict.fromkeys("\u2212\u2013\u2014\uff0d", "-"))
_MAX_LABEL_LENGTH = 100
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Cells:
    """Some cells of a column.

    Attributes:
        rows: the names or numbers of their rows.
        values: their contents.
    """

    rows: list[object]
    values: list[object]

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self, limit: int = 3) -> str:
        """The number of cells, and the rows and contents of the first ones."""
        pairs = zip(self.rows[:limit], self.values, strict=False)
        examples = ", ".join(f"{quoted(value)} in row {row}" for row, value in pairs)
        more = f" and {len(self) - limit:,} more" if len(self) > limit else ""
        return f"{counted(len(self), 'value')}: {examples}{more}"


class ParsedColumns(NamedTuple):
    """Columns of numbers, followed by columns of dates as days since 1970.

    Attributes:
        names: the names of the D columns.
        values: the values ``[N, D]``; NaN where a cell is missing or cannot be parsed.
        unparsed: by column, the cells that are not missing and cannot be parsed.
        placeholders: by column, the texts that stand for a missing value, with their numbers of rows.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    unparsed: dict[str, Cells]
    placeholders: dict[str, Counter[str]]


def is_missing(cell: object) -> bool:
    """Whether a cell is missing, in a column of any type."""
    if isinstance(cell, str):
        return cell.strip() in MISSING_TEXTS
    return bool(types.is_scalar(cell) and pd.isna(cell))


def is_placeholder(cell: object) -> bool:
    """Whether a cell that is not missing by :func:`is_missing` is, in a column of numbers or dates."""
    return isinstance(cell, str) and cell.strip().translate(_DASHES).casefold() in PLACEHOLDERS


def parse_number(cell: object, form: NumberFormat = _PLAIN) -> float:
    """The number in ``cell``, or NaN if it is none."""
    if isinstance(cell, str):
        return form.parse(cell)
    if isinstance(cell, abstract.Number | np.bool):
        try:
            value = float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return math.nan
        return math.nan if form.unit == PERCENT and value != 0.0 else value
    return math.nan


def parse_date(cell: object, form: DateFormat = _DATES) -> float:
    """The date in ``cell`` as days since 1970, or NaN if it is none."""
    date = _parse_datetime(cell, form)
    if date is None:
        return math.nan
    since = (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)) - _EPOCH
    return since.days + (since % _DAY) / _DAY


def to_label(cell: object) -> str | None:
    """The label of ``cell``, or ``None`` if it is missing; a long text is shorten to its beginning and a digest."""
    if is_missing(cell):
        return None
    text = str(cell).strip()
    if text.casefold() in ("true", "false"):
        return text.capitalize()
    value = parse_plain(text)
    if not math.isnan(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if len(text) > _MAX_LABEL_LENGTH:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{text[: _MAX_LABEL_LENGTH - 20]}…{digest[:12]}"
    return text


def parse_columns(
    frame: pd.DataFrame, numbers: Sequence[str], dates: Sequence[str], formats: Mapping[str, ColumnFormat]
) -> ParsedColumns:
    """Parse the columns ``numbers`` and ``dates`` of ``frame``, in this order; durations are numbers, in days.

    Args:
        frame: the table.
        numbers: the columns of numbers.
        dates: the columns of dates.
        formats: the formats of the columns that need one; others are plain numbers, or dates with one reading.

    Returns:
        The values and the cells without one.
    """
    names = (*numbers, *dates)
    table = frame[list(names)]
    plain = np.array([isinstance(d, np.dtype) and d.kind in "biuf" for d in table.dtypes], dtype=bool)
    plain[len(numbers) :] = False
    plain &= np.array([getattr(formats.get(name), "unit", "") != PERCENT for name in names], dtype=bool)
    values = np.empty(table.shape)
    values[:, plain] = table.loc[:, plain].to_numpy(np.float64)
    unparsed: dict[str, Cells] = {}
    placeholders: dict[str, Counter[str]] = {}
    for j in np.flatnonzero(~plain):
        column, form = table.iloc[:, j], formats.get(names[j])
        if j < len(numbers):
            values[:, j] = _parse_numbers(column, form if isinstance(form, NumberFormat) else _PLAIN)
        else:
            values[:, j] = _parse_dates(column, form if isinstance(form, DateFormat) else _DATES)
        failed = np.flatnonzero(np.isnan(values[:, j]))
        if len(failed):
            found = zip(column.index[failed].tolist(), column.to_numpy(object)[failed], strict=True)
            cells = [(row, cell) for row, cell in found if not is_missing(cell)]
            wrong = [(row, cell) for row, cell in cells if not is_placeholder(cell)]
            if wrong:
                unparsed[names[j]] = Cells([row for row, _ in wrong], [cell for _, cell in wrong])
            if len(wrong) < len(cells):
                placeholders[names[j]] = Counter(str(cell).strip() for _, cell in cells if is_placeholder(cell))
    return ParsedColumns(names, values, unparsed, placeholders)


def to_labels(column: pd.Series) -> list[str | None]:
    """The label of every cell."""
    return _map_cells(to_label, column)


def has_fractions(values: NDArray[np.float64]) -> bool:
    """Whether some of the finite values are not integers."""
    finite = values[np.isfinite(values)]
    return bool((finite != np.floor(finite)).any())


def describe_counts(counts: Counter[str]) -> str:
    """Texts and how often they occur, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{quoted(text)} in {counted(rows, 'row')}" for text, rows in ranked], limit=3)


def _parse_numbers(column: pd.Series, form: NumberFormat) -> NDArray[np.float64]:
    if types.is_timedelta64_dtype(column.dtype):
        return np.asarray(column / pd.Timedelta(days=1), dtype=np.float64)
    if types.is_complex_dtype(column.dtype):
        raise InputError(f"the column {quoted(column.name)} holds complex numbers: pass their parts as two columns")
    if types.is_numeric_dtype(column.dtype) and form.unit != PERCENT:
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    return _parse(functools.partial(parse_number, form=form), column)


def _parse_dates(column: pd.Series, form: DateFormat) -> NDArray[np.float64]:
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not types.is_datetime64_any_dtype(column.dtype):
        return _parse(functools.partial(parse_date, form=form), column)
    if column.dt.tz is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    dates = column.to_numpy("datetime64[us]")
    days, rest = np.divmod(dates.astype(np.int64), _DAY // datetime.timedelta.resolution)
    return np.where(np.isnat(dates), np.nan, days + rest / (_DAY / datetime.timedelta.resolution))


def _parse(function: Callable[[object], float], column: pd.Series) -> NDArray[np.float64]:
    return np.array(_map_cells(function, column), dtype=np.float64)


def _map_cells(function: Callable[[object], Any], column: pd.Series) -> list[Any]:
    """``function`` of every cell. Results are cached for text only, because 1 and True are equal keys."""
    cached = functools.cache(function)
    return [cached(cell) if type(cell) is str else function(cell) for cell in column.to_numpy(object)]


def _parse_datetime(cell: object, form: DateFormat) -> datetime.datetime | None:
    if isinstance(cell, str):
        return form.parse(cell)
    if form.compact and isinstance(cell, int | float | np.integer | np.floating) and float(cell).is_integer():
        return form.parse(str(int(cell)))
    if not isinstance(cell, datetime.date | np.datetime64) or pd.isna(cell):
        return None
    date: datetime.datetime = pd.Timestamp(cell).to_pydatetime(warn=False)
    return date
