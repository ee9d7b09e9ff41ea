"""Means of what a loss is made of, over an epoch and all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Means:
    """Weighted means by name, summed on the device so that nothing waits for it."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._totals: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}

    @property
    def rows(self) -> float:
        """The rows seen here so far, at most over the names."""
        return max(self._weights.values(), default=0.0)

    def add(self, terms: Mapping[str, Tensor], rows: float) -> None:
        """Take in the means over ``rows`` rows."""
        for name, value in terms.items():
            total = self._totals.get(name)
            weighted = value.double() * rows
            self._totals[name] = weighted if total is None else total + weighted
            self._weights[name] = self._weights.get(name, 0.0) + rows

    def over_processes(self) -> dict[str, float]:
        """The mean of every name."""
        names = list(self._totals)
        weights = [torch.full_like(self._totals[name], self._weights[name]) for name in names]
        stacked = torch.stack([torch.stack([self._totals[name] for name in names]), torch.stack(weights)])
        totals, counts = self._fabric.all_reduce(stacked, reduce_op="sum").tolist()  # type: ignore[union-attr]
        return {name: total / count for name, total, count in zip(names, totals, counts, strict=True)}
