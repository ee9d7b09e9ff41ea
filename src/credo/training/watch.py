"""Watching for the first step whose numbers are not finite, without waiting for the GPU or for other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo.data import Batch
from credo.nests import tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NEVER = 2**62


class Watch:
    """The first steps of an epoch with a loss, or with data, that are not finite.

    Where looking would mean waiting, losses are only kept until :meth:`first_bad_steps` asks.

    Args:
        fabric: for the device, and to agree with other processes.
        watch_data: look at the data too; not needed where they were checked before training.
    """

    def __init__(self, fabric: Fabric, watch_data: bool) -> None:
        self._fabric, self._watch_data = fabric, watch_data
        self._steps: list[int] = []
        self._losses: list[Tensor] = []
        self._bad_data: list[Tensor] = []
        self._first = torch.full((2,), _NEVER, dtype=torch.int64, device=fabric.device)

    @property
    def is_free(self) -> bool:
        """Whether :meth:`first_bad_steps` waits for nothing."""
        return self._fabric.device.type == "cpu" and self._fabric.world_size == 1

    def see(self, step: int, loss: Tensor, batch: Batch) -> None:
        """Take note of step ``step``."""
        if self.is_free and bool(loss.isfinite()):
            return
        self._steps.append(step)
        self._losses.append(loss.detach())
        if self._watch_data:
            self._bad_data.append(_has_bad_numbers(batch, loss.device))

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        """The first step with bad data and the first with a bad loss, over all processes."""
        if self._steps:
            bad_loss = torch.stack([~loss.isfinite() for loss in self._losses])
            bad_data = torch.stack(self._bad_data) if self._watch_data else torch.zeros_like(bad_loss)
            steps = torch.tensor(self._steps, device=bad_loss.device)
            now = torch.where(torch.stack([bad_data, bad_loss]), steps, _NEVER).amin(1)
            self._first = torch.minimum(self._first, now)
            self._steps, self._losses, self._bad_data = [], [], []
        first = self._first
        if self._fabric.world_size > 1:
            first = self._fabric.all_reduce(first, reduce_op="min")  # type: ignore[assignment]
        data, loss = first.tolist()
        return (None if data == _NEVER else data), (None if loss == _NEVER else loss)


def _has_bad_numbers(batch: Batch, device: torch.device) -> Tensor:
    leaves = [t for t in tensors(tuple(batch)) if t.is_floating_point() and t.layout == torch.strided]
    if not leaves:
        return torch.zeros((), dtype=torch.bool, device=device)
    return torch.stack([~torch.isfinite(t).all() for t in leaves]).any()
