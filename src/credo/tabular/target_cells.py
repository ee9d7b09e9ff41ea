"""The cells of a target: as numbers or labels, with notes about those that have none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import counted, quoted
from credo.errors import InputError
from credo.tabular.dialects import Dialect
from credo.tabular.number_format import FALSE_WORDS, TRUE_WORDS, NumberFormat
from credo.tabular.parsing import Cells, describe_counts, is_placeholder, parse_columns
from credo.tabular.readings import Reading, read_column

MAX_VALUE = 1e100
"""Maximum size of a quantity; squares of larger numbers overflow."""


@dataclass(frozen=True)
class Quantities:
    """The numbers of a target.

    Attributes:
        values: the numbers ``[N]``, NaN where missing.
        unparsed: cells that are neither missing nor numbers.
        placeholders: texts that stand for a missing value, with their numbers of rows.
    """

    values: NDArray[np.float64]
    unparsed: Cells
    placeholders: Counter[str]


def as_series(y: Any) -> pd.Series:
    """One column of targets."""
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if isinstance(y, pd.Series):
        return y
    values = y if isinstance(y, list | tuple) else np.asarray(y)
    if np.ndim(values) != 1:
        raise InputError(f"the target must be one value per row, got shape {list(np.shape(values))}: choose one column")
    return pd.Series(values)


def read_target(column: pd.Series, dialect: Dialect | None = None) -> Reading:
    """Decide how a target is read; columns of numbers are never dates."""
    if types.is_numeric_dtype(column.dtype) and not isinstance(column.dtype, pd.CategoricalDtype):
        return Reading("number")
    return read_column(column, dialect)


def number_format(reading: Reading) -> NumberFormat:
    """The format of the numbers of a target; words for true and false are not numbers here."""
    form = reading.form
    return form if isinstance(form, NumberFormat) and not form.boolean else NumberFormat()


def parse_quantities(column: pd.Series, form: NumberFormat) -> Quantities:
    """The numbers in a column."""
    parsed = parse_columns(column.to_frame("y"), ["y"], [], {"y": form})
    return Quantities(
        parsed.values[:, 0], parsed.unparsed.get("y", Cells([], [])), parsed.placeholders.get("y", Counter())
    )


def check_quantities(found: Quantities, column: pd.Series, name: str, reading: Reading | None) -> None:
    """Raise InputError if some cells are not finite numbers; a few others are accepted in a column of numbers."""
    wrong = found.unparsed
    is_number = reading is not None and reading.kind == "number" and not getattr(reading.form, "boolean", False)
    if len(wrong) and not is_number:
        advice = "correct them, or use classification (credo.Classifier)"
        if reading is not None and reading.doubt:
            advice = f"{reading.doubt[0].lower()}{reading.doubt[1:]} ({reading.example})"
        total = len(wrong) + int(np.isfinite(found.values).sum())
        raise InputError(
            f"the {called(name)} must hold numbers for regression, but {len(wrong):,} of its {counted(total, 'value')} "
            f"are not, such as {quoted(wrong.values[0])} in row {wrong.rows[0]}: {advice}"
        )
    infinite = np.flatnonzero(~np.isnan(found.values) & ~(np.abs(found.values) <= MAX_VALUE))
    if len(infinite):
        raise InputError(
            f"the {called(name)} is infinite, or beyond {MAX_VALUE:g}, in {counted(len(infinite), 'row')}, the first "
            f"in row {column.index[infinite[0]]}, counted from 0: correct or remove them"
        )


def notes_on_quantities(found: Quantities, column: pd.Series, reading: Reading) -> list[str]:
    """Sentences about how the numbers of a training target are read, and about rows without one."""
    name = called(target_name(column))
    notes = notes_on_rows(found, column)
    if reading.doubt:
        return [f"{reading.doubt}: the {name} ({reading.example}).", *notes]
    if reading.form is not None:
        return [f"Read as numbers ({reading.form.describe()}): the {name} ({reading.example}).", *notes]
    return notes


def notes_on_rows(found: Quantities, column: pd.Series) -> list[str]:
    """Sentences about rows without a number."""
    missing = int(np.isnan(found.values).sum()) - len(found.unparsed)
    notes = notes_on_missing(column, missing, found.placeholders)
    if len(found.unparsed):
        name = called(target_name(column))
        notes.append(f"Left out, because the {name} is not a number: {found.unparsed.describe(limit=5)}.")
    return notes


def notes_on_missing(column: pd.Series, missing: int, words: Counter[str] | None = None) -> list[str]:
    """A sentence about rows without a target.

    Raises:
        InputError: if all rows are without one.
    """
    if missing == len(column):
        raise InputError(f"the {called(target_name(column))} is missing in every row: choose another column")
    if not missing:
        return []
    texts = f" ({describe_counts(words)})" if words else ""
    return [f"Left out, because the target is missing: {missing:,} of {counted(len(column), 'row')}{texts}."]


def parse_labels(column: pd.Series, name: str) -> NDArray[Any]:
    """The labels of a column without missing cells, as booleans, integers or text."""
    numeric = isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf"
    if not numeric and len({type(cell) for cell in column}) > 1:
        raise InputError(f"the {called(name)} mixes labels of different types: make all of them text or integers")
    labels: NDArray[Any] = column.to_numpy() if numeric else np.array(column.tolist())
    if labels.dtype.kind not in "biufU":
        raise InputError(
            f"Unknown label type: the {called(name)} holds {quoted(column.iloc[0])}, a "
            f"{type(column.iloc[0]).__name__}: make its labels text or integers"
        )
    if labels.dtype.kind == "f" and not are_integers(labels):
        raise InputError(
            f"Unknown label type: the {called(name)} is continuous, with values such as {quoted(labels[0])}: use "
            "regression (credo.Regressor), or make its labels text or integers"
        )
    return labels


def merge_spellings(labels: NDArray[Any]) -> dict[str, str]:
    """Spellings of words for true and false, such as ``YES`` and ``yes``, and the most frequent one of each word."""
    if labels.dtype.kind != "U":
        return {}
    counts = Counter(labels.tolist())
    words = {label.strip().casefold() for label in counts}
    if len(counts) <= 2 or not words <= TRUE_WORDS | FALSE_WORDS or words <= TRUE_WORDS or words <= FALSE_WORDS:
        return {}
    ranked = sorted(counts, key=lambda label: (-counts[label], label))
    most = {truth: next(label for label in ranked if is_true(label) is truth) for truth in (True, False)}
    return {label: most[is_true(label)] for label in counts}


def is_true(word: str) -> bool:
    """Whether a word for true or false is one for true."""
    return word.strip().casefold() in TRUE_WORDS


def is_unknown(column: pd.Series, numeric: bool) -> NDArray[np.bool]:
    """Whether each label is missing; in a column of numbers, also texts such as ``?``."""
    missing: NDArray[np.bool] = np.asarray(column.isna())
    if numeric and not types.is_numeric_dtype(column.dtype):
        missing = missing | np.array([is_placeholder(cell) for cell in column], dtype=bool)
    return missing


def are_integers(values: NDArray[Any]) -> bool:
    """Whether all values are finite and integers."""
    return bool(np.isfinite(values).all() and (values == np.round(values)).all())


def target_name(column: pd.Series) -> str:
    """The name of a column, or empty."""
    return "" if column.name is None else str(column.name)


def called(name: str) -> str:
    """``name`` as the name of a target in a sentence."""
    return f"target {quoted(name)}" if name else "target"
