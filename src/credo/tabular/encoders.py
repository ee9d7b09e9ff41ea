"""Columns as features: numbers scaled and imputed, dates as cycles, labels one-hot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credo._text import counted
from credo.tabular.level_effects import LevelEffects
from credo.tabular.outliers import regular_range, robust_scale

Floats = NDArray[np.float64]
Flags = NDArray[np.bool]

LONG_TAIL = 3.0
"""A column is long-tailed if its standard deviation exceeds this many widths, and a value this many deviations."""

MAX_FEATURE = 1e6
"""Features are clipped to this many standard deviations, so that the network cannot overflow."""

PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Lengths of the cycles of dates, in days."""

MAX_CATEGORIES = 30
"""Maximum number of categories of a column with a feature of their own."""

MIN_CATEGORY_ROWS = 2
"""Minimum number of rows of a category with a feature of its own."""

_MAX_RARE = 1000

Labels = Sequence[str | None]
"""The labels of a column, ``None`` where missing."""

_HUGE = 1e100  # squares and differences of such numbers are still finite


@dataclass(frozen=True, eq=False)
class NumericScaler:
    """Scales and imputes columns of numbers.

    A value v becomes u = (v − median) / width, where the width is the interquartile range over 1.349, the standard
    deviation of a normal distribution with these quartiles. The feature is z = (u − mean) / std, clipped to ±10⁶, a
    linear function of v. If the standard deviation of u exceeds 3 and some u is more than 3 of those from the mean,
    the column is long-tailed, and the standardized asinh(u), which is linear near 0 and logarithmic for large values,
    is a second feature. A missing value becomes the median; columns with missing values in training have a further
    0/1 feature that marks them. Outlying values (:mod:`credo.tabular.outliers`) do not enter the statistics; in a
    column with such values in training, values outside the range of the others are clipped to it.

    All statistics are computed from sorted columns, so that they do not depend on the order of the rows, not even by
    rounding errors.

    Attributes:
        names: the names of the D columns.
        lowest: the minimum in training ``[D]``, without outlying values. All that follow have this shape.
        highest: the maximum in training, without outlying values.
        median: the median of the values.
        width: the robust scale; if half of the column is one value, the median distance of the others from it.
        mean: the mean of u.
        std: the standard deviation of u.
        long_tailed: whether there is a feature for asinh(u).
        asinh_mean: the mean of asinh(u).
        asinh_std: the standard deviation of asinh(u).
        varies: whether there is a feature for the value, not only for whether it is missing.
        has_missing: whether there is a feature for whether the value is missing.
        clipped: whether values outside the range count as its nearest end.
    """

    names: tuple[str, ...]
    lowest: Floats
    highest: Floats
    median: Floats
    width: Floats
    mean: Floats
    std: Floats
    long_tailed: Flags
    asinh_mean: Floats
    asinh_std: Floats
    varies: Flags
    has_missing: Flags
    clipped: Flags

    @classmethod
    def learn(cls, names: tuple[str, ...], values: Floats) -> NumericScaler:
        """Fit to ``values`` ``[N, D]``, in which NaN and ±∞ are missing; every column has at least one finite value."""
        known = _known(values)
        ordered = np.sort(known, axis=0)  # NaN come last
        scale = robust_scale(ordered)
        median, width, _ = scale
        lowest, highest = regular_range(ordered, scale)
        clipped = np.asarray((ordered < lowest).any(axis=0) | (ordered > highest).any(axis=0))
        ordered = np.clip(ordered, lowest, highest)
        u = _relative(ordered, median, width)
        mean, std = np.nanmean(u, axis=0), np.nanstd(u, axis=0)
        farthest = np.fmax.reduce(np.abs(u - mean), axis=0)
        asinh = np.arcsinh(u)
        return cls(
            names=names,
            lowest=lowest,
            highest=highest,
            median=median,
            width=width,
            mean=mean,
            std=_or_one(std),
            long_tailed=(std > LONG_TAIL) & (farthest > LONG_TAIL * std),
            asinh_mean=np.nanmean(asinh, axis=0),
            asinh_std=_or_one(np.nanstd(asinh, axis=0)),
            varies=lowest < highest,
            has_missing=np.asarray(np.isnan(known).any(axis=0)),
            clipped=clipped,
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The values, then asinh of the long-tailed columns, then whether a value is missing."""
        parts = {"": self.varies, " (asinh)": self.long_tailed, " (missing)": self.has_missing}
        return tuple(f"{self.names[j]}{part}" for part, has in parts.items() for j in np.flatnonzero(has))

    @property
    def feature_columns(self) -> NDArray[np.intp]:
        """The position of the column of each feature."""
        return np.concatenate([np.flatnonzero(has) for has in (self.varies, self.long_tailed, self.has_missing)])

    def treatments(self) -> dict[str, str]:
        """How each column is used, by name."""
        return {
            name: ", ".join(
                [
                    "scaled" if self.varies[j] else "used for whether it is missing only",
                    *(["with asinh beside it"] if self.long_tailed[j] else []),
                    *(["clipped to this range"] if self.clipped[j] else []),
                    *(["median where missing, and flagged"] if self.has_missing[j] and self.varies[j] else []),
                ]
            )
            for j, name in enumerate(self.names)
        }

    def encode(self, values: Floats) -> NDArray[np.float32]:
        """The features of ``values`` ``[N, D]``, always finite."""
        known = np.where(self.clipped, self.clip(values), _known(values))
        missing = np.isnan(known)
        u = np.where(missing, 0.0, _relative(known, self.median, self.width))
        z = np.clip(_relative(u, self.mean, self.std), -MAX_FEATURE, MAX_FEATURE)
        asinh = (np.arcsinh(u) - self.asinh_mean) / self.asinh_std
        features = [z[:, self.varies], asinh[:, self.long_tailed], missing[:, self.has_missing]]
        return np.concatenate(features, axis=1, dtype=np.float32)

    def clip(self, values: Floats) -> Floats:
        """``values`` ``[N, D]`` clipped to the training range of their columns; NaN stay."""
        return np.clip(_known(values), self.lowest, self.highest)

    def distance(self, values: Floats, others: Floats) -> Floats:
        """``values`` − ``others`` ``[N, D]`` in standard deviations of the training column; 0 if one is missing."""
        difference = _relative(_known(values), others, self.width) / self.std
        return np.where(self.varies, np.nan_to_num(np.clip(difference, -MAX_FEATURE, MAX_FEATURE)), 0.0)

    def outside(self, values: Floats) -> Flags:
        """Whether each of ``values`` ``[N, D]`` is outside the training range of its column."""
        known = _known(values)
        return np.asarray((known < self.lowest) | (known > self.highest))

    def widened(self, values: Floats) -> NumericScaler:
        """A copy whose training range also includes ``values`` ``[N, D]``."""
        known = np.where(self.clipped, self.clip(values), _known(values))
        lowest = np.fmin(self.lowest, np.fmin.reduce(known, axis=0))
        return replace(self, lowest=lowest, highest=np.fmax(self.highest, np.fmax.reduce(known, axis=0)))

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else list(value) for key, value in vars(self).items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> NumericScaler:
        """The inverse of :meth:`get_config`."""
        flags = ("long_tailed", "varies", "has_missing", "clipped")
        arrays = {
            key: np.array(config[key], dtype=bool if key in flags else np.float64)
            for key in cls.__dataclass_fields__
            if key != "names"
        }
        return cls(names=tuple(config["names"]), **arrays)


@dataclass(frozen=True)
class CyclicEncoder:
    """Encodes dates t, in days, as (sin 2πt/T, cos 2πt/T) for the periods T of a day, a week and a year.

    A period is used if the training dates span it at least twice and differ in phase: dates without a time of day have
    no daily cycle, and one year of data cannot separate the season from the trend. A missing date is encoded as (0, 0).

    Attributes:
        dates: the names of the columns of dates.
        columns: the column of each cycle; a column may have several cycles, or none.
        periods: the name of each cycle's period, a key of :data:`PERIODS`.
    """

    dates: tuple[str, ...]
    columns: tuple[str, ...]
    periods: tuple[str, ...]

    @classmethod
    def learn(cls, dates: tuple[str, ...], days: NDArray[np.float64]) -> CyclicEncoder:
        """Fit to ``days`` ``[N, D]``, one column for each of ``dates``."""
        found = [
            (name, period)
            for name, column in zip(dates, days.T, strict=True)
            for period, length in PERIODS.items()
            if _has_cycle(column[~np.isnan(column)], length)
        ]
        return cls(dates, tuple(name for name, _ in found), tuple(period for _, period in found))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Two per cycle."""
        pairs = zip(self.columns, self.periods, strict=True)
        return tuple(f"{name} ({wave} of {period})" for name, period in pairs for wave in ("sin", "cos"))

    def treatments(self) -> dict[str, str]:
        """How each column of dates is used, by name."""
        of_column = {
            name: [p for c, p in zip(self.columns, self.periods, strict=True) if c == name] for name in self.dates
        }
        return {name: f"time of {' and '.join(periods)}" if periods else "" for name, periods in of_column.items()}

    def encode(self, days: NDArray[np.float64]) -> NDArray[np.float32]:
        """The features of ``days`` ``[N, D]``, one column for each of ``dates``."""
        if not self.columns:
            return np.empty((len(days), 0), dtype=np.float32)
        length = np.array([PERIODS[period] for period in self.periods])
        phase = days[:, [self.dates.index(name) for name in self.columns]] % length / length
        waves = np.stack([np.sin(2.0 * np.pi * phase), np.cos(2.0 * np.pi * phase)], axis=2)
        return np.asarray(np.nan_to_num(waves.reshape(len(days), 2 * len(self.periods))), dtype=np.float32)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return {"dates": list(self.dates), "columns": list(self.columns), "periods": list(self.periods)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CyclicEncoder:
        """The inverse of :meth:`get_config`."""
        return cls(*(tuple(config[key]) for key in ("dates", "columns", "periods")))


@dataclass(frozen=True)
class CategoryEncoder:
    """Encodes a column of labels one-hot, and by the effects of its levels on the target if there are many.

    The most frequent categories have a feature each. Rarer ones share the feature "other", and missing values have
    one; these two exist only if training had such rows. A label that was not in training counts as "other"; without
    "other", all of its features are 0, because a feature that was always 0 in training has untrained weights.

    scikit-learn's ``OneHotEncoder`` merges rare missing values into the infrequent category and cannot be rebuilt from
    JSON through its public interface.

    Attributes:
        name: the name of the column.
        kept: the categories with a feature of their own, most frequent first, ties in alphabetical order.
        rare: the labels of training that share "other"; the 1,000 most frequent of them.
        has_missing: whether training had missing values.
        effects: the effects of all levels, as further features; ``None``: none.
    """

    name: str
    kept: tuple[str, ...]
    rare: tuple[str, ...]
    has_missing: bool
    effects: LevelEffects | None = None

    @classmethod
    def learn(cls, name: str, labels: Labels) -> CategoryEncoder:
        """Fit to the labels of all rows."""
        ranked = count_labels(labels)
        kept = [label for label, rows in ranked[:MAX_CATEGORIES] if rows >= MIN_CATEGORY_ROWS]
        rare = [label for label, _ in ranked[len(kept) : len(kept) + _MAX_RARE]]
        return cls(name, tuple(kept), tuple(rare), None in labels)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One per category, then "other", then "missing", then those of the effects."""
        other = (f"{self.name} (other)",) if self.rare else ()
        missing = (f"{self.name} (missing)",) if self.has_missing else ()
        effects = () if self.effects is None else self.effects.feature_names(self.name)
        return (*(f"{self.name}={label}" for label in self.kept), *other, *missing, *effects)

    @property
    def has_many_levels(self) -> bool:
        """Whether training had more labels than categories can have features of their own."""
        return len(self.kept) + len(self.rare) > MAX_CATEGORIES

    @property
    def treatment(self) -> str:
        """How the column is used."""
        others = [*(["other"] if self.rare else []), *(["missing"] if self.has_missing else [])]
        one_hot = f"one-hot: {' and '.join([counted(len(self.kept), 'category'), *others])}"
        return (
            one_hot if self.effects is None else f"{one_hot}; effects of {counted(len(self.effects.labels), 'level')}"
        )

    def encode(self, labels: Labels) -> NDArray[np.float32]:
        """Zeros and ones ``[N, K]``, and the effects of levels."""
        other = len(self.kept) if self.rare else -1
        missing = len(self.kept) + bool(self.rare) if self.has_missing else other
        slots = np.array(
            [missing if label is None else self._slot.get(label, other) for label in labels], dtype=np.intp
        )
        width = len(self.kept) + bool(self.rare) + self.has_missing
        features = np.zeros((len(labels), width), dtype=np.float32)
        set_rows = np.flatnonzero(slots >= 0)
        features[set_rows, slots[set_rows]] = 1.0
        return features if self.effects is None else np.hstack([features, self.effects.encode(labels)])

    def unseen(self, labels: Labels) -> list[str]:
        """The ``labels`` that were not in training, with "missing" for a missing one.

        Empty if training had more labels than are stored, because new ones are then expected.
        """
        if self.effects is None and len(self.rare) == _MAX_RARE:
            return []
        rare = self.rare if self.effects is None else self.effects.labels
        known = {*self.kept, *rare, *([None] if self.has_missing else [])}
        return ["missing" if label is None else label for label in labels if label not in known]

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        effects = {} if self.effects is None else {"effects": self.effects.get_config()}
        kept, rare = list(self.kept), list(self.rare)
        return {"name": self.name, "kept": kept, "rare": rare, "has_missing": self.has_missing, **effects}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CategoryEncoder:
        """The inverse of :meth:`get_config`."""
        kept, rare, effects = tuple(config["kept"]), tuple(config["rare"]), config.get("effects")
        learned = None if effects is None else LevelEffects.from_config(effects)
        return cls(config["name"], kept, rare, bool(config["has_missing"]), learned)

    @cached_property
    def _slot(self) -> dict[str, int]:
        return {label: slot for slot, label in enumerate(self.kept)}


def count_labels(labels: Labels) -> list[tuple[str, int]]:
    """The labels and their numbers of rows, most frequent first, ties in alphabetical order; without missing ones."""
    counts = Counter(label for label in labels if label is not None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _known(values: Floats) -> Floats:
    """``values`` with NaN for infinities, clipped so that squares do not overflow."""
    return np.clip(np.where(np.isinf(values), np.nan, values), -_HUGE, _HUGE)


def _relative(values: Floats, center: Floats, width: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip((values - center) / width, -_HUGE, _HUGE)


def _or_one(std: Floats) -> Floats:
    return np.where(std > 0.0, std, 1.0)


def _has_cycle(days: NDArray[np.float64], length: float) -> bool:
    return bool(len(days) and np.ptp(days) >= 2.0 * length and np.ptp(days % length) > 0.0)
