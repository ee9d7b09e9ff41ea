"""The type of each column of a training table, the encoders fitted to it, and notes and summaries for people."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import listed, quoted
from credo.tabular.encoders import (
    MIN_CATEGORY_ROWS,
    CategoryEncoder,
    CyclicEncoder,
    Labels,
    NumericScaler,
    count_labels,
)
from credo.tabular.parsing import (
    ParsedColumns,
    non_missing,
    parse_columns,
    parse_date,
    parse_number,
    to_labels,
)

ColumnType = Literal["number", "date", "category"]

PARSED_SHARE = 0.9
"""Text is a column of numbers, or of dates, if at least this share of the values that are not missing can be parsed."""

REPEATED_SHARE = 0.5
"""A column of labels is used if at least this share of its values occurs more than once."""

EMPTY = "no value is given"
CONSTANT = "all values are the same"
UNIQUE = "nearly every value is different, as in names, identifiers or free text"

_NUMBER_WITH_COMMAS = re.compile(r"[-+]?[\d.]*\d,\d[\d.,]*")
_OTHER_DATE_FORMATS = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})\b.*", re.DOTALL)


@dataclass(frozen=True)
class ColumnSummary:
    """One column of the training table.

    Attributes:
        name: the name of the column.
        kind: its :data:`ColumnType`: ``"number"``, ``"date"`` or ``"category"``.
        missing: the share of rows without a usable value, between 0 and 1.
        distinct: the number of different values.
        content: the range of numbers or dates, or the most frequent categories.
        treatment: how the column is used.
    """

    name: str
    kind: str
    missing: float
    distinct: int
    content: str
    treatment: str

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return asdict(self)


class ColumnNotes:
    """Notes about columns, combined into one sentence for all columns with the same note."""

    def __init__(self) -> None:
        self._columns: dict[str, list[str]] = {}

    def add(self, note: str, column: str, detail: str = "") -> None:
        """Add a note about ``column``, with a detail that is shown in parentheses."""
        self._columns.setdefault(note, []).append(quoted(column) + (f" ({detail})" if detail else ""))

    def sentences(self) -> list[str]:
        """One sentence per note, with the names of its columns."""
        return [f"{note}: {listed(columns)}." for note, columns in self._columns.items()]


class LearnedColumns(NamedTuple):
    """How the columns of a training table are used, and their parsed cells.

    Attributes:
        scaling: for the columns of numbers, then of dates.
        cycles: for the columns of dates.
        with_invalid_values: the columns of numbers and dates with cells that cannot be parsed, or infinities.
        categories: for the columns of labels.
        notes: sentences about what was left out, converted and imputed.
        summaries: one per column, in the order of the table.
        values: the numbers and dates that are used ``[N, C]``, in the order of ``scaling``.
        labels: the labels of each column in ``categories``.
    """

    scaling: NumericScaler
    cycles: CyclicEncoder
    with_invalid_values: tuple[str, ...]
    categories: tuple[CategoryEncoder, ...]
    notes: tuple[str, ...]
    summaries: tuple[ColumnSummary, ...]
    values: NDArray[np.float64]
    labels: list[Labels]


def infer_column_type(column: pd.Series) -> ColumnType:
    """The type of a training column.

    It follows from the dtype where possible: numbers, booleans and durations are numbers, dates are dates, and
    ``category`` is a category even if its values are numbers. Text and mixed columns are numbers if at least 90 % of
    their cells can be parsed as such, else dates on the same condition, else categories.
    """
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if types.is_numeric_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return "date"
    cells = non_missing(column)
    if _can_parse_most(parse_number, cells):
        return "number"
    return "date" if _can_parse_most(parse_date, cells) else "category"


def format_hint(texts: Sequence[str]) -> str:
    """Advice if ``texts`` look like numbers or dates in a format that is not parsed; else an empty string."""
    for pattern, advice in (
        (_NUMBER_WITH_COMMAS, "numbers with commas: write them with a decimal point and without thousands separators"),
        (_OTHER_DATE_FORMATS, "dates: write them as year-month-day, such as 2024-03-31"),
    ):
        if texts and sum(bool(pattern.fullmatch(t)) for t in texts) >= PARSED_SHARE * len(texts):
            return f"values such as {quoted(texts[0])} look like {advice}"
    return ""


def learn_columns(table: pd.DataFrame) -> LearnedColumns:
    """Infer the type of each column of a training table and fit its encoder."""
    column_types = {name: infer_column_type(column) for name, column in table.items()}
    numbers, dates, others = (
        [name for name, of_column in column_types.items() if of_column == wanted]
        for wanted in ("number", "date", "category")
    )
    notes = ColumnNotes()
    parsed = parse_columns(table, numbers, dates)
    unused = _unused_numbers(parsed)
    used = [j for j, name in enumerate(parsed.names) if name not in unused]
    used_dates = [j for j in used if j >= len(numbers)]
    values = parsed.values[:, used]
    scaling = NumericScaler.learn(tuple(parsed.names[j] for j in used), values)
    cycles = CyclicEncoder.learn(tuple(parsed.names[j] for j in used_dates), parsed.values[:, used_dates])
    treatments = unused | scaling.treatments()
    for name, cycle in cycles.treatments().items():
        treatments[name] = f"days {treatments[name]}" + (f", {cycle}" if cycle else "")
    summaries = _summarize_numbers(parsed, len(numbers), treatments)
    _add_notes_on_numbers(parsed, summaries, notes)
    categories, labels = [], []
    for name in others:
        of_column = to_labels(table[name])
        encoder, summary = _learn_category(name, of_column, notes)
        summaries.append(summary)
        if encoder is not None:
            categories.append(encoder)
            labels.append(of_column)
    infinite = {parsed.names[j] for j in np.flatnonzero(np.isinf(parsed.values).any(axis=0))}
    by_name = {summary.name: summary for summary in summaries}
    return LearnedColumns(
        scaling=scaling,
        cycles=cycles,
        with_invalid_values=tuple(n for n in parsed.names if n in infinite or n in parsed.unparsed),
        categories=tuple(categories),
        notes=tuple(notes.sentences()),
        summaries=tuple(by_name[name] for name in column_types),
        values=values,
        labels=list(labels),
    )


def _can_parse_most(parse: Callable[[object], float], cells: Sequence[object]) -> bool:
    """Whether 90 % of the cells can be parsed; stops as soon as too many cannot."""
    allowed = (1.0 - PARSED_SHARE) * len(cells) + 1e-9
    failures = 0
    for cell in cells:
        failures += math.isnan(parse(cell))
        if failures > allowed:
            return False
    return True


def _unused_numbers(parsed: ParsedColumns) -> dict[str, str]:
    """The columns that are left out, with the reason."""
    finite = np.isfinite(parsed.values)
    lowest = np.where(finite, parsed.values, np.inf).min(axis=0)
    highest = np.where(finite, parsed.values, -np.inf).max(axis=0)
    empty = ~finite.any(axis=0)
    constant = finite.all(axis=0) & (lowest == highest)
    reasons = np.where(empty, EMPTY, np.where(constant, CONSTANT, ""))
    return {name: _left_out(str(reason)) for name, reason in zip(parsed.names, reasons, strict=True) if reason}


def _learn_category(name: str, labels: Labels, notes: ColumnNotes) -> tuple[CategoryEncoder | None, ColumnSummary]:
    """The encoder of a column of labels, ``None`` if it is left out, and its summary."""
    ranked = count_labels(labels)
    reason = _why_unused(labels, ranked)
    hint = format_hint([label for label, _ in ranked])
    encoder = None if reason else CategoryEncoder.learn(name, labels)
    treatment = _left_out(reason) if encoder is None else encoder.treatment
    if encoder is None:
        notes.add(treatment.capitalize(), name, hint)
    elif hint:
        notes.add("Used as categories", name, hint)
    known = sum(rows for _, rows in ranked)
    shares = [f"{quoted(label)[1:-1]} {rows / known:.0%}" for label, rows in ranked]
    missing = 1.0 - known / len(labels)
    return encoder, ColumnSummary(name, "category", missing, len(ranked), listed(shares, limit=3), treatment)


def _why_unused(labels: Labels, ranked: Sequence[tuple[str, int]]) -> str:
    distinct = set(labels)
    if distinct == {None}:
        return EMPTY
    if len(distinct) == 1:
        return CONSTANT
    repeated = sum(rows for _, rows in ranked if rows >= MIN_CATEGORY_ROWS)
    return UNIQUE if repeated / sum(rows for _, rows in ranked) < REPEATED_SHARE else ""


def _left_out(reason: str) -> str:
    return f"left out, because {reason}"


def _add_notes_on_numbers(parsed: ParsedColumns, summaries: Iterable[ColumnSummary], notes: ColumnNotes) -> None:
    rows = len(parsed.values)
    infinite = np.isinf(parsed.values).sum(axis=0)
    for j, summary in enumerate(summaries):
        name = summary.name
        if summary.treatment.startswith("left out"):
            notes.add(summary.treatment.capitalize(), name)
            continue
        if summary.kind == "date":
            notes.add("Read as dates and used as days", name, summary.content)
        if name in parsed.unparsed:
            failed = parsed.unparsed[name]
            detail = f"{len(failed):,} of {rows:,} rows, such as {quoted(failed[0])}"
            notes.add(f"Values that are not {summary.kind}s count as missing", name, detail)
        if infinite[j]:
            notes.add("Infinite values count as missing", name, f"{infinite[j]:,} of {rows:,} rows")
        if summary.missing:
            notes.add(
                "Missing values are replaced by the median and marked by a feature",
                name,
                f"{summary.missing:.1%} of rows",
            )


def _summarize_numbers(parsed: ParsedColumns, n_numbers: int, treatments: dict[str, str]) -> list[ColumnSummary]:
    """The summaries of all columns of numbers and dates; the first ``n_numbers`` are numbers."""
    ordered = np.sort(np.where(np.isfinite(parsed.values), parsed.values, np.nan), axis=0)  # NaN come last
    known = ~np.isnan(ordered)
    first_of_its_value = known.copy()
    first_of_its_value[1:] &= ordered[1:] != ordered[:-1]
    missing = 1.0 - known.mean(axis=0)
    distinct = first_of_its_value.sum(axis=0)
    highest = np.take_along_axis(ordered, np.maximum(known.sum(axis=0) - 1, 0)[None], axis=0)[0]
    return [
        ColumnSummary(
            name=name,
            kind="number" if j < n_numbers else "date",
            missing=float(missing[j]),
            distinct=int(distinct[j]),
            content=_format_range(ordered[0, j], highest[j], is_date=j >= n_numbers),
            treatment=treatments[name],
        )
        for j, name in enumerate(parsed.names)
    ]


def _format_range(low: float, high: float, is_date: bool) -> str:
    if np.isnan(low):
        return ""
    return f"{_format_date(low)} to {_format_date(high)}" if is_date else f"{low:.6g} to {high:.6g}"


def _format_date(days: float) -> str:
    date = np.datetime64(round(days * 86_400), "s")
    return str(date.astype("datetime64[D]") if days == np.floor(days) else date)
