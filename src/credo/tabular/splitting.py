"""Rows set apart for a test, once or in turn."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from credo.errors import InputError
from credo.seeding import derive
from credo.tabular.wording import counted

Rows = NDArray[np.intp]

FEWEST_TRAINED = 5
"""Rows that must be left to learn from."""


def hold_out(rows: int, share: float, seed: int, classes: NDArray[np.int64] | None = None) -> Rows:
    """The positions of a ``share`` of the rows, chosen at random, in rising order.

    Args:
        rows: how many there are.
        share: 0 ≤ share < 1; of more than none, at least one row.
        seed: decides which.
        classes: the class ``[rows]`` of each. They are then held out in proportion, as far as they are frequent enough,
            and one row of each is left to learn from.
    """
    count = max(round(share * rows), 1) if share else 0
    if rows - count < FEWEST_TRAINED:
        raise InputError(
            f"holdout={share:g} of {counted(rows, 'row')} leaves {rows - count} to learn from, but at least "
            f"{FEWEST_TRAINED} are needed: hold out fewer, or add rows"
        )
    order = np.random.default_rng(derive(seed)).permutation(rows)
    if classes is not None:
        first_of_each = np.unique(classes[order], return_index=True)[1]
        order = np.delete(order, first_of_each)
    if count == 0 or count >= len(order):
        return np.sort(order[:count])
    return np.sort(divide(order, count, derive(seed), classes)[1])


def divide(rows: Rows, count: int, seed: int, classes: NDArray[np.int64] | None = None) -> tuple[Rows, Rows]:
    """``rows`` without ``count`` of them chosen at random, and those.

    Args:
        rows: positions in the table.
        count: how many to set apart.
        seed: decides which.
        classes: the class of every row of the table. They are set apart in proportion where they are frequent enough.
    """
    among = None if classes is None else classes[rows]
    if among is not None and not _can_be_stratified(among, count):
        among = None
    kept, apart = train_test_split(rows, test_size=count, random_state=seed % 2**32, stratify=among)
    return kept, apart


def folds(rows: int, count: int, seed: int, classes: NDArray[np.int64] | None = None) -> list[Rows]:
    """The positions of ``count`` parts of nearly equal size that make up all rows, each to be tested in turn.

    Args:
        rows: how many there are.
        count: 2 or more.
        seed: decides which row is in which part.
        classes: the class ``[rows]`` of each, of at least two rows. They are then spread over the parts in proportion,
            and none lies in one part alone.
    """
    most = rows // 2 if classes is None else int(np.bincount(classes).max())
    if not 2 <= count <= most:
        why = "half of the rows" if classes is None else "the rows of the most frequent class"
        raise InputError(f"folds must be between 2 and {most}, {why}, got {count}")
    kind = KFold if classes is None else StratifiedKFold
    splitter = kind(count, shuffle=True, random_state=derive(seed) % 2**32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # rare, but never in one part alone
        return [np.sort(test) for _, test in splitter.split(np.zeros(rows), classes)]


def _can_be_stratified(classes: NDArray[np.int64], count: int) -> bool:
    different, frequency = np.unique(classes, return_counts=True)
    return bool(frequency.min() >= 2 and len(different) <= min(count, len(classes) - count))
