"""What was found in a table and what became of it, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from credo.tabular.categories import ranking
from credo.tabular.wording import listed, quoted


@dataclass(frozen=True)
class ColumnSummary:
    """One column of the training table.

    Attributes:
        name: of the column.
        kind: ``"number"``, ``"date"`` or ``"category"``.
        missing: the share of rows without a usable value, between 0 and 1.
        distinct: the number of different values.
        content: the range of numbers or dates, or the most frequent categories.
        treatment: what the column became.
    """

    name: str
    kind: str
    missing: float
    distinct: int
    content: str
    treatment: str

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return asdict(self)


class Diary:
    """Decisions about columns, one sentence for all columns that met the same one."""

    def __init__(self) -> None:
        self._entries: dict[str, list[str]] = {}

    def add(self, decision: str, column: str, detail: str = "") -> None:
        """Note that ``decision`` was taken for ``column``."""
        self._entries.setdefault(decision, []).append(quoted(column) + (f" ({detail})" if detail else ""))

    def sentences(self) -> list[str]:
        """One a decision, with the columns it was taken for."""
        return [f"{decision}: {listed(columns)}." for decision, columns in self._entries.items()]


def summarize_words(name: str, words: Sequence[str | None], treatment: str) -> ColumnSummary:
    """The summary of a column of words, ``None`` where missing."""
    ranked = ranking(words)
    known = sum(rows for _, rows in ranked)
    shares = [f"{quoted(word)[1:-1]} {rows / known:.0%}" for word, rows in ranked]
    return ColumnSummary(name, "category", 1.0 - known / len(words), len(ranked), listed(shares, limit=3), treatment)


def summarize_numbers(
    names: Sequence[str], is_date: Sequence[bool], values: NDArray[np.float64], treatments: Sequence[str]
) -> list[ColumnSummary]:
    """The summaries of columns of numbers, or of days from 1970, ``values`` ``[N, D]``."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)  # NaN come last
    known = ~np.isnan(ordered)
    first_of_its_value = known.copy()
    first_of_its_value[1:] &= ordered[1:] != ordered[:-1]
    missing = 1.0 - known.mean(axis=0)
    distinct = first_of_its_value.sum(axis=0)
    highest = np.take_along_axis(ordered, np.maximum(known.sum(axis=0) - 1, 0)[None], axis=0)[0]
    return [
        ColumnSummary(
            name=names[j],
            kind="date" if is_date[j] else "number",
            missing=float(missing[j]),
            distinct=int(distinct[j]),
            content=_range(ordered[0, j], highest[j], is_date[j]),
            treatment=treatments[j],
        )
        for j in range(len(names))
    ]


def _range(low: float, high: float, is_date: bool) -> str:
    if np.isnan(low):
        return ""
    return f"{_date(low)} to {_date(high)}" if is_date else f"{low:.6g} to {high:.6g}"


def _date(days: float) -> str:
    moment = np.datetime64(round(days * 86_400), "s")
    return str(moment.astype("datetime64[D]") if days == np.floor(days) else moment)
