"""Which columns the uncertainty goes with: not what causes it, but where to look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from credo.report.wording import name, number
from credo.tabular.columns import Columns
from credo.tabular.parsing import parse_columns, to_labels

SIGNIFICANCE = 0.05
"""How often any column at all may be named where none has to do with the uncertainty."""

_FEWEST_ROWS = 10  # with a known value
_FEWEST_OF_CATEGORY = 3
_NEGLIGIBLE = 0.01  # the range of an uncertainty, in parts of its mean, below which all rows are equally unsure


@dataclass(frozen=True)
class Association:
    """A column that the uncertainty goes with.

    Attributes:
        column: its name.
        strength: between 0 and 1: the size of the rank correlation, or for categories √(H/(n − 1)) with H the
            statistic of Kruskal and Wallis, which for two categories is the same.
        how: in words.
    """

    column: str
    strength: float
    how: str


def associations(columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64]) -> list[Association]:
    """The columns that go with ``uncertainty [N]`` beyond chance, the strongest first (Bonferroni over all columns)."""
    if np.ptp(uncertainty) <= _NEGLIGIBLE * np.abs(uncertainty).mean():
        return []
    significance = SIGNIFICANCE / (len(columns.scaling.names) + len(columns.categories))
    numbers = _of_numbers(columns, frame, uncertainty, significance)
    categories = _of_categories(columns, frame, uncertainty, significance)
    return sorted([*numbers, *categories], key=lambda association: -association.strength)


def _of_numbers(
    columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64], significance: float
) -> Iterator[Association]:
    """Rank correlations of all columns at once; the t approximation to their significance."""
    dates = columns.cycles.dates
    measured = parse_columns(frame, columns.scaling.names[: len(columns.scaling.names) - len(dates)], dates)
    values = pd.DataFrame(np.where(np.isfinite(measured.values), measured.values, np.nan))
    known = values.count().to_numpy()
    rho = _correlation(values.rank().to_numpy(), pd.Series(uncertainty).rank().to_numpy())
    freedom = np.maximum(known - 2, 1)
    t = rho * np.sqrt(freedom / np.maximum(1.0 - rho**2, np.finfo(float).eps))
    significant = 2.0 * stats.t.sf(np.abs(t), freedom) < significance
    for j in np.flatnonzero(significant & (known >= _FEWEST_ROWS)):
        column = measured.names[j]
        high, low = ("late", "early") if column in dates else ("high", "low")
        how = f"Less sure where it is {high if rho[j] > 0 else low} (rank correlation {rho[j]:+.2f})"
        yield Association(column, abs(float(rho[j])), how.replace("-", "−"))


def _correlation(columns: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each column ``[N, D]`` with ``y [N]`` over the rows that it knows, ``[D]``; NaN where either is constant."""
    known = ~np.isnan(columns)
    count = np.maximum(known.sum(axis=0), 1)
    x = np.where(known, columns, 0.0)
    x -= known * (x.sum(axis=0) / count)
    centered = known * (y[:, None] - known.T @ y / count)
    scale = np.sqrt(np.square(x).sum(axis=0) * np.square(centered).sum(axis=0))
    correlation = np.full(len(scale), np.nan)
    np.divide((x * centered).sum(axis=0), scale, out=correlation, where=scale > 0.0)
    return correlation


def _of_categories(
    columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64], significance: float
) -> Iterator[Association]:
    """The test of Kruskal and Wallis between the categories of each column."""
    for category in columns.categories:
        by_word = pd.Series(uncertainty).groupby(pd.Series(to_labels(frame[category.name]), dtype=object))
        groups = {word: group for word, group in by_word if len(group) >= _FEWEST_OF_CATEGORY}
        count = sum(map(len, groups.values()))
        if len(groups) < 2 or count < _FEWEST_ROWS or np.ptp(np.concatenate([*groups.values()])) == 0.0:
            continue
        statistic, p_value = stats.kruskal(*groups.values())
        if p_value < significance:
            means = {word: float(group.mean()) for word, group in groups.items()}
            least_sure = max(means, key=means.__getitem__)
            there, over_all = number(means[least_sure]), number(float(uncertainty.mean()))
            how = f"Least sure for {name(least_sure, 28)}: {there} on average, {over_all} over all"
            yield Association(category.name, float(np.sqrt(statistic / (count - 1))), how)
