"""The values of a column at which its effect is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo.errors import InputError
from credo.explain._rows import ModelRows

GRID_SIZE: Final = 20
"""Maximum number of grid points of a column of numbers or dates; of two columns, half as many each."""

_MAX_CATEGORIES = 30
_LOWEST, _HIGHEST = 0.05, 0.95  # quantiles between which a grid lies
_DTYPES: Final[dict[str, Any]] = {"number": np.float64, "date": "datetime64[ns]", "category": object}


def check_grids(rows: ModelRows, names: Sequence[str], grid: Any) -> list[NDArray[Any]]:
    """The grid of each column: the given one, or one from its values in the rows."""
    size = GRID_SIZE // len(names)
    given = [None] * len(names) if grid is None else [grid] if len(names) == 1 else list(grid)
    if len(given) != len(names):
        raise InputError(f"grid must hold the values of each of the two columns, got {len(given)} sequences")
    return [
        _default_grid(rows, name, size) if values is None else _check_grid(values, name, rows.kind(name))
        for name, values in zip(names, given, strict=True)
    ]


def observed_values(rows: ModelRows, name: str) -> NDArray[Any]:
    """The values of a column that are not missing, as cells of a grid."""
    if rows.kind(name) == "category":
        return np.array([label for label in rows.labels(name) if label is not None], dtype=object)
    values = rows.numbers([name])[:, 0]
    return to_cells(values[np.isfinite(values)], rows.kind(name))


def to_cells(values: NDArray[np.float64], kind: str) -> NDArray[Any]:
    """Numbers, or days since 1970 as dates, as cells of a table."""
    return np.asarray(pd.to_datetime(values, unit="D")) if kind == "date" else values


def outside_range(rows: ModelRows, names: Sequence[str], grids: Sequence[NDArray[Any]]) -> NDArray[np.bool]:
    """Whether each grid point is outside the training range in some column, ``[G]`` or ``[G, H]``."""
    flags = [
        rows.outside(rows.frame.iloc[np.zeros(len(cells), dtype=np.intp)].assign(**{name: cells}), name)
        for name, cells in zip(names, grids, strict=True)
    ]
    return flags[0] if len(flags) == 1 else flags[0][:, None] | flags[1]


def _default_grid(rows: ModelRows, name: str, size: int) -> NDArray[Any]:
    """All different values if there are few, otherwise some evenly spaced, or the most frequent categories."""
    if rows.kind(name) == "category":
        counts = pd.Series(observed_values(rows, name), dtype=object).value_counts()
        cells: NDArray[Any] = counts.index.to_numpy(object)[: _MAX_CATEGORIES * size // GRID_SIZE]
    else:
        values = rows.numbers([name])[:, 0]
        values = values[np.isfinite(values)]
        different = np.unique(values)
        if len(different) > size:
            lowest, highest = np.quantile(values, [_LOWEST, _HIGHEST])
            different = np.unique(np.linspace(lowest, highest, size))
        cells = to_cells(different, rows.kind(name))
    if not len(cells):
        raise InputError(f"column {name!r} is missing in all of these rows: choose another column, or pass grid")
    return cells


def _check_grid(values: Any, name: str, kind: str) -> NDArray[Any]:
    try:
        cells = np.asarray(values, dtype=_DTYPES[kind])
    except (TypeError, ValueError) as error:
        raise InputError(f"grid must hold values of column {name!r}, of the kind {kind!r}, got {values!r}") from error
    if cells.ndim != 1 or not len(cells) or pd.isna(cells).any():
        raise InputError(f"grid must be a sequence of values of column {name!r}, none of them missing, got {values!r}")
    return np.array([str(cell) for cell in cells], dtype=object) if kind == "category" else cells
