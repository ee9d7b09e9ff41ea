"""Columns that are associated with the uncertainty."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from credo.report.associations import Association, find_associations
from credo.tabular.columns import Columns

RNG = np.random.default_rng(0)
X = RNG.normal(size=200)
NOISE = RNG.normal(size=200)


def found(frame: pd.DataFrame, uncertainty: NDArray[np.float64]) -> dict[str, Association]:
    return {a.column: a for a in find_associations(Columns.learn(frame), frame, uncertainty)}


def test_strength_of_numbers_is_the_rank_correlation() -> None:
    uncertainty = np.exp(X + NOISE)
    here = found(pd.DataFrame({"x": X, "minus": -X, "noise": RNG.normal(size=200)}), uncertainty)
    rho = stats.spearmanr(X, uncertainty).statistic
    assert here["x"].strength == pytest.approx(rho)
    assert here["minus"].strength == pytest.approx(rho)
    assert "high values (rank correlation +" in here["x"].description
    assert "low values (rank correlation −" in here["minus"].description
    assert "noise" not in here


def test_missing_values_are_left_out() -> None:
    x = np.where(np.arange(200) % 3 == 0, np.nan, X)
    known = ~np.isnan(x)
    uncertainty = np.exp(X + NOISE)
    # Ranks are over the rows that have a value; those of the uncertainty over all rows.
    expected = np.corrcoef(stats.rankdata(x[known]), stats.rankdata(uncertainty)[known])[0, 1]
    assert found(pd.DataFrame({"x": x}), uncertainty)["x"].strength == pytest.approx(expected)


def test_strength_of_two_categories_is_their_rank_correlation() -> None:
    category = np.where(X > 0, "up", "down")
    uncertainty = np.exp(X + NOISE)
    here = found(pd.DataFrame({"c": category}), uncertainty)["c"]
    assert here.strength == pytest.approx(stats.spearmanr(X > 0, uncertainty).statistic)
    assert here.description.startswith("Most uncertain for “up”")


def test_description_of_dates() -> None:
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=200)})
    assert "late" in found(frame, np.arange(1.0, 201.0))["day"].description


def test_associations_are_sorted_by_strength() -> None:
    frame = pd.DataFrame({"weak": X + NOISE, "strong": X})
    assert [a.column for a in find_associations(Columns.learn(frame), frame, np.exp(X))] == ["strong", "weak"]


def test_unrelated_columns_are_not_listed() -> None:
    """500 unrelated columns: one of them is listed with a probability of 5 %, two almost never."""
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 500))).add_prefix("c")
    assert len(found(frame, np.random.default_rng(2).random(60))) <= 1


def test_constant_uncertainty_has_no_associations() -> None:
    frame = pd.DataFrame({"x": X, "c": np.where(X > 0, "up", "down")})
    assert not found(frame, np.full(200, 2.0))
    assert not found(frame, 2.0 + 1e-4 * X)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_few_rows_have_no_associations(rows: int) -> None:
    frame = pd.DataFrame({"x": X, "c": np.where(X > 0, "up", "down")})
    assert find_associations(Columns.learn(frame), frame[:rows], np.exp(X[:rows])) == []
