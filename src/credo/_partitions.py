"""Rows in the partitions of a Dask array or data frame: functions go to the data, and only their sums come back.

Sufficient statistics are computed where a partition is, and added up by a tree of tasks of fixed shape. A task that is
lost with its worker is computed again by Dask, from the same rows and in the same order: the result is the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from credo._rows import Addable, Rows, rows_of
from credo.errors import InputError, missing_extra

FAN_IN = 8
"""The number of results that one task of a tree adds up."""

Check = Callable[[Any], tuple[NDArray[Any], ...]]


def is_partitioned(X: object) -> bool:
    """Whether ``X`` is an array, data frame or series of Dask; Dask is not imported."""
    return hasattr(X, "__dask_graph__") and hasattr(X, "to_delayed")


def partitions(*tables: Any) -> list[Any]:
    """The partitions of one or several tables with the same rows, as delayed chunks of :mod:`credo._rows`.

    Args:
        *tables: arrays ``[N, D]`` or ``[N]``, data frames or series of Dask; ``None`` is left out.

    Raises:
        InputError: if they are not split at the same rows.
    """
    try:
        import dask
    except ImportError as error:
        raise missing_extra("a Dask array or frame", "dask", error) from error
    given = [table for table in tables if table is not None]
    for table in given:
        if not is_partitioned(table):
            raise InputError(f"X and y must both be Dask arrays or frames, got {type(table).__name__} for one of them")
    if all(hasattr(table, "rechunk") for table in given) and len({table.chunks[0] for table in given}) > 1:
        given = [given[0], *(table.rechunk({0: given[0].chunks[0]}) for table in given[1:])]
    columns = [_delayed(table) for table in given]
    counts = [len(column) for column in columns]
    if len(set(counts)) > 1:
        raise InputError(
            f"X and y have {' and '.join(map(str, counts))} partitions: split both at the same rows, by repartition or "
            "rechunk"
        )
    if len(columns) == 1:
        return columns[0]
    return [dask.delayed(tuple)(list(parts)) for parts in zip(*columns, strict=True)]


def unique_values(y: Any) -> NDArray[Any]:
    """The different values of a Dask array or series, in ascending order."""
    values: NDArray[Any] = np.unique(np.concatenate(_compute([_task(np.unique)(part) for part in partitions(y)])))
    return values


class PartitionedRows(Rows):
    """Rows in the partitions of a Dask collection.

    Args:
        parts: delayed chunks, see :mod:`credo._rows`.
        device: of the blocks, where the partitions are.
        check: checks a chunk and returns its arrays.
        lengths: the number of rows of each partition; ``None``: they are counted.
    """

    def __init__(
        self, parts: Sequence[Any], device: torch.device, check: Check, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(self._fetch, device, check)
        lengths = _compute([_task(_length)(part) for part in parts]) if lengths is None else lengths
        self._parts = [part for part, length in zip(parts, lengths, strict=True) if length]
        self._ends = np.cumsum([length for length in lengths if length])
        if not self._parts:
            raise InputError("the partitions contain no rows")
        self._count = int(self._ends[-1])

    def total(
        self, function: Callable[..., tuple[Tensor, ...]], numbers_per_row: int | None = None
    ) -> tuple[Tensor, ...]:
        """The sums over all partitions of the tensors that ``function`` returns for one block."""
        sums: tuple[Tensor, ...] = self._tree(lambda rows: rows.total(function, numbers_per_row), _add_tuples)
        return sums

    def reduce(self, function: Callable[[Rows], Addable]) -> Addable:
        """The sum of what ``function`` returns for the rows of each partition."""
        return self._tree(function, operator.add)  # type: ignore[no-any-return]

    def map(self, function: Callable[[Tensor], Tensor], numbers_per_row: int | None = None) -> NDArray[Any]:
        """``function`` of every block of X, concatenated into one array in this process."""
        return np.concatenate(self._on_parts(lambda rows: rows.map(function, numbers_per_row)))

    def sample(self, n: int, seed: int) -> Tensor:
        """The rows that :meth:`Rows.sample` chooses of the same table in one piece."""
        chosen = np.sort(np.random.default_rng(seed).choice(self.count, n, replace=False)) if n < self.count else None
        picked, start = [], 0
        for part, end in zip(self._parts, self._ends, strict=True):
            own = None if chosen is None else chosen[(chosen >= start) & (chosen < end)] - start
            if own is None or len(own):
                picked.append(_task(_pick)(part, self._check, own))
            start = end
        return torch.cat([self._tensor(rows) for rows in _compute(picked)])

    def _fetch(self) -> Iterator[Any]:
        """The partitions one after the other, in this process, for models that need the rows in order."""
        for part in self._parts:
            yield _compute([part])[0]

    def _on_parts(self, function: Callable[[Rows], Any]) -> list[Any]:
        return _compute([_task(_apply)(part, self._device, self._check, function) for part in self._parts])

    def _tree(self, function: Callable[[Rows], Any], add: Callable[[Any, Any], Any]) -> Any:
        """The sum over the partitions, by a tree in the order of the rows."""
        level = [_task(_apply)(part, self._device, self._check, function) for part in self._parts]
        while len(level) > 1:
            level = [_task(_sum)(level[i : i + FAN_IN], add) for i in range(0, len(level), FAN_IN)]
        return _compute(level)[0]


def partitioned_rows(
    estimator: BaseEstimator,
    X: Any,
    y: Any = None,
    *,
    reset: bool,
    device: torch.device,
    allow_nan: bool = False,
    minimum: int = 1,
    targets: Callable[[Any], NDArray[Any]] | None = None,
) -> PartitionedRows:
    """:func:`credo._rows.rows_of` for Dask: a first row tells the estimator the columns, the workers check the rest."""
    parts = partitions(X, y)
    template = rows_of(
        estimator, iter(()), reset=reset, device=device, allow_nan=allow_nan, minimum=minimum, targets=targets
    )
    for part in parts:
        (head,) = _compute([_task(_head)(part)])
        if _length(head):
            template._check(head)
            break
    known = X.chunks[0] if hasattr(X, "rechunk") and not np.isnan(X.chunks[0]).any() else None
    return PartitionedRows(parts, device, template._check, known)


def _delayed(table: Any) -> list[Any]:
    if not hasattr(table, "rechunk"):
        return list(table.to_delayed())
    if table.ndim > 1:
        table = table.rechunk(dict.fromkeys(range(1, table.ndim), -1))
    return list(table.to_delayed().ravel())


def _task(function: Callable[..., Any]) -> Callable[..., Any]:
    import dask

    return dask.delayed(function, pure=False)  # type: ignore[no-any-return]


def _compute(tasks: Sequence[Any]) -> list[Any]:
    """The results of all tasks, by the client or scheduler that is set."""
    import dask

    return list(dask.compute(*tasks))


def _apply(part: Any, device: torch.device, check: Check, function: Callable[[Rows], Any]) -> Any:
    return function(Rows(lambda: iter([part]), device, check))


def _sum(parts: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    return reduce(add, parts)


def _add_tuples(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _length(part: Any) -> int:
    return len(part[0] if isinstance(part, tuple) else part)


def _head(part: Any) -> Any:
    return tuple(own[:1] for own in part) if isinstance(part, tuple) else part[:1]


def _pick(part: Any, check: Check, rows: NDArray[np.int64] | None) -> NDArray[np.float64]:
    table = np.asarray(check(part)[0], np.float64)
    return table if rows is None else table[rows]
