"""Held-out rows and folds: sizes, stratification, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credo.errors import InputError
from credo.tabular.comparison import split_folds
from credo.tabular.splitting import MIN_TRAINING_ROWS, hold_out


@given(rows=st.integers(10, 200), share=st.floats(0.0, 0.5), seed=st.integers(0, 2**63 - 1))
def test_hold_out_returns_the_requested_fraction(rows, share, seed):
    apart = hold_out(rows, share, seed)
    wanted = 0 if share == 0.0 else max(round(share * rows), 1)
    assert len(apart) == len(set(apart)) == wanted
    assert sorted(apart) == apart.tolist()
    assert hold_out(rows, share, seed).tolist() == apart.tolist()


def test_seed_determines_the_held_out_rows():
    assert hold_out(100, 0.2, 0).tolist() != hold_out(100, 0.2, 1).tolist()


@given(
    classes=st.lists(st.integers(0, 8), min_size=15, max_size=80).map(np.array),
    share=st.floats(0.0, 0.6),
    seed=st.integers(0, 100),
)
def test_every_class_keeps_a_training_row(classes, share, seed):
    apart = hold_out(len(classes), share, seed, classes)
    assert len(set(apart)) == len(apart) <= max(round(share * len(classes)), 1)
    assert set(np.delete(classes, apart)) == set(classes)


def test_hold_out_is_stratified():
    classes = np.repeat([0, 1, 2], [600, 300, 100])
    held = np.bincount(classes[hold_out(1000, 0.2, 0, classes)])
    # One row of each class is put aside first, which moves a share by 1 row at most.
    assert np.abs(held - [120, 60, 20]).max() <= 1


def test_too_few_training_rows_raise():
    with pytest.raises(InputError, match=r"holdout=0\.8 of 20 rows leaves 4 to train on, but at least 5"):
        hold_out(20, 0.8, 0)
    assert len(hold_out(20, 0.75, 0)) == 20 - MIN_TRAINING_ROWS


@given(rows=st.integers(4, 100), count=st.integers(2, 10), seed=st.integers(0, 100))
def test_folds_partition_all_rows(rows, count, seed):
    if count > rows // 2:
        with pytest.raises(InputError, match="folds must be between 2 and"):
            split_folds(rows, count, seed)
        return
    parts = split_folds(rows, count, seed)
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes=st.lists(st.integers(2, 20), min_size=2, max_size=6), count=st.integers(2, 10), seed=st.integers(0, 100))
def test_no_class_is_in_one_fold_only(sizes, count, seed):
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if count > max(sizes):
        with pytest.raises(InputError, match="the most frequent class"):
            split_folds(len(classes), count, seed, classes)
        return
    for part in split_folds(len(classes), count, seed, classes):
        assert set(np.delete(classes, part)) == set(classes)
