"""Columns that leak the target, and rows that occur both in training and among the held-out rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo._text import counted, quoted
from credo.tabular.column_types import ColumnNotes
from credo.tabular.columns import Columns
from credo.tabular.parsing import to_labels
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows

MIN_R2 = 0.999
"""A column leaks a quantity if it alone predicts this share of its variance in rows that are left out."""

MAX_ERROR = 0.005
"""A column leaks classes if it alone predicts all but this share of the rows that are left out."""

MAX_ROWS = 1000
"""Number of rows, at most, on which columns are checked; others are not looked at."""

_MIN_ROWS, _MIN_CLASS_ROWS, _MAX_GROUPS = 20, 5, 0.25
_LEAKS = (
    "Alone it predicts the target almost perfectly: leave it out (drop=, --drop) unless it is known before the target"
)


def check_table(
    frame: pd.DataFrame, target: RegressionTarget | ClassTarget, held_out: NDArray[np.intp]
) -> Iterator[str]:
    """Sentences about columns that leak the target, and about held-out rows that distort the metrics.

    Args:
        frame: the table, with its target.
        target: the target, fitted to all rows.
        held_out: the positions of the held-out rows.

    Yields:
        The sentences.
    """
    known = known_rows(frame[target.name], target).nonzero()[0]
    rows = frame.iloc[known[np.unique(np.linspace(0, len(known) - 1, MAX_ROWS).astype(np.intp))]]
    cells = rows[target.name]
    y = target.encode(cells).astype(np.float64) if isinstance(target, ClassTarget) else target.parse(cells)
    X = rows.drop(columns=target.name)
    columns = Columns.learn(X)
    if np.ptp(y) > 0.0:  # every column predicts a constant target
        yield from find_leaks(columns, X, y, isinstance(target, ClassTarget))
    if not len(held_out):
        return
    used = [*columns.scaling.names, *(category.name for category in columns.categories), target.name]
    copies = count_copies(frame[used], held_out)
    if copies:
        yield (
            f"{copies:,} of {counted(len(held_out), 'held-out row')} also occur in training, equal in every column: "
            "the metrics are too good if they are copies; remove duplicate rows."
        )
    outlying = "" if isinstance(target, ClassTarget) else target.outlying(frame[target.name].iloc[held_out])
    if outlying:
        yield (
            f"The target {quoted(target.name)} is far from all others in a held-out row, which determines the metrics: "
            f"check {outlying}."
        )


def find_leaks(columns: Columns, frame: pd.DataFrame, y: NDArray[np.float64], is_class: bool) -> list[str]:
    """Sentences about columns from which alone the target can be predicted almost perfectly.

    A row is predicted from the other rows: by those next to it in the order of a column of numbers, or with the same
    label. Such a column is often a copy of the target, or was recorded after it.

    Args:
        columns: the columns, fitted to ``frame``.
        frame: the rows ``[N]``.
        y: their targets ``[N]``: quantities, or positions of classes.
        is_class: whether they are classes.

    Returns:
        One sentence for all such columns, or none.
    """
    notes = ColumnNotes()
    if len(frame) < _MIN_ROWS or (is_class and np.sort(np.bincount(y.astype(np.intp)))[-2:].min() < _MIN_CLASS_ROWS):
        return []
    values = columns.parse(frame).values
    for j, name in enumerate(columns.scaling.names):
        known = np.isfinite(values[:, j])
        if known.sum() >= max(_MIN_ROWS, 0.9 * len(y)) and np.ptp(y[known]) > 0.0:
            evidence = _evidence_of_numbers(values[known, j], y[known], is_class)
            if evidence:
                notes.add(_LEAKS, name, evidence)
    for category in columns.categories:
        codes = pd.factorize(pd.Series(to_labels(frame[category.name]), dtype=object), use_na_sentinel=False)[0]
        evidence = _evidence_of_labels(codes, y, is_class)
        if evidence:
            notes.add(_LEAKS, category.name, evidence)
    return notes.sentences()


def count_copies(frame: pd.DataFrame, held_out: NDArray[np.intp]) -> int:
    """The number of held-out rows that are equal to a row of training in all columns.

    Args:
        frame: all rows, with the columns to compare.
        held_out: the positions of the held-out rows.

    Returns:
        Their number.
    """
    texts = {name: column.astype(str) for name, column in frame.items() if column.dtype == object}
    keys = pd.util.hash_pandas_object(frame.assign(**texts), index=False).to_numpy()
    return int(np.isin(keys[held_out], np.delete(keys, held_out)).sum())


def _evidence_of_numbers(x: NDArray[np.float64], y: NDArray[np.float64], is_class: bool) -> str:
    order = np.lexsort((y, x)) if is_class else np.argsort(x, kind="stable")
    ordered = y[order]
    if is_class:
        if len(np.unique(x)) <= len(np.unique(y)):
            return _evidence_of_labels(np.unique(x, return_inverse=True)[1], y, is_class)
        errors = int((ordered[1:] != ordered[:-1]).sum()) - (len(np.unique(y)) - 1)
        return "in its order the classes follow one another" if errors <= MAX_ERROR * len(y) else ""
    if np.array_equal(x, y):
        return "equal to the target"
    if np.ptp(x) > 0.0 and abs(np.corrcoef(x, y)[0, 1]) > 1.0 - 1e-9:
        return "a linear function of the target"
    if len(np.unique(x)) >= _MIN_ROWS and (np.all(np.diff(ordered) >= 0.0) or np.all(np.diff(ordered) <= 0.0)):
        return "in the same or the opposite order in every row"
    inner = ordered[1:-1] - (ordered[2:] + ordered[:-2]) / 2.0
    r2 = 1.0 - float(np.mean(np.square(inner)) / np.var(y))
    return f"R² = {r2:.4f} in rows that are left out" if r2 >= MIN_R2 else ""


def _evidence_of_labels(codes: NDArray[np.intp], y: NDArray[np.float64], is_class: bool) -> str:
    rows = np.bincount(codes)
    if len(rows) < 2 or len(rows) > _MAX_GROUPS * len(y):
        return ""
    if is_class:
        errors = len(y) - int(pd.crosstab(codes, y).to_numpy().max(axis=1).sum())
        return f"{len(y) - errors:,} of {len(y):,} rows right" if errors <= MAX_ERROR * len(y) else ""
    mean = np.bincount(codes, weights=y) / rows
    others = np.maximum(rows - 1, 1)[codes]
    r2 = 1.0 - float(np.mean(np.square((y - mean[codes]) * rows[codes] / others)) / np.var(y))
    return f"R² = {r2:.4f} in rows that are left out" if r2 >= MIN_R2 and rows.min() > 1 else ""
