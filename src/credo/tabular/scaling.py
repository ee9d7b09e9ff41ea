"""Numbers as a network likes them: centered, of unit size, without gaps, and without values that overflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool]

NORMAL_IQR = 1.349
"""The interquartile range of a standard normal distribution."""

LONG_TAIL = 3.0
"""How many times larger than its bulk, and how many standard deviations out, a column is that counts as long-tailed."""

LARGEST = 1e6
"""Features end at this many standard deviations, so that no value makes a network overflow."""

_HUGE = 1e100  # squares and differences of such numbers are still finite


@dataclass(frozen=True, eq=False)
class Scaling:
    """Columns of numbers as features, all at once.

    A value v becomes u = (v − median) / width, where the width is the interquartile range over 1.349, the standard
    deviation of a normal distribution with these quartiles. The feature is z = (u − mean) / std, held between ±10⁶: a
    straight line stays one. Where the standard deviation of u exceeds 3 and some u is more than 3 of those from the
    mean, the column is long-tailed, and asinh(u), which is linear near 0 and logarithmic far out, standardized, is a
    second feature beside it. A missing value becomes the median, and in columns that had gaps in training a further
    feature, 0 or 1, says so.

    All of it is learned from sorted columns, so that the order of the rows does not matter, not even by rounding.

    Attributes:
        names: of the D columns.
        lowest: value in training, ``[D]``, as all that follow.
        highest: likewise.
        median: of the values.
        width: the robust scale; where half of the column is one value, the median distance of the others from it.
        mean: of u.
        std: of u.
        long_tailed: whether there is a feature for asinh(u).
        asinh_mean: of asinh(u).
        asinh_std: of asinh(u).
        varies: whether there is a feature for the value, not only for whether it is missing.
        has_gaps: whether there is a feature for whether the value is missing.
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
    has_gaps: Flags

    @classmethod
    def learn(cls, names: tuple[str, ...], values: Floats) -> Scaling:
        """From ``values`` ``[N, D]``, in which NaN and ±∞ are missing; every column has at least one number."""
        known = _known(values)
        ordered = np.sort(known, axis=0)  # NaN come last
        lower, median, upper = np.nanquantile(ordered, [0.25, 0.5, 0.75], axis=0).reshape(3, len(names))
        width = _positive_width(ordered, median, (upper - lower) / NORMAL_IQR)
        u = _relative(ordered, median, width)
        mean, std = np.nanmean(u, axis=0), np.nanstd(u, axis=0)
        farthest = np.fmax.reduce(np.abs(u - mean), axis=0)
        asinh = np.arcsinh(u)
        lowest, highest = np.nanmin(known, axis=0), np.nanmax(known, axis=0)
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
            has_gaps=np.asarray(np.isnan(known).any(axis=0)),
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """First the values, then asinh of those with long tails, then whether they are missing."""
        parts = {"": self.varies, " (asinh)": self.long_tailed, " (missing)": self.has_gaps}
        return tuple(f"{self.names[j]}{part}" for part, has in parts.items() for j in np.flatnonzero(has))

    def treatments(self) -> dict[str, str]:
        """By column, what is done with it."""
        return {
            name: ", ".join(
                [
                    "scaled" if self.varies[j] else "used for whether it is missing only",
                    *(["with asinh beside it"] if self.long_tailed[j] else []),
                    *(["median where missing, and flagged"] if self.has_gaps[j] and self.varies[j] else []),
                ]
            )
            for j, name in enumerate(self.names)
        }

    def encode(self, values: Floats) -> NDArray[np.float32]:
        """Features of ``values`` ``[N, D]``, finite whatever they hold."""
        known = _known(values)
        missing = np.isnan(known)
        u = np.where(missing, 0.0, _relative(known, self.median, self.width))
        z = np.clip(_relative(u, self.mean, self.std), -LARGEST, LARGEST)
        asinh = (np.arcsinh(u) - self.asinh_mean) / self.asinh_std
        features = [z[:, self.varies], asinh[:, self.long_tailed], missing[:, self.has_gaps]]
        return np.concatenate(features, axis=1, dtype=np.float32)

    def nearest(self, values: Floats) -> Floats:
        """``values`` ``[N, D]``, each moved to the nearest end of its column's training range where it lies outside."""
        return np.clip(_known(values), self.lowest, self.highest)

    def distance(self, values: Floats, others: Floats) -> Floats:
        """``values`` − ``others`` ``[N, D]`` in standard deviations of the training column; 0 where one is missing."""
        difference = _relative(_known(values), others, self.width) / self.std
        return np.where(self.varies, np.nan_to_num(np.clip(difference, -LARGEST, LARGEST)), 0.0)

    def outside(self, values: Floats) -> Flags:
        """Which of ``values`` ``[N, D]`` lie outside the training range of their column."""
        known = _known(values)
        return np.asarray((known < self.lowest) | (known > self.highest))

    def widened(self, values: Floats) -> Scaling:
        """The same features, with further training rows ``values`` ``[N, D]`` inside the range."""
        known = _known(values)
        lowest = np.fmin(self.lowest, np.fmin.reduce(known, axis=0))
        return replace(self, lowest=lowest, highest=np.fmax(self.highest, np.fmax.reduce(known, axis=0)))

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else list(value) for key, value in vars(self).items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Scaling:
        """The inverse of :meth:`get_config`."""
        flags = ("long_tailed", "varies", "has_gaps")
        arrays = {
            key: np.array(config[key], dtype=bool if key in flags else np.float64)
            for key in cls.__dataclass_fields__
            if key != "names"
        }
        return cls(names=tuple(config["names"]), **arrays)


def _known(values: Floats) -> Floats:
    """``values`` without infinities, and none so large that its square overflows."""
    return np.clip(np.where(np.isinf(values), np.nan, values), -_HUGE, _HUGE)


def _relative(values: Floats, center: Floats, width: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip((values - center) / width, -_HUGE, _HUGE)


def _or_one(std: Floats) -> Floats:
    return np.where(std > 0.0, std, 1.0)


def _positive_width(ordered: Floats, median: Floats, width: Floats) -> Floats:
    """``width`` where it is positive; else the median distance of values other than the median, or 1."""
    zero = width == 0.0
    distance = np.abs(ordered[:, zero] - median[zero])
    distance[distance == 0.0] = np.nan
    distance[0, np.isnan(distance).all(axis=0)] = 1.0
    positive = width.copy()
    positive[zero] = np.nanmedian(distance, axis=0)
    return positive
