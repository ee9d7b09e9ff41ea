"""The type of each column of a training table, the encoders fitted to it, and notes and summaries for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo._text import listed, quoted
from credo.tabular.dialects import Dialect
from credo.tabular.encoders import (
    MIN_CATEGORY_ROWS,
    CategoryEncoder,
    CyclicEncoder,
    Labels,
    NumericScaler,
    count_labels,
)
from credo.tabular.number_format import NumberFormat
from credo.tabular.parsing import (
    Cells,
    ColumnFormat,
    ParsedColumns,
    describe_counts,
    is_placeholder,
    parse_columns,
    to_labels,
)
from credo.tabular.readings import Reading, read_column

REPEATED_SHARE = 0.5
"""A column of labels is used if at least this share of its values occurs more than once."""

EMPTY = "no value is given"
CONSTANT = "all values are the same"
IDENTIFIERS = "its name and its values, different integers, are those of an identifier"
PLACEHOLDERS_MISSING = "Texts that stand for a missing value"
UNIQUE = "nearly every value is different, as in names, identifiers or free text"

_IDENTIFIER = re.compile(
    r"unnamed: 0|index|row|record|lfd|순번|연번|(.*[\W_])?(id|ids|idx|uuid|guid|nr|no|번호)\.?|.*[a-z](?-i:I[dD])",
    re.IGNORECASE,
)
_MIN_IDENTIFIERS = 10
_SENTINEL = re.compile(r"-?9{2,}(\.9+)?|-1|-[1-9]0{2,}")
_MIN_SENTINELS = 3


@dataclass(frozen=True)
class ColumnSummary:
    """One column of the training table.

    Attributes:
        name: the name of the column.
        kind: its :data:`~credo.tabular.dialects.ColumnType`: ``"number"``, ``"date"`` or ``"category"``.
        missing: the share of rows without a usable value, between 0 and 1.
        distinct: the number of different values.
        content: the range of numbers or dates, or the most frequent categories.
        treatment: how the column is used.
        reading: how its numbers or dates are written; empty if they can be read in one way only.
    """

    name: str
    kind: str
    missing: float
    distinct: int
    content: str
    treatment: str
    reading: str = ""

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
        formats: for the columns of numbers and dates that need one.
        scaling: for the columns of numbers, then of dates.
        cycles: for the columns of dates.
        categories: for the columns of labels.
        notes: sentences about what was left out, converted and imputed.
        summaries: one per column, in the order of the table.
        values: the numbers and dates that are used ``[N, C]``, in the order of ``scaling``.
        labels: the labels of each column in ``categories``.
    """

    formats: dict[str, ColumnFormat]
    scaling: NumericScaler
    cycles: CyclicEncoder
    categories: tuple[CategoryEncoder, ...]
    notes: tuple[str, ...]
    summaries: tuple[ColumnSummary, ...]
    values: NDArray[np.float64]
    labels: list[Labels]


def learn_columns(table: pd.DataFrame, dialect: Dialect) -> LearnedColumns:
    """Decide how each column of a training table is read, and fit its encoder."""
    readings = {name: read_column(column, dialect) for name, column in table.items()}
    numbers, dates, others = (
        [name for name, reading in readings.items() if reading.kind == wanted]
        for wanted in ("number", "date", "category")
    )
    formats = {name: reading.form for name, reading in readings.items() if reading.form is not None}
    notes = ColumnNotes()
    parsed = parse_columns(table, numbers, dates, formats)
    unused = _unused_numbers(parsed, dialect)
    used = [j for j, name in enumerate(parsed.names) if name not in unused]
    used_dates = [j for j in used if j >= len(numbers)]
    values = parsed.values[:, used]
    scaling = NumericScaler.learn(tuple(parsed.names[j] for j in used), values)
    cycles = CyclicEncoder.learn(tuple(parsed.names[j] for j in used_dates), parsed.values[:, used_dates])
    treatments = unused | scaling.treatments()
    for name, cycle in cycles.treatments().items():
        treatments[name] = f"days {treatments[name]}" + (f", {cycle}" if cycle else "")
    summaries = _summarize_numbers(parsed, len(numbers), treatments, formats)
    _add_notes_on_readings(readings, unused, notes)
    _add_notes_on_numbers(parsed, summaries, notes)
    _add_notes_on_outliers(scaling, values, table.index, notes)
    _add_notes_on_codes(scaling.names, values[:, : len(scaling.names) - len(used_dates)], dialect, notes)
    categories, labels = [], []
    for name in others:
        of_column = to_labels(table[name])
        encoder, summary = _learn_category(name, of_column, notes)
        summaries.append(summary)
        if encoder is not None:
            categories.append(encoder)
            labels.append(of_column)
    by_name = {summary.name: summary for summary in summaries}
    return LearnedColumns(
        formats={name: form for name, form in formats.items() if name not in unused},
        scaling=scaling,
        cycles=cycles,
        categories=tuple(categories),
        notes=tuple(notes.sentences()),
        summaries=tuple(by_name[name] for name in readings),
        values=values,
        labels=list(labels),
    )


def _unused_numbers(parsed: ParsedColumns, dialect: Dialect) -> dict[str, str]:
    """The columns that are left out, with the reason."""
    finite = np.isfinite(parsed.values)
    lowest = np.where(finite, parsed.values, np.inf).min(axis=0)
    highest = np.where(finite, parsed.values, -np.inf).max(axis=0)
    empty = ~finite.any(axis=0)
    constant = finite.all(axis=0) & (lowest == highest)
    reasons = np.where(empty, EMPTY, np.where(constant, CONSTANT, ""))
    unused = {name: _left_out(str(reason)) for name, reason in zip(parsed.names, reasons, strict=True) if reason}
    for j, name in enumerate(parsed.names):
        if name not in dialect.types and _IDENTIFIER.fullmatch(name) and _are_identifiers(parsed.values[:, j]):
            unused[name] = _left_out(IDENTIFIERS)
    return unused


def _are_identifiers(values: NDArray[np.float64]) -> bool:
    """Whether all values are different integers."""
    whole = bool(np.isfinite(values).all() and (values == np.round(values)).all())
    return whole and len(values) >= _MIN_IDENTIFIERS and len(np.unique(values)) == len(values)


def _learn_category(name: str, labels: Labels, notes: ColumnNotes) -> tuple[CategoryEncoder | None, ColumnSummary]:
    """The encoder of a column of labels, ``None`` if it is left out, and its summary."""
    ranked = count_labels(labels)
    reason = _why_unused(labels, ranked)
    encoder = None if reason else CategoryEncoder.learn(name, labels)
    treatment = _left_out(reason) if encoder is None else encoder.treatment
    if encoder is None:
        notes.add(treatment.capitalize(), name)
    elif words := Counter({label: rows for label, rows in ranked if is_placeholder(label)}):
        notes.add("Texts that may stand for a missing value are used as a category", name, describe_counts(words))
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
            written = f", {summary.reading}" if summary.reading else ""
            notes.add("Read as dates and used as days", name, f"{summary.content}{written}")
        if name in parsed.placeholders:
            notes.add(PLACEHOLDERS_MISSING, name, describe_counts(parsed.placeholders[name]))
        if name in parsed.unparsed:
            notes.add(f"Values that are not {summary.kind}s count as missing", name, parsed.unparsed[name].describe())
        if infinite[j]:
            notes.add("Infinite values count as missing", name, f"{infinite[j]:,} of {rows:,} rows")
        if summary.missing:
            notes.add(
                "Missing values are replaced by the median and marked by a feature",
                name,
                f"{summary.missing:.1%} of rows",
            )


def _add_notes_on_readings(readings: Mapping[str, Reading], unused: Mapping[str, str], notes: ColumnNotes) -> None:
    for name, reading in readings.items():
        if name in unused:
            continue
        if reading.doubt:
            notes.add(reading.doubt, name, reading.example)
        elif isinstance(reading.form, NumberFormat):
            notes.add(f"Read as numbers ({reading.form.describe()})", name, reading.example)


def _add_notes_on_outliers(
    scaling: NumericScaler, values: NDArray[np.float64], index: pd.Index, notes: ColumnNotes
) -> None:
    for j in np.flatnonzero(scaling.clipped):
        rows = np.flatnonzero(np.isfinite(values[:, j]) & scaling.outside(values)[:, j])
        cells = Cells(index[rows].tolist(), [f"{value:.6g}" for value in values[rows, j]])
        notes.add("Far from all other values, and clipped to their range: check", scaling.names[j], cells.describe())


def _add_notes_on_codes(
    names: Sequence[str], values: NDArray[np.float64], dialect: Dialect, notes: ColumnNotes
) -> None:
    """Name columns of numbers with values that may stand for missing ones."""
    for name, column in zip(names, values.T, strict=False):
        if name in dialect.types:
            continue
        if (sentinel := _find_sentinel(column)) is not None:
            rows = int((column == sentinel).sum())
            notes.add("May stand for a missing value, but is used as a number", name, f"{sentinel:g} in {rows:,} rows")


def _find_sentinel(values: NDArray[np.float64]) -> float | None:
    """A number such as −999 in several rows that is further from all others than they are from each other."""
    known = values[np.isfinite(values)]
    if len(known) < _MIN_IDENTIFIERS:
        return None
    for end in (known.min(), known.max()):
        others = known[known != end]
        if len(known) - len(others) < _MIN_SENTINELS or not len(others) or not _SENTINEL.fullmatch(f"{end:.10g}"):
            continue
        if np.abs(others - end).min() > np.ptp(others):
            return float(end)
    return None


def _summarize_numbers(
    parsed: ParsedColumns, n_numbers: int, treatments: dict[str, str], formats: Mapping[str, ColumnFormat]
) -> list[ColumnSummary]:
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
            reading=formats[name].describe() if name in formats else "",
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
