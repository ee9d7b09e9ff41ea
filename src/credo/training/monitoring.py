"""What is observed while a model trains: means of the metrics, a progress bar, and losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from credo.data import Batch
from credo.nests import tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NEVER = 2**62


class Record(Protocol):
    """What is kept of the steps of an epoch: means of the metrics, and the first steps that are not finite."""

    is_immediate: bool
    """Whether :meth:`first_bad_steps` has nothing to wait for."""

    def reset(self) -> None:
        """Begin an epoch."""

    def begin(self, step: int) -> None:
        """Begin step ``step``."""

    def add_loss(self, step: int, loss: Tensor, batch: Batch) -> bool:
        """Record the loss of step ``step``; ``False`` if it is known not to be finite."""

    def add_metrics(self, terms: Mapping[str, Tensor], rows: float) -> None:
        """Add means over ``rows`` rows."""

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        """The first step with bad data and the first step with a bad loss, over all processes."""

    def means(self) -> dict[str, float]:
        """The mean of every metric over the rows of the epoch and all processes."""


def make_record(fabric: Fabric, check_data: bool, on_device: bool) -> Record:
    """The record for ``fabric``'s device and processes.

    Args:
        fabric: for the device and the other processes.
        check_data: whether to look at the data too; not needed if they were checked before training.
        on_device: keep everything in tensors, also where that is not needed.
    """
    if on_device or fabric.device.type != "cpu" or fabric.world_size > 1:
        return _DeviceRecord(fabric, check_data)
    return _HostRecord(check_data)


class _HostRecord:
    """A record in Python, for one process on a CPU, where looking at a number costs nothing."""

    is_immediate = True

    def __init__(self, check_data: bool) -> None:
        self._check_data = check_data
        self.reset()

    def reset(self) -> None:
        self._sums: dict[str, float] = {}
        self._rows: dict[str, float] = {}
        self._bad: tuple[int | None, int | None] = (None, None)

    def begin(self, step: int) -> None:
        pass

    def add_loss(self, step: int, loss: Tensor, batch: Batch) -> bool:
        if math.isfinite(loss.item()):
            return True
        bad_data = self._check_data and bool(_has_bad_numbers(batch, loss.device))
        self._bad = (step if bad_data else None, step)
        return False

    def add_metrics(self, terms: Mapping[str, Tensor], rows: float) -> None:
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + rows * value.item()
            self._rows[name] = self._rows.get(name, 0.0) + rows

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        return self._bad

    def means(self) -> dict[str, float]:
        return {name: total / self._rows[name] for name, total in self._sums.items()}


class _DeviceRecord:
    """A record in tensors, which no step waits for, and which a captured graph can update.

    Metrics that are added together, such as those of one optimizer's loss, are summed together.
    """

    is_immediate = False

    def __init__(self, fabric: Fabric, check_data: bool) -> None:
        self._fabric, self._check_data = fabric, check_data
        device = fabric.device
        self._totals: dict[tuple[str, ...], Tensor] = {}
        """The sums of metrics by their names; the last entry is the number of rows."""
        self._one = torch.ones((), device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._never = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self._first = torch.full((2,), _NEVER, dtype=torch.int64, device=device)

    def reset(self) -> None:
        self._first.fill_(_NEVER)
        for total in self._totals.values():
            total.zero_()

    def begin(self, step: int) -> None:
        self._step.fill_(step)

    def add_loss(self, step: int, loss: Tensor, batch: Batch) -> bool:
        loss = loss.detach()
        is_bad = loss - loss != 0  # also true of NaN
        bad_data = _has_bad_numbers(batch, loss.device) if self._check_data else torch.zeros_like(is_bad)
        now = torch.where(torch.stack([bad_data, is_bad]), self._step, self._never)
        torch.minimum(self._first, now, out=self._first)
        return True

    def add_metrics(self, terms: Mapping[str, Tensor], rows: float) -> None:
        names = tuple(terms)
        if names not in self._totals:
            self._totals[names] = torch.zeros(len(names) + 1, dtype=torch.float64, device=self._one.device)
        self._totals[names].add_(torch.stack([*terms.values(), self._one]), alpha=rows)

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        first = self._first
        if self._fabric.world_size > 1:
            first = self._fabric.all_reduce(first.clone(), reduce_op="min")  # type: ignore[assignment]
        data, loss = first.tolist()
        return (None if data == _NEVER else data), (None if loss == _NEVER else loss)

    def means(self) -> dict[str, float]:
        """The mean of every metric; the same metric may have been added in different company."""
        names = [name for together in self._totals for name in together]
        sums = torch.cat([total[:-1] for total in self._totals.values()])
        rows = torch.cat([total[-1:].expand(len(total) - 1) for total in self._totals.values()])
        reduced = self._fabric.all_reduce(torch.stack([sums, rows]), reduce_op="sum").T.tolist()  # type: ignore[union-attr]
        found: dict[str, tuple[float, float]] = {}
        for name, (total, count) in zip(names, reduced, strict=True):
            before = found.get(name, (0.0, 0.0))
            found[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in found.items() if count}


class ProgressBar:
    """A progress bar over epochs that is advanced by minibatches.

    Args:
        show: whether to show it; ``None``: only in a terminal or notebook.
        epochs: the number of epochs.
        start: the number of epochs already done.
        enabled: whether this process may show it.
        unit: what is counted.
    """

    def __init__(self, show: bool | None, epochs: int, start: int, enabled: bool, unit: str = "epoch") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        show = console.is_terminal or console.is_jupyter if show is None else show
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (enabled and show),
        )
        self._task = self._bar.add_task(unit, total=epochs, completed=start, metrics="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self, batches: int | None) -> None:
        """Advance by one of ``batches`` minibatches."""
        if batches and not self._bar.disable:
            self._bar.advance(self._task, 1.0 / batches)

    def epoch(self, done: int, text: str) -> None:
        """Show that ``done`` epochs are done, and the metrics of the last one as ``text``."""
        self._bar.update(self._task, completed=done, metrics=text)

    def update(self, done: int, text: str, unit: str) -> None:
        """:meth:`epoch`, with another unit from now on."""
        self._bar.update(self._task, completed=done, metrics=text, description=unit)


def _has_bad_numbers(batch: Batch, device: torch.device) -> Tensor:
    leaves = [t for t in tensors(tuple(batch)) if t.is_floating_point() and t.layout == torch.strided]
    if not leaves:
        return torch.zeros((), dtype=torch.bool, device=device)
    return torch.stack([~torch.isfinite(t).all() for t in leaves]).any()
