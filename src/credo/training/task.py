"""The interface between the training loop and a model: an object that ``fit`` builds around the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import InputError
from credo.functional import Carrier
from credo.training.optimizers import OptimizerSet, adam
from credo.training.options import FitKeywords, FitOptions

_EPOCHS = 20

SINGLE = "model"
"""The name of the optimizer of a model that has only one."""


class TrainableModel(Protocol):
    """The attributes of a model that every task uses; the model is an ``nn.Module`` too."""

    history: list[dict[str, float]]
    n_data: int | None
    _training_path: str | None

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""


M = TypeVar("M", bound=TrainableModel)


class Task(ABC, Generic[M]):
    """How one kind of model is trained.

    The loop calls the hooks in this order: :meth:`check_keywords`; :meth:`setup` and :meth:`check_data` on a first
    batch; :meth:`on_train_start`; :meth:`configure_optimizers`; per minibatch and active optimizer
    :meth:`training_step` and :meth:`on_step_end`, then :meth:`on_batch_end`; per epoch :meth:`epoch_metrics`,
    :meth:`validation_step` and :meth:`on_epoch_end`; and :meth:`on_train_end`.

    Args:
        model: the model to train; ``model(x, y, n_data, **arguments)`` is its loss on a minibatch, per row.
    """

    monitors: ClassVar[Mapping[str, int]] = MappingProxyType({"elbo": 1, "log_likelihood": 1})
    """Validation metrics that early stopping can watch, the default first: 1 if larger is better, −1 if smaller is."""

    minimum_steps: ClassVar[int] = 0
    """Training steps that the default number of epochs makes at least."""

    def __init__(self, model: M) -> None:
        self.model = model
        self._n_data = model.n_data
        self._steps: int | None = None

    @property
    def module(self) -> nn.Module:
        """The model as the ``nn.Module`` that it is."""
        return cast(nn.Module, self.model)

    def check_keywords(self, keywords: FitKeywords) -> None:
        """Raise ``InputError`` for options that do not apply to this model."""

    def make_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """``data``, in any form that ``fit`` accepts, as a data set or loader."""
        return data_.as_dataset(data, self.model.dtype)

    def make_batch(self, raw: Any) -> data_.Batch:
        """What a loader yields as a minibatch."""
        return data_.as_batch(raw)

    def setup(self, batch: data_.Batch) -> None:
        """Set what the constructor left open, from a first batch."""

    def undo_setup(self) -> None:
        """Restore what :meth:`setup` and :meth:`on_train_start` changed, after an error before the first step."""
        self.model.n_data = self._n_data

    @abstractmethod
    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` if a first batch, or data held in memory, do not match the model."""

    def check_batch(self, batch: data_.Batch) -> None:
        """Raise ``InputError`` if it is the minibatch that made the loss fail."""

    def default_epochs(self, batches: int | None) -> int:
        """The number of epochs, each of ``batches`` minibatches, if ``fit`` was given none."""
        return max(_EPOCHS, math.ceil(self.minimum_steps / batches)) if batches else _EPOCHS

    def on_train_start(self, steps: int | None) -> None:
        """Called once before training, with the number of training steps if it is known."""
        self._steps = steps

    @abstractmethod
    def parameter_groups(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """The parameter groups of each optimizer, by its name."""

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """The optimizer for parameter groups, if ``fit`` was given none."""
        return adam(groups, lr)

    def configure_optimizers(self, options: FitOptions) -> OptimizerSet:
        """The optimizers by name, with their learning rates and schedules."""
        return OptimizerSet(self.parameter_groups(options.weight_decay), options, self.default_optimizer)

    def active_optimizers(self, i: int) -> Sequence[str]:
        """The optimizers that step on minibatch ``i``, counted from 1, in order."""
        return (SINGLE,)

    def before_step(self, x: Any) -> None:
        """Do on a batch what must not happen inside a compiled step."""

    def training_step(
        self, loss: Callable[..., Tensor], batch: data_.Batch, n_data: int, arguments: Mapping[str, Any]
    ) -> Tensor:
        """The loss of a minibatch for one optimizer.

        Args:
            loss: the model, possibly compiled or wrapped for several processes.
            batch: the minibatch.
            n_data: the number of training data.
            arguments: as :meth:`loss_arguments` returns them.

        Returns:
            The loss per row, differentiable.
        """
        if batch.sample_weight is not None:
            return loss(batch.x, batch.y, n_data, sample_weight=batch.sample_weight, **arguments)
        return loss(batch.x, batch.y, n_data, **arguments)

    def loss_arguments(self, optimizer: str, i: int, batches: int | None) -> dict[str, Any]:
        """Further arguments of the loss on minibatch ``i`` of ``batches``; those that change are tensors."""
        return {}

    def capture_key(self) -> Hashable:
        """What a step depends on apart from tensors and the arguments of the loss; it is captured for each value."""
        return None

    @abstractmethod
    def step_metrics(self) -> Mapping[str, Tensor]:
        """The terms of the last loss by name, detached; the history holds their means over an epoch."""

    def on_step_end(self, optimizer: str) -> None:
        """Called after a step of an optimizer."""

    def on_batch_end(self, step: int) -> None:
        """Called after the steps on minibatch number ``step`` of the run, also where they are replayed."""

    def finite_check(self, batch: data_.Batch) -> Tensor:
        """A number that is NaN or infinite if the last step made the parameters so."""
        parameters = self.module.parameters()
        return torch.stack([p.detach().sum() for p in parameters if p.is_floating_point()]).sum()

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The entry of the history for an epoch, from the means of the step metrics."""
        return dict(means)

    @abstractmethod
    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Metrics of held-out data, by names that begin with ``validation_``; those of ``monitors`` at least."""

    @abstractmethod
    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """What the progress bar shows of an entry of the history."""

    def on_epoch_end(self, metrics: Mapping[str, float]) -> None:
        """Called with the new entry of the history."""

    def on_train_end(self) -> None:
        """Called after training without an error."""

    def check_device_count(self, devices: int) -> None:
        """Raise ``InputError`` for a number of processes that the model cannot be trained with."""
        if devices > 1 and len(self.parameter_groups(0.0)) > 1:
            raise InputError(f"{type(self.model).__name__} has several optimizers and trains in one process: devices=1")
        if devices > 1 and any(isinstance(module, Carrier) for module in self.module.modules()):
            raise InputError(
                "a network that carries its state reads minibatches in order, and trains in one process: devices=1"
            )
