"""Values far from all others of their column, such as a number with a misplaced decimal mark.

One value that is a million times too large would determine the mean, the scale and the loss of a whole column. Long
tails are different: their largest value is not far from the second largest. So a value is outlying only if there is a
wide gap between it and the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NORMAL_IQR = 1.349
"""The interquartile range of a standard normal distribution."""

MIN_DISTANCE = 100.0
"""Minimum distance of an outlying value from the median, in robust standard deviations."""

MIN_GAP = 30.0
"""Minimum ratio of this distance to that of any value that is not outlying."""

MIN_GAP_OF_CONSTANTS = 1000.0
"""The same two limits for columns of which half is one value, which have no interquartile range."""

MAX_SHARE = 0.01
"""Maximum share of outlying values in a column, unless there is a single one."""

MIN_ROWS = 20
"""Columns with fewer values than this have no outlying ones."""

Floats = NDArray[np.float64]


class RobustScale(NamedTuple):
    """The medians and robust standard deviations of columns.

    Attributes:
        median: the medians ``[D]``.
        width: the interquartile ranges over 1.349 ``[D]``; if half of a column is one value, the median distance of
            the others from it, and 1 for a constant column.
        has_range: whether the interquartile ranges are positive ``[D]``.
    """

    median: Floats
    width: Floats
    has_range: NDArray[np.bool]


def robust_scale(ordered: Floats) -> RobustScale:
    """Compute medians and robust standard deviations of columns.

    Args:
        ordered: the columns ``[N, D]``, each in ascending order with NaN at the end, and at least one other value.

    Returns:
        The scale.
    """
    lower, median, upper = np.nanquantile(ordered, [0.25, 0.5, 0.75], axis=0).reshape(3, ordered.shape[1])
    width = (upper - lower) / NORMAL_IQR
    zero = width == 0.0
    distance = np.abs(ordered[:, zero] - median[zero])
    distance[distance == 0.0] = np.nan
    distance[0, np.isnan(distance).all(axis=0)] = 1.0
    width[zero] = np.nanmedian(distance, axis=0)
    return RobustScale(median, width, ~zero)


def regular_range(ordered: Floats, scale: RobustScale) -> tuple[Floats, Floats]:
    """The lowest and highest values of columns that are not outlying.

    The k values of a column with the largest distances d₁ ≥ … ≥ d_k from the median are outlying, where k is the
    largest number of at most 1 % of the rows, or 1, with d_k ≥ 100 w and d_k ≥ 30 max(d_{k+1}, w) for the robust
    standard deviation w; both factors are 1000 if half of the column is one value.

    Args:
        ordered: the columns ``[N, D]``, as in :func:`robust_scale`.
        scale: their scale.

    Returns:
        The lowest and the highest values ``[D]``.
    """
    median, width, has_range = scale
    min_distance, min_gap = (np.where(has_range, m, MIN_GAP_OF_CONSTANTS) for m in (MIN_DISTANCE, MIN_GAP))
    known = (~np.isnan(ordered)).sum(axis=0)
    distance = np.abs(ordered - median)
    limit = np.full(ordered.shape[1], np.inf)
    count = max(1, int(MAX_SHARE * len(ordered)))
    if len(ordered) >= MIN_ROWS:
        largest = -np.sort(-np.nan_to_num(distance, nan=-1.0), axis=0)[: count + 1]
        for k in range(1, count + 1):
            outlying = (largest[k - 1] >= min_distance * width) & (known >= MIN_ROWS)
            outlying &= largest[k - 1] >= min_gap * np.maximum(largest[k], width)
            outlying &= k <= np.maximum(1, MAX_SHARE * known)
            limit = np.where(outlying, largest[k], limit)
    regular = np.where(distance <= limit, ordered, np.nan)
    return np.nanmin(regular, axis=0), np.nanmax(regular, axis=0)
