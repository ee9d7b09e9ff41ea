"""Watching for the first step whose numbers are not finite, without waiting for the GPU or for other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.data import Batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NEVER = 2**62


class Watch:
    """The first steps of an epoch with a loss, or with data, that are not finite.

    Args:
        fabric: for the device, and to agree with other processes.
        watch_data: look at the data too; not needed where they were checked before training.
    """

    def __init__(self, fabric: Fabric, watch_data: bool) -> None:
        self._fabric, self._watch_data = fabric, watch_data
        self._first = torch.full((2,), _NEVER, dtype=torch.int64, device=fabric.device)

    @property
    def is_free(self) -> bool:
        """Whether :meth:`first_bad_steps` waits for nothing."""
        return self._fabric.device.type == "cpu" and self._fabric.world_size == 1

    def see(self, step: int, loss: Tensor, batch: Batch) -> None:
        """Take note of step ``step``."""
        bad_loss = ~torch.isfinite(loss.detach())
        if not self._watch_data or (self.is_free and not bad_loss):
            bad_data = torch.zeros_like(bad_loss)
        else:
            bad_data = _has_bad_numbers(batch, loss.device)
        now = torch.where(torch.stack([bad_data, bad_loss]), step, _NEVER)
        self._first = torch.minimum(self._first, now)

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        """The first step with bad data and the first with a bad loss, over all processes."""
        first = self._first
        if self._fabric.world_size > 1:
            first = self._fabric.all_reduce(first, reduce_op="min")  # type: ignore[assignment]
        data, loss = first.tolist()
        return (None if data == _NEVER else data), (None if loss == _NEVER else loss)


def _has_bad_numbers(batch: Batch, device: torch.device) -> Tensor:
    leaves = [t for t in pytree.tree_leaves(tuple(batch)) if isinstance(t, Tensor) and t.is_floating_point()]
    if not leaves:
        return torch.zeros((), dtype=torch.bool, device=device)
    return torch.stack([~torch.isfinite(t).all() for t in leaves]).any()
