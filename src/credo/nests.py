"""Batches as nested structures: a tensor, or a tuple, list or mapping of tensors, with rows along dim 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.errors import InputError

_ROW_BYTES = 16 * 2**20
_LARGEST_CHUNK_OF_ROWS = 4096


def plain(x: Any) -> Any:
    """``x`` with mappings of any kind, such as a tokenizer's output, as dictionaries, which torch's pytree supports."""
    if isinstance(x, Mapping):
        return {key: plain(value) for key, value in x.items()}
    return x


def leaves(x: Any) -> list[Any]:
    """The leaves of ``x``; ``x`` itself if it is not nested."""
    return pytree.tree_leaves(plain(x))


def tensors(x: Any) -> list[Tensor]:
    """The tensors inside ``x``."""
    return [leaf for leaf in leaves(x) if isinstance(leaf, Tensor)]


def describe_tensors(x: Any) -> str:
    """The dtypes and shapes of the tensors inside ``x``, for errors of a network that was called on it."""
    shown = ", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors(x))
    is_converted = all(t.is_floating_point() or t.is_complex() or t.dtype == torch.bool for t in tensors(x))
    return shown if is_converted else f"{shown} (integers are passed on as they are: call x.float() for quantities)"


def count_rows(x: Any) -> int:
    """The number of data in ``x``: dim 0 of its first tensor."""
    for leaf in tensors(x):
        if leaf.dim() == 0:
            raise InputError("x must have rows along dim 0, got a tensor without dimensions")
        return leaf.shape[0]
    raise InputError(
        f"x must be a tensor or array, or a tuple or mapping of tensors, got {type(x).__name__}; turn a list into "
        "numpy.asarray(x), a Dataset into a DataLoader, a sparse matrix into x.toarray(), and another object, such as "
        "a graph, into a mapping of its tensors, which the network gets as keyword arguments"
    )


def have_equal_rows(x: Any) -> bool:
    """Whether all tensors in ``x`` have the same number of rows and can be split by them."""
    rows = count_rows(x)
    return all(t.layout == torch.strided and t.dim() > 0 and t.shape[0] == rows for t in tensors(x))


def input_bytes(x: Any) -> int:
    """The size of all tensors in ``x``."""
    return sum(t.numel() * t.element_size() for t in tensors(x))


def default_batch_size(x: Any) -> int:
    """Rows per call of the network: up to 4096, fewer if rows are large."""
    rows = count_rows(x)
    per_row = input_bytes(x) / max(rows, 1)
    return int(min(_LARGEST_CHUNK_OF_ROWS, max(1, _ROW_BYTES // max(per_row, 1))))


def split_rows(x: Any, size: int) -> Iterator[Any]:
    """``x`` in pieces of at most ``size`` rows; in one piece if its tensors have different numbers of rows."""
    rows = count_rows(x)
    if rows <= size or not have_equal_rows(x):
        yield x
        return
    for start in range(0, rows, size):
        stop = start + size
        yield map_tensors(lambda t: t[start:stop], x)  # noqa: B023


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply ``function`` to every tensor inside ``x``."""
    return pytree.tree_map(lambda t: function(t) if isinstance(t, Tensor) else t, plain(x))


def first_rows(x: Any, count: int) -> Any:
    """The first ``count`` rows of ``x``."""
    return next(itertools.islice(split_rows(x, count), 1))


def flatten_rows(tensor: Tensor) -> Tensor:
    """All numbers of each row in one dimension, ``[B, C]``; of ``[B]`` too."""
    return tensor.unsqueeze(-1).flatten(1)
