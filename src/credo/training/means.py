"""Means of what a loss is made of, over an epoch and all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Names = tuple[str, ...]


class Means:
    """Weighted means by name, summed on the device so that nothing waits for it.

    Terms that come together, such as those of one player's loss, are summed together.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._totals: dict[Names, Tensor] = {}
        self._weights: dict[Names, float] = {}

    @property
    def rows(self) -> float:
        """The rows seen here so far, at most over the names."""
        return max(self._weights.values(), default=0.0)

    def add(self, terms: Mapping[str, Tensor], rows: float) -> None:
        """Take in the means over ``rows`` rows."""
        names = tuple(terms)
        if names not in self._totals:
            self._totals[names] = torch.zeros(len(names), dtype=torch.float64, device=self._fabric.device)
        self._totals[names].add_(torch.stack(list(terms.values())), alpha=rows)
        self._weights[names] = self._weights.get(names, 0.0) + rows

    def over_processes(self) -> dict[str, float]:
        """The mean of every name, also of one that comes together with others now and now."""
        names = [name for together in self._totals for name in together]
        weights = [torch.full_like(total, self._weights[together]) for together, total in self._totals.items()]
        stacked = torch.stack([torch.cat(list(self._totals.values())), torch.cat(weights)])
        sums: dict[str, tuple[float, float]] = {}
        reduced = self._fabric.all_reduce(stacked, reduce_op="sum").T.tolist()  # type: ignore[union-attr]
        for name, (total, count) in zip(names, reduced, strict=True):
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in sums.items()}
