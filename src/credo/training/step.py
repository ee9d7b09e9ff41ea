"""One training step: the loss of a minibatch, its gradient, and the step of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from credo.data import Batch
from credo.errors import InputError
from credo.training.accumulation import pieces
from credo.training.monitoring import Record
from credo.training.optimizers import OptimizerSet
from credo.training.options import FitOptions
from credo.training.task import Task
from credo.training.warmup import Warmup

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class StepInput(NamedTuple):
    """What a step depends on, apart from the parameters and the state of the optimizers."""

    batch: Batch
    arguments: dict[str, Any]
    """Further arguments of the loss."""
    rows: float
    """The number of rows that the minibatch stands for in the means of an epoch."""


class TrainingStep:
    """Loss, backward pass, clipping and optimizer step, without waiting for the device.

    On one device and in full precision, where Fabric has nothing to do, module and optimizers are called directly.

    Args:
        fabric: for precision and processes.
        task: the model and its loss.
        optimizers: by name.
        options: ``accumulate``, ``compile``, ``gradient_clip`` and ``precision``.
        n_data: the number of training data.
        record: where losses and metrics go.
    """

    path = "eager steps"
    """How the steps ran, in words."""
    is_mixed: bool
    """Whether to compute in the mixed precision that was asked for."""

    def __init__(
        self,
        fabric: Fabric,
        task: Task[Any],
        optimizers: OptimizerSet,
        options: FitOptions,
        n_data: int,
        record: Record,
    ) -> None:
        self.task, self.record = task, record
        self._fabric, self._options, self._n_data = fabric, options, n_data
        self._optimizers = optimizers.by_name
        loss: Any = torch.compile(task.module) if options.compile else task.module
        self._plain_loss = loss
        self._fabric_loss, *wrapped = fabric.setup(loss, *self._optimizers.values())
        self._wrapped = dict(zip(self._optimizers, wrapped, strict=True))
        self._warmups = [module for module in task.module.modules() if isinstance(module, Warmup)]
        self._part_rows = 0
        self._is_alone = fabric.world_size == 1
        self.is_mixed = fabric.strategy.precision.precision != "32-true"
        self._parameters = {
            name: [p for group in optimizer.param_groups for p in group["params"]]
            for name, optimizer in self._optimizers.items()
        }

    def __call__(self, name: str, given: StepInput, step: int) -> None:
        """Take step number ``step`` with one of the optimizers; none if the loss is known not to be finite."""
        parts = self._split(given)
        for i, part in enumerate(parts):
            with self._in_part(i, len(parts)):
                loss = self._training_loss(part, step)
                if not self.record.add_loss(step, loss, part.batch):
                    return
                self._backward(name, loss, part.rows / given.rows, is_first=i == 0)
            if i + 1 < len(parts):
                self.record.add_metrics(self.task.step_metrics(), part.rows)
        if self._options.gradient_clip is not None:
            self._fabric.clip_gradients(
                self._fabric_loss,
                self._optimizers[name],
                max_norm=self._options.gradient_clip,
                error_if_nonfinite=False,
            )
        (self._optimizers if self._is_plain else self._wrapped)[name].step()
        self.task.on_step_end(name)
        self.record.add_metrics(self.task.step_metrics(), parts[-1].rows)

    def take_gradient(self, name: str, given: StepInput) -> None:
        """The loss and its gradient, without a step; of the first part of one that has several."""
        self._backward(name, self._training_loss(self._split(given)[0], 0))

    def drop_gradient(self, name: str) -> None:
        """Forget the gradient of the parameters of one of the optimizers."""
        for parameter in self._parameters[name]:
            parameter.grad = None

    @property
    def _is_plain(self) -> bool:
        return self._is_alone and not self.is_mixed

    def _split(self, given: StepInput) -> list[StepInput]:
        """The parts whose gradients are accumulated, with their shares of the rows."""
        count, rows = self._options.accumulate, len(given.batch.y)
        if count == 1:
            return [given]
        self._part_rows = max(self._part_rows, -(-rows // count))  # those of a smaller last minibatch are as large
        batches = pieces(given.batch, self._part_rows)
        return [StepInput(b, given.arguments, given.rows * len(b.y) / max(rows, 1)) for b in batches]

    @contextmanager
    def _in_part(self, i: int, count: int) -> Iterator[None]:
        """Count the step in its first part only, and let processes exchange gradients in the last one only."""
        if count == 1:
            yield
            return
        for warmup in self._warmups:
            warmup.is_held = i > 0
        try:
            with nullcontext() if self._is_alone else self._fabric.no_backward_sync(self._fabric_loss, i + 1 < count):
                yield
        finally:
            for warmup in self._warmups:
                warmup.is_held = False

    def _backward(self, name: str, loss: Tensor, share: float = 1.0, is_first: bool = True) -> None:
        """Add ``share`` times the gradient; the first of a step replaces that of the step before."""
        if is_first:
            self.drop_gradient(name)
        if share != 1.0:
            loss = loss * share
        if self._is_plain:
            loss.backward()
        else:
            self._fabric.backward(loss)

    def _training_loss(self, given: StepInput, step: int) -> Tensor:
        """The loss; the error for a minibatch that does not match the model has the number of the step."""
        if self._options.compile:
            self.task.before_step(given.batch.x)
        loss = self._plain_loss if self._is_plain else self._fabric_loss
        try:
            return self.task.training_step(loss, given.batch, self._n_data, given.arguments)
        except Exception as error:
            self._explain(given.batch, step, error)
            raise

    def _explain(self, batch: Batch, step: int, error: Exception) -> None:
        """Raise ``InputError`` if it is the minibatch that made the network or the likelihood fail."""
        if is_too_few_rows(error):
            raise InputError(
                f"the minibatch at step {step} is too small for batch norm ({error}); choose another batch_size, "
                "or a DataLoader with drop_last=True"
            ) from error
        if batch.y.device.type != "cpu":
            return  # after a failed assertion the GPU cannot be used
        try:
            self.task.check_batch(batch)
        except InputError as reason:
            raise InputError(f"the minibatch at step {step} does not match the model: {reason}") from error


def is_too_few_rows(error: Exception) -> bool:
    """Whether ``error`` is that of batch norm in training mode for a minibatch with one value per channel."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)
