"""Columns that are associated with the uncertainty: where to look, not what causes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from credo.report.formatting import format_number, quote
from credo.tabular.columns import Columns
from credo.tabular.parsing import to_labels

SIGNIFICANCE = 0.05
"""The probability that any column is listed if none is associated with the uncertainty."""

_MIN_ROWS = 10  # with a known value
_MIN_ROWS_PER_CATEGORY = 3
_MIN_RELATIVE_RANGE = 0.01  # below it, the uncertainty counts as constant


@dataclass(frozen=True)
class Association:
    """A column that is associated with the uncertainty.

    Attributes:
        column: its name.
        strength: from 0 to 1: the absolute rank correlation, or for categories √(H/(n − 1)), where H is the
            Kruskal–Wallis statistic; for two categories both are the same.
        description: a sentence about the direction.
    """

    column: str
    strength: float
    description: str


def find_associations(columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64]) -> list[Association]:
    """Return the columns that are significantly associated with the uncertainty, the strongest first.

    Tests are corrected for the number of columns (Bonferroni).

    Args:
        columns: the columns as the model learned them.
        frame: N rows of them.
        uncertainty: one number per row, ``[N]``.
    """
    if np.ptp(uncertainty) <= _MIN_RELATIVE_RANGE * np.abs(uncertainty).mean():
        return []
    significance = SIGNIFICANCE / (len(columns.scaling.names) + len(columns.categories))
    numbers = _test_numbers(columns, frame, uncertainty, significance)
    categories = _test_categories(columns, frame, uncertainty, significance)
    return sorted([*numbers, *categories], key=lambda association: -association.strength)


def _test_numbers(
    columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64], significance: float
) -> Iterator[Association]:
    """Rank correlations of all columns at once, with the t approximation to their significance."""
    dates = columns.cycles.dates
    measured = columns.parse(frame)
    values = pd.DataFrame(np.where(np.isfinite(measured.values), measured.values, np.nan))
    known = values.count().to_numpy()
    rho = _correlation(values.rank().to_numpy(), pd.Series(uncertainty).rank().to_numpy())
    degrees_of_freedom = np.maximum(known - 2, 1)
    t = rho * np.sqrt(degrees_of_freedom / np.maximum(1.0 - rho**2, np.finfo(float).eps))
    significant = 2.0 * stats.t.sf(np.abs(t), degrees_of_freedom) < significance
    for j in np.flatnonzero(significant & (known >= _MIN_ROWS)):
        column = measured.names[j]
        high, low = ("late", "early") if column in dates else ("high", "low")
        text = f"More uncertain for {high if rho[j] > 0 else low} values (rank correlation {rho[j]:+.2f})"
        yield Association(column, abs(float(rho[j])), text.replace("-", "−"))


def _correlation(columns: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of each column ``[N, D]`` with ``y [N]`` over its known rows, ``[D]``.

    It is NaN if the column or ``y`` is constant.
    """
    known = ~np.isnan(columns)
    count = np.maximum(known.sum(axis=0), 1)
    x = np.where(known, columns, 0.0)
    x -= known * (x.sum(axis=0) / count)
    centered = known * (y[:, None] - known.T @ y / count)
    scale = np.sqrt(np.square(x).sum(axis=0) * np.square(centered).sum(axis=0))
    correlation = np.full(len(scale), np.nan)
    np.divide((x * centered).sum(axis=0), scale, out=correlation, where=scale > 0.0)
    return correlation


def _test_categories(
    columns: Columns, frame: pd.DataFrame, uncertainty: NDArray[np.float64], significance: float
) -> Iterator[Association]:
    """Kruskal–Wallis tests between the categories of each column."""
    for category in columns.categories:
        by_word = pd.Series(uncertainty).groupby(pd.Series(to_labels(frame[category.name]), dtype=object))
        groups = {word: group for word, group in by_word if len(group) >= _MIN_ROWS_PER_CATEGORY}
        count = sum(map(len, groups.values()))
        if len(groups) < 2 or count < _MIN_ROWS or np.ptp(np.concatenate([*groups.values()])) == 0.0:
            continue
        statistic, p_value = stats.kruskal(*groups.values())
        if p_value < significance:
            means = {word: float(group.mean()) for word, group in groups.items()}
            highest = max(means, key=means.__getitem__)
            mean, overall = format_number(means[highest]), format_number(float(uncertainty.mean()))
            text = f"Most uncertain for {quote(highest, 28)}: {mean} on average, {overall} over all rows"
            yield Association(category.name, float(np.sqrt(statistic / (count - 1))), text)
