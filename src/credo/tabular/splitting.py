"""Random splits of the rows of a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from credo._text import counted
from credo.errors import InputError
from credo.seeding import derive

MIN_TRAINING_ROWS = 5
"""Minimum number of rows to train on after some are held out."""


def split_rows(
    rows: NDArray[np.intp], count: int, seed: int, classes: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
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


def hold_out(rows: int, fraction: float, seed: int, classes: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Choose rows to hold out at random.

    Args:
        rows: the number of rows.
        fraction: 0 ≤ fraction < 1; if it is not 0, at least one row is held out.
        seed: the random seed.
        classes: the class ``[rows]`` of each row. The choice is stratified if each class is frequent enough, and one
            row of each class is left to train on.

    Returns:
        Their positions in ascending order.

    Raises:
        InputError: if fewer than 5 rows are left to train on.
    """
    count = max(round(fraction * rows), 1) if fraction else 0
    if rows - count < MIN_TRAINING_ROWS:
        raise InputError(
            f"holdout={fraction:g} of {counted(rows, 'row')} leaves {rows - count} to train on, but at least "
            f"{MIN_TRAINING_ROWS} are needed: hold out fewer, or add rows"
        )
    order = np.random.default_rng(derive(seed)).permutation(rows)
    if classes is not None:
        first_of_each = np.unique(classes[order], return_index=True)[1]
        order = np.delete(order, first_of_each)
    if count == 0 or count >= len(order):
        return np.sort(order[:count])
    return np.sort(split_rows(order, count, derive(seed), classes)[1])
