"""Rows split into parts, to hold some out: at random, by groups or by time; and what ``fit`` is told about rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedGroupKFold, StratifiedKFold, train_test_split

from credo._text import counted, quoted
from credo.errors import InputError, unknown_name
from credo.seeding import derive
from credo.tabular.parsing import parse_columns, to_labels

MIN_TRAINING_ROWS = 5
"""Minimum number of rows to train on after some are held out."""

_ATTEMPTS = 50  # to find groups such that every class is left to train on

Rows = NDArray[np.intp]
Classes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowDetails:
    """What is known about rows beside their columns and target.

    Attributes:
        rows: the number of rows N.
        weight: how often each row counts ``[N]``; ``None``: once.
        groups: the group of each row ``[N]``, as a position; ``None``: rows are independent.
        time: the time of each row ``[N]``, as a number; ``None``: rows have no order.
    """

    rows: int
    weight: NDArray[np.float32] | None = None
    groups: Rows | None = None
    time: NDArray[np.float64] | None = None

    @classmethod
    def read(cls, rows: int, weight: Any = None, groups: Any = None, time: Any = None) -> RowDetails:
        """Check what a user gave, each with one value per row; time may be numbers or dates."""
        if groups is not None and time is not None:
            raise InputError("rows can be split by groups or by time, not by both: pass one of them")
        return cls(rows, _read_weight(weight, rows), _read_groups(groups, rows), _read_time(time, rows))

    @property
    def used(self) -> NDArray[np.bool]:
        """Which rows have a weight above 0 ``[N]``."""
        return np.ones(self.rows, dtype=bool) if self.weight is None else self.weight > 0

    def take(self, rows: Any) -> RowDetails:
        """The details of the rows of an index or a mask."""
        parts = [None if values is None else values[rows] for values in (self.weight, self.groups, self.time)]
        return RowDetails(len(np.arange(self.rows)[rows]), *parts)

    def split(self, count: int, seed: int, classes: Classes | None = None) -> tuple[Rows, Rows]:
        """Split all rows in two: at random, or such that no group is on both sides, or the last rows in time.

        Args:
            count: the number of rows of the second part; groups, and rows of one time, are not separated, so that it
                may differ.
            seed: the random seed.
            classes: the class of every row ``[N]``. A random split is stratified if each class is frequent enough.

        Returns:
            The rows of both parts.

        Raises:
            InputError: if all rows are of one group or one time.
        """
        if self.time is not None:
            return _split_by_time(self.time, count)
        if self.groups is not None:
            return _split_by_groups(self.groups, count, seed)
        return split_rows(np.arange(self.rows), count, seed, classes)

    def training_rows(self, test: Rows) -> Rows:
        """The rows to train on for the prediction of ``test``: all others, or those before them in time."""
        if self.time is None:
            return np.delete(np.arange(self.rows), test)
        return np.flatnonzero(self.time < self.time[test].min())

    def describe(self, name: str | None = None) -> str:
        """How rows are split, for reports; ``name`` is that of the column of groups or time."""
        if self.groups is not None:
            return f"by groups ({quoted(name)}): no group is both trained on and tested"
        if self.time is not None:
            return f"by time ({quoted(name)}): the rows tested are later than those trained on"
        return "at random"


def read_details(frame: pd.DataFrame, target: str, group: str | None, time: str | None) -> RowDetails:
    """The groups or times of the rows of a table, from the columns of these names."""
    for what, name in (("group", group), ("time", time)):
        if name is not None and name not in frame:
            raise unknown_name(f"column of {what}s", name, frame.columns)
        if name == target:
            raise InputError(f"the target {quoted(target)} cannot be the {what} of the rows: choose another column")
    columns = (None if name is None else frame[name] for name in (group, time))
    return RowDetails.read(len(frame), None, *columns)


def select_rows(frame: Any, y: Any, details: RowDetails, chosen: NDArray[np.bool]) -> tuple[Any, Any, RowDetails]:
    """A table, its targets and the details of its rows, for those rows for which ``chosen`` is true."""
    return (frame, y, details) if chosen.all() else (frame[chosen], y[chosen], details.take(chosen))


def split_rows(rows: Rows, count: int, seed: int, classes: Classes | None = None) -> tuple[Rows, Rows]:
    """Split rows at random into two parts.

    Args:
        rows: positions in the table.
        count: the number of rows of the second part.
        seed: the random seed.
        classes: the class of every row of the table. The split is stratified if each class is frequent enough.

    Returns:
        The other rows, and ``count`` of them.
    """
    strata = None if classes is None else classes[rows]
    if strata is not None:
        different, frequency = np.unique(strata, return_counts=True)
        if frequency.min() < 2 or len(different) > min(count, len(rows) - count):
            strata = None
    first, second = train_test_split(rows, test_size=count, random_state=seed % 2**32, stratify=strata)
    return first, second


def hold_out(
    rows: int, fraction: float, seed: int, classes: Classes | None = None, details: RowDetails | None = None
) -> Rows:
    """Choose rows to hold out: at random, by groups, or the last ones in time.

    Args:
        rows: the number of rows.
        fraction: 0 ≤ fraction < 1; if it is not 0, at least one row is held out.
        seed: the random seed.
        classes: the class ``[rows]`` of each row. A random choice is stratified if each class is frequent enough, and
            one row of each class is left to train on.
        details: the groups or times of the rows; ``None``: they have none.

    Returns:
        Their positions in ascending order.

    Raises:
        InputError: if fewer than 5 rows are left to train on, or no row of some class.
    """
    count = max(round(fraction * rows), 1) if fraction else 0
    if rows - count < MIN_TRAINING_ROWS:
        raise InputError(
            f"holdout={fraction:g} of {counted(rows, 'row')} leaves {rows - count} to train on, but at least "
            f"{MIN_TRAINING_ROWS} are needed: hold out fewer, or add rows"
        )
    if count and details is not None and (details.groups is not None or details.time is not None):
        return _hold_out_by_details(details, count, seed, classes)
    order = np.random.default_rng(derive(seed)).permutation(rows)
    if classes is not None:
        first_of_each = np.unique(classes[order], return_index=True)[1]
        order = np.delete(order, first_of_each)
    if count == 0 or count >= len(order):
        return np.sort(order[:count])
    return np.sort(split_rows(order, count, derive(seed), classes)[1])


def split_folds(
    rows: int, count: int, seed: int, classes: Classes | None = None, details: RowDetails | None = None
) -> list[Rows]:
    """Split rows into folds of nearly equal size: at random, by groups, or by time.

    Folds by time are consecutive and leave out the first rows, about 1/(count + 1) of them, so that each fold can be
    predicted from the rows before it; see :meth:`RowDetails.training_rows`.

    Args:
        rows: the number of rows.
        count: the number of folds, at least 2.
        seed: the random seed.
        classes: the class ``[rows]`` of each row, with at least two rows per class. The folds are then stratified, and
            no class is in one fold only.
        details: the groups or times of the rows; ``None``: they have none.

    Returns:
        The positions of the rows of each fold, in ascending order.

    Raises:
        InputError: if there are too few rows, groups or times for the folds, or a class cannot be trained on.
    """
    maximum = rows // 2 if classes is None else int(np.bincount(classes).max())
    if not 2 <= count <= maximum:
        why = "half of the rows" if classes is None else "the rows of the most frequent class"
        raise InputError(f"folds must be between 2 and {maximum}, {why}, got {count}")
    details = details or RowDetails(rows)
    if details.time is not None:
        folds = _folds_by_time(details.time, count)
    elif details.groups is not None:
        folds = _folds_by_groups(details.groups, count, seed, classes)
    else:
        splitter = KFold if classes is None else StratifiedKFold
        shuffled = splitter(count, shuffle=True, random_state=derive(seed) % 2**32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # has at least two rows
            return [np.sort(test) for _, test in shuffled.split(np.zeros(rows), classes)]
    if classes is not None:
        for test in folds:
            _check_classes_left(classes, details.training_rows(test))
    return folds


def _split_by_time(time: NDArray[np.float64], count: int) -> tuple[Rows, Rows]:
    latest_first = np.sort(time)[::-1]
    boundary = latest_first[count - 1]
    if boundary == latest_first[-1]:  # all rows that are left have the same time
        boundary = min(latest_first[latest_first > boundary], default=boundary)
    held_out = time >= boundary
    if held_out.all():
        raise InputError("all rows have the same time, so that none can be held out as the last: leave time out")
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _split_by_groups(groups: Rows, count: int, seed: int) -> tuple[Rows, Rows]:
    """Random groups with at most ``count`` rows in all, or the smallest group."""
    labels, sizes = np.unique(groups, return_counts=True)
    if len(labels) < 2:
        raise InputError("all rows are of one group, so that no group can be held out: leave groups out")
    chosen, total = [], 0
    for position in np.random.default_rng(seed).permutation(len(labels)):
        if total + sizes[position] <= count:
            chosen.append(position)
            total += sizes[position]
    held_out = np.isin(groups, labels[chosen or [int(np.argmin(sizes))]])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _hold_out_by_details(details: RowDetails, count: int, seed: int, classes: Classes | None) -> Rows:
    training, held_out = details.split(count, derive(seed, 0))
    if classes is not None:
        for attempt in range(1, _ATTEMPTS):
            if len(np.unique(classes[training])) == len(np.unique(classes)):
                break
            training, held_out = details.split(count, derive(seed, attempt))
        _check_classes_left(classes, training)
    if len(training) < MIN_TRAINING_ROWS:
        raise InputError(
            f"{counted(len(training), 'row')} would be left to train on, but at least {MIN_TRAINING_ROWS} are needed: "
            "hold out fewer, or use smaller groups"
        )
    return held_out


def _folds_by_groups(groups: Rows, count: int, seed: int, classes: Classes | None) -> list[Rows]:
    different = len(np.unique(groups))
    if different < count:
        raise InputError(f"folds must be between 2 and {different}, the number of groups, got {count}")
    labels = np.zeros(len(groups), dtype=np.int64) if classes is None else classes
    splitter = StratifiedGroupKFold(count, shuffle=True, random_state=derive(seed) % 2**32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = [np.sort(test) for _, test in splitter.split(np.zeros(len(groups)), labels, groups)]
    if not all(map(len, folds)):
        raise InputError(f"the groups cannot be divided into {count} folds with rows in each: use fewer folds")
    return folds


def _folds_by_time(time: NDArray[np.float64], count: int) -> list[Rows]:
    ordered = np.sort(time)
    starts = ordered[np.linspace(0, len(time), count + 2).astype(int)[1:-1]]
    if len(np.unique(starts)) < count or starts[0] == ordered[0]:
        raise InputError(
            f"there are too few different times for {count} folds, each later than the rows it is predicted from: use "
            "fewer folds, or a finer time"
        )
    ends = [*starts[1:], np.inf]
    return [np.flatnonzero((time >= start) & (time < end)) for start, end in zip(starts, ends, strict=True)]


def _check_classes_left(classes: Classes, training: Rows) -> None:
    missing = np.setdiff1d(classes, classes[training])
    if len(missing):
        raise InputError(
            f"{len(missing):,} of the classes would not be among the rows to train on, because of the groups or times: "
            "leave out rare classes, or hold out fewer rows"
        )


def _read_weight(weight: Any, rows: int) -> NDArray[np.float32] | None:
    if weight is None:
        return None
    values = np.asarray(weight)
    if values.ndim == 0:
        values = np.full(rows, values)
    if values.ndim != 1:
        raise InputError(f"sample_weight must be one number per row, got shape {list(values.shape)}")
    _check_length(values, rows, "sample_weight")
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must hold numbers, got {values.dtype}") from error
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InputError("sample_weight must hold finite numbers of at least 0")
    if not numbers.any():
        raise InputError("sample_weight is zero in every row: there is nothing to train on")
    return numbers.astype(np.float32)


def _read_groups(groups: Any, rows: int) -> Rows | None:
    if groups is None:
        return None
    column = _as_column(groups, rows, "groups")
    labels = to_labels(column)
    if None in labels:
        raise InputError(f"groups is missing in row {labels.index(None)}, counted from 0: every row needs a group")
    return np.unique(np.array(labels, dtype=str), return_inverse=True)[1].astype(np.intp)


def _read_time(time: Any, rows: int) -> NDArray[np.float64] | None:
    if time is None:
        return None
    table = _as_column(time, rows, "time").to_frame("time")
    if pd.api.types.is_datetime64_any_dtype(table["time"].dtype):
        parsed = parse_columns(table, [], ["time"], {})
    else:
        parsed = parse_columns(table, ["time"], [], {})
        if np.isnan(parsed.values).any():
            parsed = parse_columns(table, [], ["time"], {})
    values = parsed.values[:, 0]
    invalid = np.flatnonzero(~np.isfinite(values))
    if len(invalid):
        cell = table["time"].iloc[invalid[0]]
        raise InputError(
            f"time must hold numbers or dates such as 2024-03-31 in every row, but holds {quoted(cell)} in row "
            f"{invalid[0]}, counted from 0"
        )
    return values


def _as_column(values: Any, rows: int, name: str) -> pd.Series:
    column = values if isinstance(values, pd.Series) else pd.Series(np.asarray(values).ravel())
    _check_length(column, rows, name)
    return column.reset_index(drop=True)


def _check_length(values: Any, rows: int, name: str) -> None:
    if len(values) != rows:
        raise InputError(f"{name} has {counted(len(values), 'value')}, but there are {counted(rows, 'row')}")
