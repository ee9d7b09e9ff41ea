"""The training task of variational posteriors: a KL that is brought in gradually, and enough steps."""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

from credo.training.optimizers import STEPS
from credo.training.supervised import SupervisedModel, SupervisedTask
from credo.training.warmup import Warmup


class VariationalModel(SupervisedModel, Protocol):
    """What the task uses of a method whose KL has a warm-up."""

    _warmup: Warmup
    _kl_warmup: int | None


V = TypeVar("V", bound=VariationalModel)


class FreeEnergyTask(SupervisedTask[V]):
    """Trains by −(1/T)·mean log p(y | x, w) + c·KL/n_data, with c rising from 0 to 1 in warm-up."""

    def __init__(self, model: V) -> None:
        super().__init__(model)
        self._steps: int | None = None
        self._warmup_before = int(model._warmup.length)

    def on_train_start(self, steps: int | None) -> None:
        """Bring the KL in over the first half of the first training run, unless ``kl_warmup`` was given."""
        self._steps = steps
        warmup = self.model._warmup
        if self.model._kl_warmup is None and not warmup.steps and steps is not None:
            warmup.length.fill_(steps // 2)

    def undo_setup(self) -> None:
        """Restore the length of the warm-up too."""
        super().undo_setup()
        self.model._warmup.length.fill_(self._warmup_before)

    def default_epochs(self, batches: int | None) -> int:
        """Enough for 2,000 steps, which a posterior needs for few data too."""
        minimum = super().default_epochs(batches)
        return minimum if not batches else max(minimum, math.ceil(STEPS / batches))
