"""The decisions that a training table calls for, column by column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from credo.tabular.categories import REPEATED_SHARE, Category, Words, ranking, repeated_share
from credo.tabular.cells import Measured, measure, words
from credo.tabular.cycles import Cycles
from credo.tabular.kinds import hint, kind_of
from credo.tabular.scaling import Scaling
from credo.tabular.summary import ColumnSummary, Diary, summarize_numbers, summarize_words
from credo.tabular.wording import quoted

EMPTY = "no value is given"
CONSTANT = "all values are the same"
UNIQUE = "nearly every value is different, as in names, identifiers or free text"


class LearnedNumbers(NamedTuple):
    """What was decided on columns of numbers and dates."""

    scaling: Scaling
    cycles: Cycles
    unclean: tuple[str, ...]
    summaries: list[ColumnSummary]


class LearnedWords(NamedTuple):
    """What was decided on columns of words."""

    categories: tuple[Category, ...]
    summaries: list[ColumnSummary]


class Learned(NamedTuple):
    """How the columns of a table are used, what to tell about it, and what each of them held, in their order."""

    scaling: Scaling
    cycles: Cycles
    unclean: tuple[str, ...]
    categories: tuple[Category, ...]
    notes: tuple[str, ...]
    summaries: tuple[ColumnSummary, ...]


def learn(table: pd.DataFrame) -> Learned:
    """Decide what each column of a training table holds and what becomes of it."""
    kinds: dict[str, str] = {name: kind_of(column) for name, column in table.items()}
    diary = Diary()
    measured = measure(table, _of_kind("number", kinds), _of_kind("date", kinds))
    numbers = _learn_numbers(measured, len(_of_kind("number", kinds)), diary)
    in_words = _learn_words(table[_of_kind("category", kinds)], diary)
    by_name = {summary.name: summary for summary in (*numbers.summaries, *in_words.summaries)}
    return Learned(
        scaling=numbers.scaling,
        cycles=numbers.cycles,
        unclean=numbers.unclean,
        categories=in_words.categories,
        notes=tuple(diary.sentences()),
        summaries=tuple(by_name[name] for name in kinds),
    )


def _of_kind(wanted: str, kinds: dict[str, str]) -> list[str]:
    return [name for name, kind in kinds.items() if kind == wanted]


def _learn_numbers(measured: Measured, n_numbers: int, diary: Diary) -> LearnedNumbers:
    names, values = measured.names, measured.values
    useless = _useless_numbers(measured)
    used = [j for j, name in enumerate(names) if name not in useless]
    used_dates = [j for j in used if j >= n_numbers]
    scaling = Scaling.learn(tuple(names[j] for j in used), values[:, used])
    cycles = Cycles.learn(tuple(names[j] for j in used_dates), values[:, used_dates])
    treatments = useless | scaling.treatments()
    for name, cycle in cycles.treatments().items():
        treatments[name] = f"days {treatments[name]}" + (f", {cycle}" if cycle else "")
    is_date = [j >= n_numbers for j in range(len(names))]
    summaries = summarize_numbers(names, is_date, values, [treatments[name] for name in names])
    _tell_of_numbers(measured, summaries, diary)
    infinite = np.isinf(values).sum(axis=0)
    unclean = tuple(name for j, name in enumerate(names) if infinite[j] or name in measured.unread)
    return LearnedNumbers(scaling, cycles, unclean, summaries)


def _useless_numbers(measured: Measured) -> dict[str, str]:
    """The columns that are left out, and why."""
    finite = np.isfinite(measured.values)
    lowest = np.where(finite, measured.values, np.inf).min(axis=0)
    highest = np.where(finite, measured.values, -np.inf).max(axis=0)
    empty = ~finite.any(axis=0)
    constant = finite.all(axis=0) & (lowest == highest)
    reasons = np.where(empty, EMPTY, np.where(constant, CONSTANT, ""))
    return {name: _left_out(str(reason)) for name, reason in zip(measured.names, reasons, strict=True) if reason}


def _learn_words(table: pd.DataFrame, diary: Diary) -> LearnedWords:
    categories, summaries = [], []
    for name, column in table.items():
        cells = words(column)
        reason = _why_useless(cells)
        advice = hint([word for word, _ in ranking(cells)])
        if reason:
            diary.add(_left_out(reason).capitalize(), name, advice)
            treatment = _left_out(reason)
        else:
            categories.append(Category.learn(name, cells))
            treatment = categories[-1].treatment
            if advice:
                diary.add("Used as categories", name, advice)
        summaries.append(summarize_words(name, cells, treatment))
    return LearnedWords(tuple(categories), summaries)


def _why_useless(cells: Words) -> str:
    distinct = set(cells)
    if distinct == {None}:
        return EMPTY
    if len(distinct) == 1:
        return CONSTANT
    return UNIQUE if repeated_share(cells) < REPEATED_SHARE else ""


def _left_out(reason: str) -> str:
    return f"left out, because {reason}"


def _tell_of_numbers(measured: Measured, summaries: Iterable[ColumnSummary], diary: Diary) -> None:
    rows = len(measured.values)
    infinite = np.isinf(measured.values).sum(axis=0)
    for j, summary in enumerate(summaries):
        name = summary.name
        if summary.treatment.startswith("left out"):
            diary.add(summary.treatment.capitalize(), name)
            continue
        if summary.kind == "date":
            diary.add("Read as dates and used as days", name, summary.content)
        if name in measured.unread:
            failed = measured.unread[name]
            detail = f"{len(failed):,} of {rows:,} rows, such as {quoted(failed[0])}"
            diary.add(f"Values that are no {summary.kind}s count as missing", name, detail)
        if infinite[j]:
            diary.add("Infinite values count as missing", name, f"{infinite[j]:,} of {rows:,} rows")
        if summary.missing:
            diary.add("Missing values become the median, and a feature says so", name, f"{summary.missing:.1%} of rows")
