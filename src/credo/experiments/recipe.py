"""A method and how it is trained: what experiments compare."""

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
class Recipe:
    """A method and how it is trained.

    Attributes:
        name: what it is called in tables and figures.
        build: makes the untrained method.
        epochs: passes over the data at full effort.
        lr: learning rate at the start.
        batch_size: rows a step.
    """

    name: str
    build: Callable[[], Method]
    epochs: int
    lr: float
    batch_size: int

    def train(self, x: Tensor, y: Tensor, *, seed: int, effort: float = 1.0, device: str | None = None) -> Method:
        """Build and train on ``(x, y)``; the caller's random state is left as it was.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            seed: fixes the initial weights and the training.
            effort: multiplies the number of epochs.
            device: where to train; the trained method predicts there too. The CPU where ``None``.
        """
        with seeded(seed, torch.device("cpu")):
            method = self.build()
        epochs = max(1, round(effort * self.epochs))
        return method.fit(
            (x, y), epochs=epochs, lr=self.lr, batch_size=self.batch_size, device=device, seed=seed, progress=False
        )
