"""A method and its training options, as the experiments compare them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    ) -> Method:
        """Build the method and train it on ``(x, y)``, without changing the global random state.

        Args:
            x: inputs, rows along dim 0; several as a tuple.
            y: targets.
            seed: seed of the initial weights and the training.
            epoch_fraction: multiplies the number of epochs.
            device: device to train and predict on; ``None`` is the CPU.

        Returns:
            The trained method.
        """
        with seeded(seed, torch.device("cpu")):
            method = self.build()
        epochs = max(1, round(epoch_fraction * self.epochs))
        return method.fit(
            (x, y), epochs=epochs, lr=self.lr, batch_size=self.batch_size, device=device, seed=seed, progress=False
        )
