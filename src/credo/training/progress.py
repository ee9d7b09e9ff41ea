"""A progress bar for training: epoch, what it came to, time left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

if TYPE_CHECKING:
    pass


class Progress:
    """A bar over epochs, fed batch by batch.

    Args:
        wanted: whether to show it; ``None``: where there is a terminal.
        epochs: in all.
        start: the epochs that are done.
        enabled: whether this process is the one to show it.
    """

    def __init__(self, wanted: bool | None, epochs: int, start: int, enabled: bool) -> None:
        console = Console(stderr=True)
        wanted = console.is_terminal or console.is_jupyter if wanted is None else wanted
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[terms]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (enabled and wanted),
        )
        self._task = self._bar.add_task("epoch", total=epochs, completed=start, terms="")
        self._start = start

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self, batches: int | None) -> None:
        """One minibatch of ``batches`` is done."""
        if batches and not self._bar.disable:
            self._bar.advance(self._task, 1.0 / batches)

    def epoch(self, done: int, headline: str) -> None:
        """``done`` epochs are; show what the last one came to."""
        self._bar.update(self._task, completed=done, terms=headline)
