"""Columns that leak the target, and copies of rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from credo.tabular.columns import Columns
from credo.tabular.leakage import count_copies, find_leaks

N = 200
RNG = np.random.default_rng(0)
Y = RNG.normal(size=N)
CLASSES = (Y > 0.0).astype(float)

LEAKS = {
    "equal": (Y, "equal to the target"),
    "linear": (3.0 - 2.0 * Y, "a linear function"),
    "monotone": (np.exp(Y), "order in every row"),
    "square": (np.sign(Y) * Y**2 + 1e-4 * RNG.normal(size=N), "R² = "),
}


@pytest.mark.parametrize("name", LEAKS)
def test_leaking_numbers_are_named(name):
    leak, evidence = LEAKS[name]
    frame = pd.DataFrame({"a": RNG.normal(size=N), "leak": leak, "b": Y + 0.3 * RNG.normal(size=N)})
    (note,) = find_leaks(Columns.learn(frame), frame, Y, is_class=False)
    assert "'leak' (" in note
    assert evidence in note
    assert "'a'" not in note
    assert "'b'" not in note


def test_leaks_of_classes():
    frame = pd.DataFrame({"a": Y + RNG.normal(size=N), "score": Y, "word": np.where(CLASSES, "won", "lost")})
    (note,) = find_leaks(Columns.learn(frame), frame, CLASSES, is_class=True)
    assert "'score' (in its order the classes follow one another)" in note
    assert f"'word' ({N} of {N} rows right)" in note
    assert "'a'" not in note


def test_leaks_of_quantities_in_labels():
    groups = RNG.integers(0, 5, N)
    frame = pd.DataFrame({"g": [f"group {g}" for g in groups], "h": [f"other {g}" for g in RNG.integers(0, 5, N)]})
    (note,) = find_leaks(Columns.learn(frame), frame, groups * 10.0, is_class=False)
    assert "'g' (R² = 1.0000 in rows that are left out)" in note
    assert "'h'" not in note


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_leak(seed):
    """In 20 columns that are independent of the target, also if one class has five rows only."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(60, 20)))
    columns = Columns.learn(frame)
    assert find_leaks(columns, frame.set_axis(columns.names, axis=1), rng.normal(size=60), is_class=False) == []
    rare = (np.arange(60) < 5).astype(float)
    assert find_leaks(columns, frame.set_axis(columns.names, axis=1), rare, is_class=True) == []


def test_copies_are_counted():
    frame = pd.DataFrame({"a": [1.0, 2.0, 1.0, np.nan, np.nan], "b": ["x", "y", "x", None, None]})
    assert count_copies(frame, np.array([0, 1])) == 1
    assert count_copies(frame, np.array([3])) == 1
    assert count_copies(frame, np.array([1])) == 0
