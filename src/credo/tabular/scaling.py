"""Numbers as a network likes them: centered, of unit size, without gaps, and without values that blow it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool]

NORMAL_IQR = 1.349
"""The interquartile range of a standard normal distribution."""

LONG_TAIL = 3.0
"""How many times larger than its bulk, and how many standard deviations out, a column is that counts as long-tailed."""

FAR = 3.0
"""Beyond this many standard deviations, features grow with the logarithm only."""

_HUGE = 1e100  # squares and differences of such numbers are still finite


@dataclass(frozen=True, eq=False)
class Scaling:
    """Columns of numbers as features, all at once.

    A value v becomes u = (v − median) / width, where the width is the interquartile range over 1.349, the standard
    deviation of a normal distribution with these quartiles. Where the standard deviation of u exceeds 3 and some u is
    more than 3 of those from the mean, the column is long-tailed, and asinh(u), which is linear near 0 and logarithmic
    far out, takes the place of u. The feature is z = (u − mean) / std, and sign(z)·(3 + log(1 + |z| − 3)) beyond
    |z| = 3: no value can blow up a network, yet a larger value is a larger feature. A missing value becomes the
    median, and in columns that had gaps in training a second feature, 0 or 1, says so.

    All of it is learned from sorted columns, so that the order of the rows does not matter, not even by rounding.

    Attributes:
        names: of the D columns.
        median: ``[D]``, as all that follow.
        width: the robust scale; where half of the column is one value, the median distance of the others from it.
        long_tailed: whether asinh is taken.
        mean: of u, or asinh(u).
        std: likewise.
        varies: whether there is a feature for the value, not only for whether it is missing.
        has_gaps: whether there is a feature for whether the value is missing.
    """

    names: tuple[str, ...]
    median: Floats
    width: Floats
    long_tailed: Flags
    mean: Floats
    std: Floats
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
        spread = np.nanstd(u, axis=0)
        farthest = np.fmax.reduce(np.abs(u - np.nanmean(u, axis=0)), axis=0)
        long_tailed = (spread > LONG_TAIL) & (farthest > LONG_TAIL * spread)
        u[:, long_tailed] = np.arcsinh(u[:, long_tailed])
        std = np.nanstd(u, axis=0)
        return cls(
            names=names,
            median=median,
            width=width,
            long_tailed=long_tailed,
            mean=np.nanmean(u, axis=0),
            std=np.where(std > 0.0, std, 1.0),
            varies=np.nanmin(known, axis=0) < np.nanmax(known, axis=0),
            has_gaps=np.asarray(np.isnan(known).any(axis=0)),
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """First the values, then whether they are missing."""
        values = [name for name, varies in zip(self.names, self.varies, strict=True) if varies]
        return (*values, *(f"{name} (missing)" for name, gaps in zip(self.names, self.has_gaps, strict=True) if gaps))

    def treatments(self) -> dict[str, str]:
        """By column, what is done with it."""
        return {
            name: ", ".join(
                [
                    *(["asinh"] if self.long_tailed[j] else []),
                    "scaled" if self.varies[j] else "used for whether it is missing only",
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
        u[:, self.long_tailed] = np.arcsinh(u[:, self.long_tailed])
        z = _relative(u, self.mean, self.std)
        far = np.abs(z) > FAR
        z[far] = np.sign(z[far]) * (FAR + np.log1p(np.abs(z[far]) - FAR))
        return np.concatenate([z[:, self.varies], missing[:, self.has_gaps]], axis=1, dtype=np.float32)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else list(value) for key, value in vars(self).items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Scaling:
        """The inverse of :meth:`get_config`."""
        return cls(
            names=tuple(config["names"]),
            median=np.array(config["median"], dtype=np.float64),
            width=np.array(config["width"], dtype=np.float64),
            long_tailed=np.array(config["long_tailed"], dtype=bool),
            mean=np.array(config["mean"], dtype=np.float64),
            std=np.array(config["std"], dtype=np.float64),
            varies=np.array(config["varies"], dtype=bool),
            has_gaps=np.array(config["has_gaps"], dtype=bool),
        )


def _known(values: Floats) -> Floats:
    """``values`` without infinities, and none so large that its square overflows."""
    return np.clip(np.where(np.isinf(values), np.nan, values), -_HUGE, _HUGE)


def _relative(values: Floats, center: Floats, width: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip((values - center) / width, -_HUGE, _HUGE)


def _positive_width(ordered: Floats, median: Floats, width: Floats) -> Floats:
    """``width`` where it is positive; else the median distance of values other than the median, or 1."""
    zero = width == 0.0
    distance = np.abs(ordered[:, zero] - median[zero])
    distance[distance == 0.0] = np.nan
    distance[0, np.isnan(distance).all(axis=0)] = 1.0
    positive = width.copy()
    positive[zero] = np.nanmedian(distance, axis=0)
    return positive
