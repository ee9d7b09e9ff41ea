"""Sequences of different lengths side by side, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """The order in which the rows of S sequences are visited: all first rows, then all second rows, and so on.

    The longest sequence comes first, so that those still running at a step stand at the front. Sequences are walked
    from their beginning and from their end at the same time, and as many run at a step either way.

    Attributes:
        lengths: of the sequences, one behind the other in the table, 1 or more, ``[S]``.
        device: where the indices lie.
    """

    lengths: NDArray[np.int64]
    device: torch.device

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of every sequence, ``[S]``."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owner(self) -> Tensor:
        """The sequence that each row belongs to, ``[N]``."""
        return torch.from_numpy(self._owner).to(self.device)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """The place of every sequence among all, the longest first, ``[S]``."""
        return np.argsort(np.argsort(-self.lengths, kind="stable"))

    @cached_property
    def running(self) -> list[int]:
        """How many sequences have a row at step t, ``[T]``."""
        running: list[int] = np.bincount(self._step).tolist()
        return running

    @cached_property
    def visits(self) -> Tensor:
        """The rows in the order of their visits, ``[2, N]``: sequences from their beginning, and from their end."""
        order = np.lexsort((self.rank[self._owner], self._step))
        mirrored = (self.starts + self.lengths - 1)[self._owner] - self._step
        return torch.from_numpy(np.stack((order, mirrored[order]))).to(self.device)

    @cached_property
    def last(self) -> Tensor:
        """The last row of every sequence, ``[S]``."""
        return torch.from_numpy(self.starts + self.lengths - 1).to(self.device)

    @cached_property
    def inner(self) -> Tensor:
        """The rows that have one before them in their sequence, ``[N − S]``."""
        return torch.from_numpy(np.flatnonzero(self._step)).to(self.device)

    @cached_property
    def _owner(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def _step(self) -> NDArray[np.int64]:
        """How far each row is from the beginning of its sequence: for the mirrored walk, its ``mirrored`` row."""
        return np.arange(len(self._owner)) - self.starts[self._owner]


def cut(lengths: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences in pieces of at most ``size`` rows: the lengths of all pieces, and how many each sequence has."""
    counts = -(-lengths // size)
    pieces = np.full(counts.sum(), size)
    pieces[np.cumsum(counts) - 1] = lengths - (counts - 1) * size
    return pieces, counts
