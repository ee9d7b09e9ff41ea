"""Small tables and the models fitted to them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import credo


def make_table(rows: int = 120) -> pd.DataFrame:
    """A number, a label and a date, with gaps."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=rows)
    size[::17] = np.nan
    return pd.DataFrame(
        {
            "size": size,
            "color": np.where(rng.random(rows) < 0.5, "red", "blue"),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
        }
    )


def fit_quietly(kind, X: pd.DataFrame, y):
    """A short training, whose notes about the gaps are no concern of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind("bbb", epochs=5, samples=20, random_state=0, progress=False).fit(X, y)


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    return make_table()


@pytest.fixture(scope="session")
def regressor(table) -> credo.Regressor:
    y = table["size"].fillna(0.0) * 2.0 + (table["color"] == "red")
    return fit_quietly(credo.Regressor, table, y)


@pytest.fixture(scope="session")
def classifier(table) -> credo.Classifier:
    y = np.where(table["size"].fillna(0.0) > 0, "high", "low")
    return fit_quietly(credo.Classifier, table, y)
