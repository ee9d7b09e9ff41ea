"""How the columns of a table are read, decided once from all of their cells.

The decision is made here and nowhere else: the type of each column, and for numbers and dates the format in which they
are written. The cells of a column are counted under every possible format. If one of them reads at least 90 % of the
cells, and more than the others, it is chosen. If two formats read the same cells as different values (``1,234`` in
every row), the decimal mark or the order of dates is, in this order: the one given by the user, the one that the other
columns of the table are written in, or the usual one for the delimiter of the file. A note then says which was chosen,
and how to choose the other.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from credo._text import listed, quoted
from credo.tabular.date_format import ORDERS, DateFormat, DateText, split_date
from credo.tabular.dialects import ColumnType, Dialect
from credo.tabular.number_format import (
    CURRENCIES,
    FALSE_WORDS,
    PERCENT,
    TRUE_WORDS,
    NumberFormat,
    parse_plain,
    split_number,
)
from credo.tabular.parsing import ColumnFormat, has_fractions, is_missing, is_placeholder, parse_date, parse_number

PARSED_SHARE = 0.9
"""Text is a column of numbers, or of dates, if at least this share of the values that are not missing can be parsed."""

MIN_EVIDENCE = 0.01
"""Two formats are both possible if they differ in the number of cells that they read by at most this share."""

MIXED_UNITS = "Not read as numbers, because they have different units"
FEW_NUMBERS = f"Not read as numbers, because fewer than {PARSED_SHARE:.0%} of the values are"
"""Why a column is read as categories although many of its cells are numbers."""

_CODE = re.compile(r"0\d+")
_COMPACT = DateFormat(compact=True)
_MIN_COMPACT = 3  # different values
_MIN_NUMBERS = 10  # of a column that is nearly one of numbers
_SAMPLE = 500

_AS_CODES = "Read as codes, because of leading zeros"
_AS_COMPACT = (
    "Integers such as 20240331 are read as dates (as numbers: types={column: 'number'} or --type COLUMN=number)"
)
_MIXED_ORDERS = (
    "Not read as dates, because some have the day first and others the month (dayfirst=True or False, --dayfirst or "
    "--monthfirst, reads those of one kind)"
)
_SHORT_YEARS = (
    "Not read as dates, because years of two digits can be read in several ways (dayfirst=True or False, --dayfirst or "
    "--monthfirst, says how)"
)
_ORDERS = {
    "dmy": "Read as dates with the day before the month (otherwise: dayfirst=False or --monthfirst)",
    "mdy": "Read as dates with the month before the day (otherwise: dayfirst=True or --dayfirst)",
    "ymd": "Read as dates with year, month, day (otherwise: dayfirst=True or False, --dayfirst or --monthfirst)",
}


@dataclass(frozen=True)
class Reading:
    """How one column is read.

    Attributes:
        kind: the type of the column.
        form: the format of its numbers or dates; ``None`` if they need none, and for categories.
        doubt: a sentence about another possible reading; empty if there is none.
        example: a cell, and its value if it is read as a number or date.
        mark: the decimal mark that the cells of a column of numbers show; empty if they show none.
    """

    kind: ColumnType
    form: ColumnFormat | None = None
    doubt: str = ""
    example: str = ""
    mark: str = ""


def find_dialect(*tables: pd.DataFrame | pd.Series) -> Dialect:
    """The dialect of tables with the same rows: the attached one, or what their cells show."""
    attached = Dialect.attached(*tables)
    if attached is not None:
        return attached
    return complete_dialect(Dialect(), *tables)


def complete_dialect(dialect: Dialect, *tables: pd.DataFrame | pd.Series) -> Dialect:
    """``dialect``, with what is not known taken from columns that can be read in one way only, if they agree."""
    decimals: set[str] = set()
    dayfirst: set[bool] = set()
    frames = [table.to_frame() if isinstance(table, pd.Series) else table for table in tables]
    if any(has_fractions(frame.select_dtypes("float64").to_numpy()) for frame in frames):
        decimals.add(".")
    columns = (frame.iloc[:, j] for frame in frames for j, dtype in enumerate(frame.dtypes) if _is_text(dtype))
    for column in columns:
        reading = _decide(column, Dialect())
        if reading.mark and not reading.doubt:
            decimals.add(reading.mark)
        if isinstance(reading.form, DateFormat) and reading.form.order and not reading.doubt:
            dayfirst.add(reading.form.order == "dmy")
    return replace(
        dialect,
        decimal=decimals.pop() if dialect.decimal is None and len(decimals) == 1 else dialect.decimal,
        dayfirst=dayfirst.pop() if dialect.dayfirst is None and len(dayfirst) == 1 else dialect.dayfirst,
    )


def read_column(column: pd.Series, dialect: Dialect | None = None) -> Reading:
    """Decide how a training column is read.

    The type follows from the dtype where possible: numbers, booleans and durations are numbers, dates are dates, and
    ``category`` is a category even if its values are numbers; integers such as 20240331 in every row are dates. Text
    and mixed columns are numbers if at least 90 % of their cells can be parsed as such in one format, else dates on the
    same condition, else categories. Cells that stand for a missing value do not count.

    Args:
        column: all cells.
        dialect: what is known about the table; ``None``: its attached one, or what the column itself shows.

    Returns:
        The reading.
    """
    dialect = find_dialect(column) if dialect is None else dialect
    found, wanted = _decide(column, dialect), dialect.types.get(str(column.name))
    if wanted in (None, found.kind):
        return found
    if wanted == "category":
        return Reading("category")
    if wanted == "date":
        return Reading("date", DateFormat("dmy" if dialect.usual_dayfirst else "mdy", compact=True))
    form = _choose_numbers(_Cells.of(column), dialect).form if _is_text(column.dtype) else None
    return Reading("number", form)


@dataclass(frozen=True)
class _Cells:
    """The cells of a column that are not missing: texts with their frequencies, and others."""

    texts: Counter[str]
    others: list[object]
    has_placeholders: bool

    @classmethod
    def of(cls, column: pd.Series) -> _Cells:
        cells = column.to_numpy(object)
        texts = Counter(cell.strip() for cell in cells if isinstance(cell, str))
        known = {text: rows for text, rows in texts.items() if not is_missing(text)}
        kept = Counter({text: rows for text, rows in known.items() if not is_placeholder(text)})
        others = [cell for cell in cells if not isinstance(cell, str) and not is_missing(cell)]
        return cls(kept, others, len(kept) < len(known))

    @property
    def total(self) -> int:
        return self.texts.total() + len(self.others)

    @cached_property
    def is_long(self) -> bool:
        """Whether there are many texts, nearly all of them different, so that a sample says what they are."""
        return len(self.texts) > max(10 * _SAMPLE, PARSED_SHARE * self.total)

    @cached_property
    def sample(self) -> list[str]:
        """Some of the texts, independent of their order in the column."""
        texts = sorted(self.texts)
        return texts[:: max(1, len(texts) // _SAMPLE)]

    def count(self, parse: Callable[[str], object], parse_other: Callable[[object], float]) -> int:
        """The number of cells that can be parsed; 0 as soon as they are too few for a column of this kind."""
        if self.is_long and 2 * sum(_is_value(parse(text)) for text in self.sample) < len(self.sample):
            return 0
        allowed = (1.0 - PARSED_SHARE) * self.total + 1e-9
        failed = sum(math.isnan(parse_other(cell)) for cell in self.others)
        for text, rows in self.texts.items():
            failed += 0 if _is_value(parse(text)) else rows
            if failed > allowed:
                return 0
        return self.total - failed

    def example(self, parse: Callable[[str], Any], shown: Callable[[str], object]) -> str:
        """The first text for which ``shown`` is true and that can be parsed, with its value."""
        text = next((t for t in self.texts if shown(t) and _is_value(parse(t))), None)
        if text is None:
            return ""
        value = parse(text)
        return f"{quoted(text)} is {value:.10g}" if isinstance(value, float) else f"{quoted(text)} is {value:%Y-%m-%d}"


def _decide(column: pd.Series, dialect: Dialect) -> Reading:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return Reading("category")
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return Reading("date")
    if types.is_integer_dtype(dtype) and _are_compact_dates(column):
        return _compact_dates([str(value) for value in column.dropna().iloc[:1]])
    if types.is_numeric_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return Reading("number")
    cells = _Cells.of(column)
    if cells.total == 0:
        return Reading("category" if cells.has_placeholders else "number")
    if cells.count(parse_plain, parse_number) == cells.total and not any("." in text for text in cells.texts):
        return _plain_integers(cells)
    return _as_boolean(cells) or _as_number(cells, dialect) or _as_date(cells, dialect) or _as_category(cells)


def _plain_integers(cells: _Cells) -> Reading:
    """The reading of cells that are plain integers, or words for true and false."""
    texts = list(cells.texts)
    if cells.others or not all(map(str.isdigit, texts)):
        return Reading("number")
    if len(texts) >= _MIN_COMPACT and all(map(_is_compact_date, texts)):
        return _compact_dates(texts)
    code = next((text for text in texts if _CODE.fullmatch(text)), None)
    if code is not None and len({len(text) for text in texts}) == 1:
        return Reading("category", doubt=_AS_CODES, example=quoted(code))
    return Reading("number")


def _as_boolean(cells: _Cells) -> Reading | None:
    words = {text.casefold() for text in cells.texts}
    if cells.others or not words <= TRUE_WORDS | FALSE_WORDS or words <= TRUE_WORDS or words <= FALSE_WORDS:
        return None
    form = NumberFormat(boolean=True)
    return Reading("number", form, example=cells.example(form.parse, lambda text: text.casefold() in TRUE_WORDS))


def _as_number(cells: _Cells, dialect: Dialect) -> Reading | None:
    reading = _choose_numbers(cells, dialect)
    form = reading.form if isinstance(reading.form, NumberFormat) else NumberFormat()
    return reading if cells.count(*_parsers(form)) else None


def _choose_numbers(cells: _Cells, dialect: Dialect) -> Reading:
    """The format that reads the most numbers, with a doubt if another reads as many, some of them differently."""
    unit = _choose_unit(cells)
    point, comma = (NumberFormat(decimal, grouped=True, unit=unit) for decimal in ".,")
    counts = {form: cells.count(*_parsers(form)) for form in (point, comma)}
    best, other = (comma, point) if counts[comma] > counts[point] else (point, comma)
    if not counts[best]:
        return Reading("number")
    doubt, differing = "", None
    if counts[other] >= (1.0 - MIN_EVIDENCE) * counts[best]:
        differing = next((text for text in cells.texts if _differ(best.parse(text), other.parse(text))), None)
    if differing is not None:
        seen = "," if "," in differing else "."
        if "decimal" in dialect.given:
            best = comma if dialect.decimal == "," else point
        elif unit in CURRENCIES:  # which have no three decimals
            best = point if seen == "," else comma
        else:
            if counts[other] == counts[best]:
                long = any(text.isdigit() and len(text) > 3 for text in cells.texts)  # thousands are not separated
                best = comma if (seen if long else dialect.usual_decimal) == "," else point
            doubt = _doubt_about_mark(seen, best)
    is_grouped = any(best.other_mark in text and not math.isnan(best.parse(text)) for text in cells.texts)
    form = replace(best, grouped=is_grouped)
    if form.is_plain and dialect.decimal == ".":
        doubt = ""
    has_mark = any(("," in text or "." in text) and not math.isnan(form.parse(text)) for text in cells.texts)
    example = cells.example(form.parse, lambda text: parse_plain(text) != form.parse(text) or (doubt and "." in text))
    return Reading("number", None if form.is_plain else form, doubt, example, form.decimal if has_mark else "")


def _doubt_about_mark(mark: str, form: NumberFormat) -> str:
    if form.decimal == mark:
        use, other = "the decimal mark", "the mark between thousands"
    else:
        use, other = "the mark between thousands", "the decimal mark"
    choice = form.other_mark
    return f"Read with {mark!r} as {use} (as {other}: decimal={choice!r} or --decimal {choice})"


def _parsers(form: NumberFormat) -> tuple[Callable[[str], float], Callable[[object], float]]:
    return form.parse, lambda cell: parse_number(cell, form)


def _choose_unit(cells: _Cells) -> str:
    """The most frequent unit."""
    units: Counter[str] = Counter()
    texts = Counter(cells.sample) if cells.is_long else cells.texts
    for text, rows in texts.items():
        parts = split_number(text)
        if parts is not None and parts.unit:
            units[parts.unit] += rows
    unit = max(units, key=lambda u: (units[u], u), default="")
    return "" if unit == PERCENT and 2 * units[unit] < texts.total() else unit


def _as_date(cells: _Cells, dialect: Dialect) -> Reading | None:
    counts = {order: cells.count(DateFormat(order).parse, parse_date) for order in ("", *ORDERS)}
    if cells.is_long and not any(split_date(text) for text in cells.sample) and not counts[""]:
        return None
    parts = [found for text in cells.texts if (found := split_date(text)) is not None]
    day_first, month_first = any(p.first > 12 for p in parts), any(p.second > 12 for p in parts)
    given = "dayfirst" in dialect.given
    if counts[""]:
        return Reading("date")
    if not any(counts.values()) and not (day_first and month_first and 2 * len(parts) > len(cells.texts)):
        return None
    example = quoted(next(text for text in cells.texts if split_date(text)))
    if given:
        order, doubt = ("dmy" if dialect.dayfirst else "mdy"), ""
    elif all(p.has_short_year for p in parts):
        order = _order_of_short_years(parts, dialect, counts)
        doubt = _ORDERS.get(order, _SHORT_YEARS)
    elif day_first and month_first:
        order, doubt = "", _MIXED_ORDERS
    elif day_first or month_first or all(p.mark == "." for p in parts):
        order, doubt = ("mdy" if month_first else "dmy"), ""
    else:
        order = "dmy" if dialect.usual_dayfirst else "mdy"
        doubt = _ORDERS[order]
    form = DateFormat(order)
    if not order or not cells.count(form.parse, parse_date):
        return Reading("category", doubt=doubt or _MIXED_ORDERS, example=example)
    return Reading("date", form, doubt, cells.example(form.parse, split_date))


def _order_of_short_years(parts: list[DateText], dialect: Dialect, counts: Mapping[str, int]) -> str:
    """The order of dates whose years have two digits, if years have clearly the fewest different values; else empty."""
    firsts, thirds = len({p.first for p in parts}), len({p.third for p in parts})
    if not (2 * firsts <= thirds or 2 * thirds <= firsts):
        return ""
    if 2 * firsts <= thirds:
        return "ymd" if counts["ymd"] else ""
    usual = "dmy" if dialect.usual_dayfirst or all(p.mark == "." for p in parts) else "mdy"
    return max(("dmy", "mdy"), key=lambda order: (counts[order], order == usual))


def _as_category(cells: _Cells) -> Reading:
    """Categories, with a note if many of the texts are numbers."""
    sample = cells.sample
    parts = {text: split_number(text) for text in sample}
    units = {part.unit: text for text, part in parts.items() if part is not None}
    wrong = [text for text, part in parts.items() if part is None]
    if len(sample) - len(wrong) < max(_MIN_NUMBERS, len(sample) / 2):
        return Reading("category")
    if len(units) > 1:
        return Reading("category", doubt=MIXED_UNITS, example=listed([quoted(text) for text in units.values()]))
    return Reading("category", doubt=FEW_NUMBERS, example=f"not {quoted(wrong[0])}" if wrong else "")


def _compact_dates(texts: list[str]) -> Reading:
    date = _COMPACT.parse(texts[0])
    return Reading("date", _COMPACT, _AS_COMPACT, f"{quoted(texts[0])} is {date:%Y-%m-%d}")


def _are_compact_dates(column: pd.Series) -> bool:
    known = column.to_numpy() if isinstance(column.dtype, np.dtype) else column.dropna().to_numpy()
    if not len(known) or not 19_000_101 <= known.min() <= known.max() <= 21_001_231:
        return False
    values = np.unique(known)
    return len(values) >= _MIN_COMPACT and all(_is_compact_date(str(value)) for value in values)


def _is_compact_date(text: str) -> bool:
    date = _COMPACT.parse(text) if len(text) in (8, 14) else None
    return date is not None and 1900 <= date.year <= 2100


def _is_value(value: object) -> bool:
    return value is not None and value == value


def _differ(a: float, b: float) -> bool:
    return a != b and not math.isnan(a) and not math.isnan(b)


def _is_text(dtype: Any) -> bool:
    return bool(types.is_object_dtype(dtype) or types.is_string_dtype(dtype))
