"""Gradient accumulation: several minibatches make one step, whose gradient is the mean over all of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.data import Batch
from credo.errors import InputError
from credo.nests import have_equal_rows, plain


def gather(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Put ``count`` consecutive minibatches of a loader together; the last ones of an epoch may be fewer.

    Args:
        batches: minibatches of tensors with rows along dim 0.
        count: number of minibatches per step.

    Yields:
        The rows of ``count`` minibatches.

    Raises:
        InputError: the minibatches have no rows, or rows of different shapes.
    """
    iterator = iter(batches)
    while parts := list(itertools.islice(iterator, count)):
        yield parts[0] if len(parts) == 1 else _concatenate(parts)


def pieces(batch: Batch, size: int) -> list[Batch]:
    """``batch`` in pieces of at most ``size`` rows."""
    rows = len(batch.y)
    if rows <= size:
        return [batch]
    if not have_equal_rows((batch.y, batch.x)):
        raise InputError("accumulate needs minibatches that can be cut into rows, with all tensors of x as long as y")
    return [batch.map(lambda t, start=start: t[start : start + size]) for start in range(0, rows, size)]  # type: ignore[misc]


def _concatenate(parts: list[Batch]) -> Batch:
    flat, layouts = zip(*(pytree.tree_flatten(plain(tuple(part))) for part in parts), strict=True)
    try:
        if any(layout != layouts[0] for layout in layouts) or not all(have_equal_rows((p.y, p.x)) for p in parts):
            raise RuntimeError("their tensors differ in number or in length")
        columns = [
            torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*flat, strict=True)
        ]
    except RuntimeError as error:
        raise InputError(
            f"the minibatches of the loader cannot be put together by accumulate={len(parts)} ({error}); pad them to "
            "one shape, or pass the data set instead of a loader; the last of a TokenStream is as long as the others "
            "if its length divides the steps of a row"
        ) from error
    return Batch(*pytree.tree_unflatten(columns, layouts[0]))
