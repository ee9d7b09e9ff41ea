"""The task of models of data x without targets, such as auto-encoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.training.task import SINGLE, Task, TrainableModel

GRID_SIZE = 64
"""The number of images in a grid."""


class UnsupervisedModel(TrainableModel, Protocol):
    """What the task uses of a model of data without targets."""

    _last_terms: dict[str, Tensor]

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer."""

    def _make_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data as a data set or loader."""

    def _make_batch(self, raw: Any) -> data_.Batch:
        """What a loader yields as a minibatch, after :meth:`_check_values`."""

    def _check_values(self, x: Tensor) -> None:
        """Raise ``InputError`` for values, such as their range, that the model cannot learn from."""

    def _check_shapes(self, x: Tensor) -> None:
        """Call the networks on a batch and raise ``InputError`` if shapes do not match."""

    def _draw_grid(self, x: Tensor, path: Path | None) -> None:
        """Draw a grid of images, given the first rows of the data; ``None``: only check that rows are images."""


U = TypeVar("U", bound=UnsupervisedModel)


class GenerativeTask(Task[U]):
    """Trains a model by its loss on data x, and draws grids of images if asked to.

    Attributes:
        grids: a folder for grids of images, or ``None``.
        grid_every: epochs between two grids.
    """

    grids: Path | None = None
    grid_every: int = 1
    _first_rows: Tensor | None = None

    def make_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data without targets."""
        return self.model._make_dataset(data)

    def make_batch(self, raw: Any) -> data_.Batch:
        """A minibatch without targets."""
        return self.model._make_batch(raw)

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Check the values of all data held in memory, and call the networks once."""
        if isinstance(dataset, data_.TensorRows):
            self.model._check_values(dataset.x)
        if self.grids is not None and self._first_rows is None:  # training data are checked before held-out data
            self.model._draw_grid(batch.x[:1], None)
            self._first_rows = batch.x[:GRID_SIZE]
            self.grids.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), evaluation_mode(self.module):
            self.model._check_shapes(batch.x[:2])

    def check_batch(self, batch: data_.Batch) -> None:
        """Raise ``InputError`` if a minibatch does not match the networks."""
        with torch.no_grad(), evaluation_mode(self.module):
            self.model._check_shapes(batch.x)

    def parameter_groups(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """One optimizer for everything."""
        return {SINGLE: self.model.parameter_groups(weight_decay)}

    def step_metrics(self) -> Mapping[str, Tensor]:
        """The terms of the last loss."""
        return self.model._last_terms

    def on_epoch_end(self, metrics: Mapping[str, float]) -> None:
        """Draw a grid if one is due."""
        epoch = int(metrics["epoch"])
        if self.grids is None or self._first_rows is None or epoch % self.grid_every or _is_helper_process():
            return
        with evaluation_mode(self.module):
            self.model._draw_grid(self._first_rows, self.grids / f"epoch-{epoch:04d}.png")


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every part has its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _is_helper_process() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0
