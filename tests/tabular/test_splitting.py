"""Held-out rows and folds: sizes, stratification, errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credo.errors import InputError
from credo.tabular.splitting import MIN_TRAINING_ROWS, RowDetails, hold_out, split_folds


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


@given(
    groups=st.lists(st.integers(0, 9), min_size=20, max_size=60).filter(lambda g: len(set(g)) > 2),
    share=st.floats(0.05, 0.5),
    seed=st.integers(0, 100),
)
def test_no_group_is_on_both_sides(groups, share, seed):
    details = RowDetails.read(len(groups), groups=groups)
    training, held_out = details.split(max(round(share * len(groups)), 1), seed)
    assert sorted([*training, *held_out]) == list(range(len(groups)))
    assert not {groups[i] for i in training} & {groups[i] for i in held_out}
    sizes = np.unique(groups, return_counts=True)[1]
    assert len(held_out) <= max(round(share * len(groups)), 1, sizes.min())
    for test in split_folds(len(groups), 2, seed, details=details):
        assert not {groups[i] for i in test} & {groups[i] for i in details.training_rows(test)}


@given(time=st.lists(st.integers(0, 12), min_size=12, max_size=60).filter(lambda t: len(set(t)) > 4))
def test_the_last_rows_are_held_out(time):
    details = RowDetails.read(len(time), time=time)
    training, held_out = details.split(len(time) // 5, 0)
    assert sorted([*training, *held_out]) == list(range(len(time)))
    assert max(time[i] for i in training) < min(time[i] for i in held_out)


def test_folds_by_time_are_predicted_from_earlier_rows():
    time = np.random.default_rng(0).permutation(60) // 2  # every time twice
    details = RowDetails.read(60, time=time)
    folds = split_folds(60, 4, 0, details=details)
    assert [len(test) for test in folds] == [12] * 4
    assert np.concatenate(folds).size == 48
    for test in folds:
        assert time[details.training_rows(test)].max() < time[test].min()
        assert len(details.training_rows(test)) == (time < time[test].min()).sum()
    with pytest.raises(InputError, match="too few different times for 4 folds"):
        split_folds(60, 4, 0, details=RowDetails.read(60, time=np.arange(60) // 30))


def test_held_out_rows_of_a_run_respect_groups_and_time():
    groups = np.repeat(np.arange(10), 6)
    apart = hold_out(60, 0.2, 0, details=RowDetails.read(60, groups=groups))
    assert len(apart) == 12
    assert len(set(groups[apart])) == 2
    assert hold_out(60, 0.25, 3, details=RowDetails.read(60, time=np.arange(60)[::-1])).tolist() == list(range(15))
    classes = np.where(groups == 3, 1, 0)  # one class in one group only
    for seed in range(5):
        assert 3 not in groups[hold_out(60, 0.2, seed, classes, RowDetails.read(60, groups=groups))]
    late = (np.arange(60) > 55).astype(int)
    with pytest.raises(InputError, match="1 of the classes would not be among the rows to train on"):
        hold_out(60, 0.2, 0, late, RowDetails.read(60, time=np.arange(60)))


def test_details_are_read_from_any_column():
    dates = pd.Series(["2024-03-01", "2024-01-01", "2024-02-01"])
    for time in (dates, dates.to_numpy(), pd.to_datetime(dates), ["3", "1", "2"], [3.0, 1.0, 2.0]):
        assert RowDetails.read(3, time=time).time.argsort().tolist() == [1, 2, 0]
    assert RowDetails.read(3, groups=["b", "a", "b"]).groups.tolist() == [1, 0, 1]
    details = RowDetails.read(3, weight=[0.0, 1.0, 2.0], groups=[7, 7, 8]).take([False, True, True])
    assert (details.rows, details.weight.tolist(), details.groups.tolist()) == (2, [1.0, 2.0], [0, 1])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"groups": [1, 2, 3], "time": [1, 2, 3]}, "not by both"),
        ({"groups": [1, 2]}, "groups has 2 values, but there are 3 rows"),
        ({"groups": ["a", None, "b"]}, "groups is missing in row 1"),
        ({"time": ["soon", 1, 2]}, "such as 2024-03-31 in every row, but holds 'soon' in row 0"),
        ({"weight": [1.0, -1.0, 2.0]}, "finite numbers of at least 0"),
        ({"weight": [0.0, 0.0, 0.0]}, "zero in every row"),
        ({"weight": ["a", "b", "c"]}, "sample_weight must hold numbers"),
    ],
)
def test_details_that_cannot_be_used_are_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        RowDetails.read(3, **given)


def test_one_group_or_one_time_cannot_be_split():
    with pytest.raises(InputError, match="all rows are of one group"):
        RowDetails.read(4, groups=[1, 1, 1, 1]).split(1, 0)
    with pytest.raises(InputError, match="all rows have the same time"):
        RowDetails.read(4, time=[1, 1, 1, 1]).split(1, 0)
