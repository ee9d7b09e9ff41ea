"""The time of day, week and year, as points on a circle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Lengths in days."""


@dataclass(frozen=True)
class Cycles:
    """Features (sin 2πt/T, cos 2πt/T) of dates t, in days, for each period T that the training dates can tell of.

    A period is used if the training dates span it twice and differ in where they stand in it: dates without a time of
    day have no daily cycle, and one year of data cannot tell the season from the trend. A missing date stands in the
    middle of the circle.

    Attributes:
        dates: the columns of dates.
        columns: the column of each cycle; a column may have several, or none.
        periods: the name of each cycle's period, a key of :data:`PERIODS`.
    """

    dates: tuple[str, ...]
    columns: tuple[str, ...]
    periods: tuple[str, ...]

    @classmethod
    def learn(cls, dates: tuple[str, ...], days: NDArray[np.float64]) -> Cycles:
        """From ``days`` ``[N, D]``, one column for each of ``dates``."""
        found = [
            (name, period)
            for name, column in zip(dates, days.T, strict=True)
            for period, length in PERIODS.items()
            if _is_told(column[~np.isnan(column)], length)
        ]
        return cls(dates, tuple(name for name, _ in found), tuple(period for _, period in found))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Two a cycle."""
        pairs = zip(self.columns, self.periods, strict=True)
        return tuple(f"{name} ({wave} of {period})" for name, period in pairs for wave in ("sin", "cos"))

    def treatments(self) -> dict[str, str]:
        """By column of dates, what is done with it."""
        of_column = {
            name: [p for c, p in zip(self.columns, self.periods, strict=True) if c == name] for name in self.dates
        }
        return {name: f"time of {' and '.join(periods)}" if periods else "" for name, periods in of_column.items()}

    def encode(self, days: NDArray[np.float64]) -> NDArray[np.float32]:
        """Features of ``days`` ``[N, D]``, one column for each of ``dates``."""
        length = np.array([PERIODS[period] for period in self.periods])
        phase = days[:, [self.dates.index(name) for name in self.columns]] % length / length
        waves = np.stack([np.sin(2.0 * np.pi * phase), np.cos(2.0 * np.pi * phase)], axis=2)
        return np.asarray(np.nan_to_num(waves.reshape(len(days), 2 * len(self.periods))), dtype=np.float32)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return {"dates": list(self.dates), "columns": list(self.columns), "periods": list(self.periods)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Cycles:
        """The inverse of :meth:`get_config`."""
        return cls(*(tuple(config[key]) for key in ("dates", "columns", "periods")))


def _is_told(days: NDArray[np.float64], length: float) -> bool:
    return bool(len(days) and np.ptp(days) >= 2.0 * length and np.ptp(days % length) > 0.0)
