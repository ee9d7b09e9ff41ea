"""One training step: the loss of a minibatch, its gradient, and the step of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from credo.data import Batch
from credo.errors import InputError
from credo.training.monitoring import Record
from credo.training.optimizers import OptimizerSet
from credo.training.options import FitOptions
from credo.training.task import Task

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
        options: ``compile``, ``gradient_clip`` and ``precision``.
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
        self._is_alone = fabric.world_size == 1
        self.is_mixed = fabric.strategy.precision.precision != "32-true"
        self._parameters = {
            name: [p for group in optimizer.param_groups for p in group["params"]]
            for name, optimizer in self._optimizers.items()
        }

    def __call__(self, name: str, given: StepInput, step: int) -> None:
        """Take step number ``step`` with one of the optimizers; none if the loss is known not to be finite."""
        loss = self._training_loss(given, step)
        if not self.record.add_loss(step, loss, given.batch):
            return
        self._backward(name, loss)
        if self._options.gradient_clip is not None:
            self._fabric.clip_gradients(
                self._fabric_loss,
                self._optimizers[name],
                max_norm=self._options.gradient_clip,
                error_if_nonfinite=False,
            )
        (self._optimizers if self._is_plain else self._wrapped)[name].step()
        self.task.on_step_end(name)
        self.record.add_metrics(self.task.step_metrics(), given.rows)

    def take_gradient(self, name: str, given: StepInput) -> None:
        """The loss and its gradient, without a step."""
        self._backward(name, self._training_loss(given, 0))

    def drop_gradient(self, name: str) -> None:
        """Forget the gradient of the parameters of one of the optimizers."""
        for parameter in self._parameters[name]:
            parameter.grad = None

    @property
    def _is_plain(self) -> bool:
        return self._is_alone and not self.is_mixed

    def _backward(self, name: str, loss: Tensor) -> None:
        self.drop_gradient(name)
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
        if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
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
