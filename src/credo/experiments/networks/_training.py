"""A method and its training options, as the experiments compare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo.seeding import seeded

if TYPE_CHECKING:
    from credo.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A method and its training options.

    Attributes:
        name: name in tables and figures.
        build: makes the untrained method.
        epochs: passes over the data.
        lr: initial learning rate.
        batch_size: rows per step.
    """

    name: str
    build: Callable[[], Method]
    epochs: int
    lr: float
    batch_size: int

    def train(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        seed: int,
        epoch_fraction: float = 1.0,
        device: str | None = None,
        report: Callable[[str], None] | None = None,
    ) -> Method:
        """Build the method and train it on ``(x, y)``, without changing the global random state.

        Args:
            x: inputs, rows along dim 0; several as a tuple.
            y: targets.
            seed: seed of the initial weights and the training.
            epoch_fraction: multiplies the number of epochs.
            device: device to train and predict on; ``None`` is the CPU.
            report: called with a status message after every tenth of the epochs.

        Returns:
            The trained method.
        """
        with seeded(seed, torch.device("cpu")):
            method = self.build()
        epochs = max(1, round(epoch_fraction * self.epochs))
        return method.fit(
            (x, y),
            epochs=epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            device=device,
            seed=seed,
            progress=False,
            on_epoch_end=None if report is None else progress_reporter(report, self.name, epochs),
        )


def progress_reporter(
    report: Callable[[str], None], name: str, epochs: int
) -> Callable[[Method, Mapping[str, float]], None]:
    """A function for ``on_epoch_end`` that reports the training NLL and the time after every tenth of the epochs.

    Args:
        report: called with a status message.
        name: what is trained.
        epochs: passes over the data.

    Returns:
        ``callable(model, entry)``.
    """
    start, done = time.perf_counter(), count(1)

    def note(model: Method, entry: Mapping[str, float]) -> None:
        epoch = next(done)
        if epoch % max(1, epochs // 10) == 0:
            seconds = time.perf_counter() - start
            report(f"{name}: epoch {epoch} of {epochs}, NLL per row {entry['nll']:.4g}, {seconds:.0f} s")

    return note
