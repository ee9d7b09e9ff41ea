"""What is observed while a model trains: means of the metrics, a progress bar, and losses that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from credo.data import Batch
from credo.nests import tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NEVER = 2**62


class MetricMeans:
    """Weighted means by name over an epoch and all processes, summed on the device without synchronization.

    Metrics that are added together, such as those of one optimizer's loss, are summed together.

    Args:
        fabric: for the device and the other processes.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._totals: dict[tuple[str, ...], Tensor] = {}
        self._weights: dict[tuple[str, ...], float] = {}

    @property
    def rows(self) -> float:
        """The number of rows so far; the maximum over the names."""
        return max(self._weights.values(), default=0.0)

    def add(self, terms: Mapping[str, Tensor], rows: float) -> None:
        """Add means over ``rows`` rows."""
        names = tuple(terms)
        if names not in self._totals:
            self._totals[names] = torch.zeros(len(names), dtype=torch.float64, device=self._fabric.device)
        self._totals[names].add_(torch.stack(list(terms.values())), alpha=rows)
        self._weights[names] = self._weights.get(names, 0.0) + rows

    def over_processes(self) -> dict[str, float]:
        """The mean of every metric; the same metric may have been added in different company."""
        names = [name for together in self._totals for name in together]
        weights = [torch.full_like(total, self._weights[together]) for together, total in self._totals.items()]
        stacked = torch.stack([torch.cat(list(self._totals.values())), torch.cat(weights)])
        sums: dict[str, tuple[float, float]] = {}
        reduced = self._fabric.all_reduce(stacked, reduce_op="sum").T.tolist()  # type: ignore[union-attr]
        for name, (total, count) in zip(names, reduced, strict=True):
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in sums.items()}


class ProgressBar:
    """A progress bar over epochs that is advanced by minibatches.

    Args:
        show: whether to show it; ``None``: only in a terminal or notebook.
        epochs: the number of epochs.
        start: the number of epochs already done.
        enabled: whether this process may show it.
    """

    def __init__(self, show: bool | None, epochs: int, start: int, enabled: bool) -> None:
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
        self._task = self._bar.add_task("epoch", total=epochs, completed=start, metrics="")

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


class FiniteWatch:
    """Finds the first steps of an epoch whose loss, or whose data, are NaN or infinite.

    On a GPU or with several processes losses are kept and only looked at in :meth:`first_bad_steps`, so that training
    does not wait.

    Args:
        fabric: for the device and the other processes.
        check_data: whether to look at the data too; not needed if they were checked before training.
    """

    def __init__(self, fabric: Fabric, check_data: bool) -> None:
        self._fabric, self._check_data = fabric, check_data
        self._steps: list[int] = []
        self._losses: list[Tensor] = []
        self._bad_data: list[Tensor] = []
        self._first = torch.full((2,), _NEVER, dtype=torch.int64, device=fabric.device)

    @property
    def is_immediate(self) -> bool:
        """Whether :meth:`first_bad_steps` has nothing to wait for."""
        return self._fabric.device.type == "cpu" and self._fabric.world_size == 1

    def add(self, step: int, loss: Tensor, batch: Batch) -> None:
        """Record step ``step``."""
        if self.is_immediate and bool(loss.isfinite()):
            return
        self._steps.append(step)
        self._losses.append(loss.detach())
        if self._check_data:
            self._bad_data.append(_has_bad_numbers(batch, loss.device))

    def first_bad_steps(self) -> tuple[int | None, int | None]:
        """The first step with bad data and the first step with a bad loss, over all processes."""
        if self._steps:
            bad_loss = torch.stack([~loss.isfinite() for loss in self._losses])
            bad_data = torch.stack(self._bad_data) if self._check_data else torch.zeros_like(bad_loss)
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
