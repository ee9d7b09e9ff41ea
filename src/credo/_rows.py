"""Rows of a table in blocks, as torch tensors on a device, read as often as a model needs and never all at once.

A table is an array or a data frame, in memory or memory-mapped, or it comes in chunks:

- a function without arguments that returns an iterable of chunks (read once for each pass over the data),
- a torch ``DataLoader``,
- an iterator, for models that need a single pass.

A chunk is an array ``[b, D]``, or a tuple of arrays with the same number of rows, such as (X, y).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor
from torch.utils.data import DataLoader

from credo._threads import one_thread
from credo.errors import InputError

Result = TypeVar("Result")
Addable = TypeVar("Addable")

CPU_BLOCK = 2**16
"""The size of a block on the CPU, in numbers: small enough to stay in the cache during several operations."""
DEVICE_BLOCK = 2**24
"""The size of a block on an accelerator, in numbers: large enough to use it fully."""
MAX_VALUE = 1e152
"""Smaller numbers can be squared and ten thousand squares summed without overflow."""
_MIN_ROWS = 256
_BLOCKS_PER_THREAD = 8
_SHARE_OF_DEVICE_MEMORY = 0.25


def is_chunked(X: object) -> bool:
    """Whether ``X`` is a source of chunks and not a table."""
    return isinstance(X, DataLoader) or hasattr(X, "__next__") or (callable(X) and not hasattr(X, "__array__"))


def rows_per_block(numbers_per_row: int, device: torch.device) -> int:
    """The number of rows of a block if the caller holds ``numbers_per_row`` numbers for each."""
    numbers = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    return max(numbers // max(numbers_per_row, 1), _MIN_ROWS)


class Rows:
    """The rows of a table, with further columns such as targets, in blocks.

    Args:
        source: a tuple of arrays with the same number of rows, or chunks of them.
        device: of the blocks.
        check: checks a chunk and returns its arrays; arrays of a table are already checked.
    """

    def __init__(
        self,
        source: tuple[NDArray[Any], ...] | Callable[[], Iterable[Any]] | Iterable[Any],
        device: torch.device,
        check: Callable[[Any], tuple[NDArray[Any], ...]],
    ) -> None:
        self._device = device
        self._check = check
        self._table: tuple[Any, ...] | None = None
        self._chunks: Callable[[], Iterable[Any]] | Iterable[Any] | None = None
        self._count: int | None = None
        self._spent = False
        if isinstance(source, tuple):
            self._table = tuple(_to_device_if_it_fits(part, device) for part in source)
            self._count = len(source[0])
        else:
            self._chunks = source

    @property
    def device(self) -> torch.device:
        """The device of the blocks."""
        return self._device

    @property
    def repeatable(self) -> bool:
        """Whether the rows can be read more than once."""
        return not hasattr(self._chunks, "__next__")

    @property
    def is_table(self) -> bool:
        """Whether every pass reads the same rows in the same order: true for tables; chunks may be shuffled."""
        return self._table is not None

    @property
    def count(self) -> int:
        """N; chunks are read once to count them, if they have not been read before."""
        if self._count is None:
            for _ in self.blocks():
                pass
        assert self._count is not None
        return self._count

    def blocks(self, numbers_per_row: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """One pass over the rows: tuples of float64 tensors on the device, X ``[b, D]`` first.

        Args:
            numbers_per_row: how many numbers the caller holds for each row, which determines the size of a block; by
                default those of X.
        """
        if self._table is not None:
            yield from self._split(self._table, numbers_per_row)
            return
        count = 0
        # chunks are copied, since the reader may reuse one buffer for all
        for chunk in self._iterate_chunks():
            parts = self._check(chunk)
            count += len(parts[0])
            yield from self._split(tuple(np.array(part, np.float64) for part in parts), numbers_per_row)
        self._check_count(count)
        self._count = count

    def _check_count(self, count: int) -> None:
        """Raise InputError if the chunks have no rows, or not the same number as in the first pass."""
        if not count and not self._count:
            raise InputError("the chunks contain no rows")
        if self._count is not None and count != self._count:
            raise InputError(
                f"the chunks contained {self._count} rows at first and {count} when read again: every call of the "
                "function must return a new iterator over the same rows"
            )

    def map(self, function: Callable[[Tensor], Tensor], numbers_per_row: int | None = None) -> NDArray[Any]:
        """``function`` of every block of X, concatenated into one array."""
        return torch.cat(list(self._map_blocks(lambda x, *_: function(x).cpu(), numbers_per_row))).numpy()

    def total(
        self, function: Callable[..., tuple[Tensor, ...]], numbers_per_row: int | None = None
    ) -> tuple[Tensor, ...]:
        """The sums over all blocks of the tensors that ``function`` returns for one: sufficient statistics."""
        blocks = self._map_blocks(function, numbers_per_row)
        sums = next(blocks)
        for parts in blocks:
            sums = tuple(a + b for a, b in zip(sums, parts, strict=True))
        return sums

    def reduce(self, function: Callable[[Rows], Addable]) -> Addable:
        """``function`` of these rows; of rows in several places, the sum of its results for each, by ``+``."""
        return function(self)

    def with_columns(self, *columns: Tensor) -> Rows:
        """The rows of a table with further ``columns [N, …]``, whose blocks are writable views."""
        assert self._table is not None
        rows = copy(self)
        rows._table = (*self._table, *columns)
        return rows

    def sample(self, n: int, seed: int) -> Tensor:
        """``n`` rows of X without replacement, or all rows if there are fewer, in order, ``[≤ n, D]``."""
        count, random = self.count, np.random.default_rng(seed)
        chosen = np.arange(count) if n >= count else np.sort(random.choice(count, n, replace=False))
        if self._table is not None:
            return self._tensor(self._table[0][chosen])
        picked, start = [], 0
        for block in self.blocks():
            low, high = np.searchsorted(chosen, (start, start + len(block[0])))
            picked.append(block[0][torch.from_numpy(chosen[low:high] - start).to(self._device)])
            start += len(block[0])
        return torch.cat(picked)

    def _map_blocks(self, function: Callable[..., Result], numbers_per_row: int | None) -> Iterator[Result]:
        """``function`` of the parts of every block, in the order of the blocks.

        On the CPU each thread processes its own block. Synchronizing torch's threads after every operation would take
        longer than the operation on a block of this size, and much longer if other programs use the cores. A single
        block uses all threads only if it is larger than usual.
        """
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        blocks = self.blocks(numbers_per_row)
        group = list(islice(blocks, threads * _BLOCKS_PER_THREAD))
        if threads == 1 or len(group) == 1:
            numbers = len(group[0][0]) * (numbers_per_row or _width(group[0][0]))
            with one_thread(threads > 1 and numbers <= CPU_BLOCK):
                yield from (function(*block) for block in chain(group, blocks))
            return
        with one_thread():
            while group:
                yield from _workers(threads).map(lambda block: function(*block), group)
                group = list(islice(blocks, threads * _BLOCKS_PER_THREAD))

    def _iterate_chunks(self) -> Iterable[Any]:
        assert self._chunks is not None
        if self._spent and not self.repeatable:
            raise InputError(
                "an iterator of chunks can be read only once, and this model reads its data several times: pass a "
                "function that returns a new iterator, such as lambda: read_chunks(path)"
            )
        self._spent = True
        return self._chunks() if callable(self._chunks) else self._chunks

    def _split(self, parts: tuple[Any, ...], numbers_per_row: int | None) -> Iterator[tuple[Tensor, ...]]:
        size = rows_per_block(numbers_per_row or _width(parts[0]), self._device)
        for start in range(0, len(parts[0]), size):
            yield tuple(self._tensor(part[start : start + size]) for part in parts)

    def _tensor(self, block: NDArray[Any] | Tensor) -> Tensor:
        """``block`` in float64 on the device; memory is shared if possible."""
        if isinstance(block, Tensor):
            return block
        shares = block.dtype == np.float64 and block.flags.writeable and min(block.strides, default=0) >= 0
        return torch.from_numpy(block if shares else np.array(block, np.float64)).to(self._device)


def rows_of(
    estimator: BaseEstimator,
    X: Any,
    y: Any = None,
    *,
    reset: bool,
    device: torch.device,
    allow_nan: bool = False,
    minimum: int = 1,
    targets: Callable[[Any], NDArray[Any]] | None = None,
) -> Rows:
    """``X`` (and ``y``) as the rows of a scikit-learn estimator, validated by scikit-learn.

    Args:
        estimator: gets ``n_features_in_`` and the names of the columns if ``reset``.
        X: an array, a data frame or chunks, see above.
        y: targets of an array; chunks contain their own.
        reset: whether the estimator is being fitted; otherwise the columns must match those of the fit.
        device: of the blocks.
        allow_nan: whether values may be missing.
        minimum: the minimum number of rows.
        targets: checks and encodes targets; ``None`` for a model without targets.
    """
    finite: bool | str = "allow-nan" if allow_nan else True

    def validate(X: Any, y: Any, reset: bool, minimum: int, learning: bool = False) -> tuple[NDArray[Any], ...]:
        options = {"dtype": "numeric", "ensure_all_finite": finite, "ensure_min_samples": minimum, "reset": reset}
        if targets is None:
            table = validate_data(estimator, X, **options)
            _check_sizes("X", table, learning)
            return (table,)
        # scikit-learn's own error for a missing y, which its estimator checks expect
        table, y = validate_data(estimator, X, y, y_numeric=False, multi_output=True, **options)
        encoded = targets(y)
        check_consistent_length(table, encoded)
        _check_sizes("X", table, learning)
        _check_sizes("y", encoded, learning)
        return table, encoded

    if not is_chunked(X):
        return Rows(validate(X, y, reset, minimum, learning=reset), device, lambda chunk: chunk)
    if y is not None:
        raise InputError("y must be None if X comes in chunks: each chunk must be a pair (X, y)")
    is_first = reset

    def check_chunk(chunk: Any) -> tuple[NDArray[Any], ...]:
        nonlocal is_first
        parts = tuple(_array(part) for part in chunk) if isinstance(chunk, tuple | list) else (_array(chunk),)
        if targets is not None and len(parts) != 2:
            raise InputError(f"a chunk must be a pair (X, y), got {len(parts)} part(s)")
        if not len(parts[0]):
            return (np.empty((0, 1)),)
        first, is_first = is_first, False
        return validate(parts[0], parts[1] if targets is not None else None, first, 1)

    return Rows(X, device, check_chunk)


def _check_sizes(name: str, values: NDArray[Any], learning: bool) -> None:
    """Raise InputError if squares overflow in float64, or, for training rows, if those of a whole column underflow.

    NaN and infinite values are ignored: they are checked elsewhere.
    """
    if values.dtype.kind != "f" or not values.size:
        return
    sizes = np.atleast_1d(np.fmax(np.fmax.reduce(values), -np.fmin.reduce(values))).astype(np.float64)
    large = sizes[(sizes >= MAX_VALUE) & np.isfinite(sizes)]
    if len(large):
        raise InputError(
            f"{name} contains values up to {large.max():.3g}, too large to be squared: rescale it, or check its values"
        )
    small = np.flatnonzero((sizes > 0.0) & (sizes <= 1.0 / MAX_VALUE))
    if learning and len(small):
        column = f"column {small[0]} of {name}" if values.ndim == 2 else name
        raise InputError(f"{column} contains no value above {sizes[small[0]]:.3g}, too small to be squared: rescale it")


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """A pool of threads that is kept, with the memory for their blocks."""
    return ThreadPoolExecutor(threads)


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _to_device_if_it_fits(table: NDArray[Any], device: torch.device) -> NDArray[Any] | Tensor:
    """``table`` on the accelerator if it easily fits there; otherwise unchanged, to be moved block by block."""
    if device.type != "cuda":
        return table
    free, _ = torch.cuda.mem_get_info(device)
    fits = table.size * np.dtype(np.float64).itemsize < _SHARE_OF_DEVICE_MEMORY * free
    return torch.from_numpy(np.array(table, np.float64)).to(device) if fits else table


def _width(table: NDArray[Any] | Tensor) -> int:
    return max(int(np.prod(table.shape[1:], dtype=int)), 1)


def _array(part: Any) -> Any:
    return part.detach().cpu().numpy() if isinstance(part, Tensor) else part
