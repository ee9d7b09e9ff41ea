"""What the training loop asks of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import InputError
from credo.model import Model
from credo.training.optimizers import adam
from credo.training.options import Options

_EPOCHS = 20

PLAYER = "model"
"""The name of the one player where a model has a single objective."""


class Trainable(Model):
    """A model that the loop can train: ``model(x, y, n_data, **options)`` is the loss of a minibatch, per datum.

    Most models have one objective. Where several *players* train parts of one model against or beside each other, each
    has its own parameters and optimizer, and :meth:`turn` says who moves on a minibatch.

    Attributes:
        monitors: what early stopping can watch of held-out data, the default first: 1 where more is better, −1 where
            less is.
        n_data: the number of data in the training set, once it is known.
        last_terms: what the last loss was made of, detached; by name, unless :meth:`reported` says how.
    """

    monitors: ClassVar[Mapping[str, int]] = MappingProxyType({"elbo": 1, "log_likelihood": 1})
    n_data: int | None = None
    last_terms: Any = None

    def reported(self) -> Mapping[str, Tensor]:
        """What the last loss was made of, by name: the history has the means over an epoch."""
        terms: Mapping[str, Tensor] = self.last_terms
        return terms

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the parameters are."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""

    def resolve(self, batch: data_.Batch) -> None:
        """Decide from a first batch what was left open."""

    @abstractmethod
    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` for data that do not match the model, by a first batch and what is in memory."""

    @abstractmethod
    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, of everything that is learned."""

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """The optimizer of one player, where ``fit`` was not told of another."""
        return adam(groups, lr)

    def default_epochs(self, batches: int | None) -> int:
        """The number of epochs, each of so many minibatches, where ``fit`` was not told."""
        return _EPOCHS

    def before_training(self, steps: int | None) -> None:
        """Called before the first of ``steps`` training steps, ahead of :meth:`default_optimizer`."""

    def after_training(self, batch: data_.Batch) -> None:
        """Called with the last minibatch when training has ended without an error."""

    @abstractmethod
    def entry(self, means: Mapping[str, float]) -> dict[str, float]:
        """An entry of the history from the means of the terms over an epoch."""

    @abstractmethod
    def headline(self, entry: Mapping[str, float]) -> str:
        """What the progress bar says of an entry of the history."""

    @abstractmethod
    def held_out_scores(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """How well held-out data fare, by names that begin with ``validation_``: those of ``monitors``, at least."""

    def fit(self, data: Any, **options: Any) -> Self:
        """Learn from ``data``. See :class:`credo.training.Options` for every option."""
        from credo.training.loop import train

        train(self, data, Options.from_keywords(options))
        return self

    def as_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """``data`` as users have them as a data set or loader."""
        return data_.as_dataset(data, self.dtype)

    def as_batch(self, raw: Any) -> data_.Batch:
        """What a loader yields as a minibatch."""
        return data_.as_batch(raw)

    def undo_set_up(self) -> Callable[[], None]:
        """A function that takes back what :meth:`resolve` decides."""
        n_data = self.n_data

        def undo() -> None:
            self.n_data = n_data

        return undo

    def prepare(self, x: Any) -> None:
        """Do eagerly, on a batch, what must not happen inside a compiled step."""

    def players(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """The parameter groups of every player, by its name."""
        return {PLAYER: self.parameter_groups(weight_decay)}

    def turn(self, i: int) -> Sequence[str]:
        """Who moves, and in which order, on minibatch ``i``, counted from 1."""
        return (PLAYER,)

    def loss_options(self, player: str, i: int, batches: int | None) -> dict[str, Any]:
        """Further arguments of the loss for that player on minibatch ``i`` of ``batches``."""
        return {}

    def after_step(self, player: str) -> None:
        """Called when a player's optimizer has moved."""

    def after_epoch(self, entry: Mapping[str, float]) -> None:
        """Called with the new entry of the history."""

    def explain(self, batch: data_.Batch) -> None:
        """Raise an ``InputError`` where it is the minibatch that made the loss fail."""

    def probe(self, batch: data_.Batch) -> Tensor:
        """A number that is not finite where the last step led out of the finite numbers."""
        return torch.stack([p.detach().sum() for p in self.parameters() if p.is_floating_point()]).sum()

    def training_card(self) -> dict[str, object]:
        """History and number of data."""
        return {**super().training_card(), "n_data": self.n_data}

    def restore_training(self, card: object) -> None:
        """Take over history and number of data."""
        super().restore_training(card)
        n_data = card.get("n_data") if isinstance(card, dict) else None
        if isinstance(n_data, int) and n_data > 0:
            self.n_data = n_data

    def check_device_count(self, devices: int) -> None:
        """Raise ``InputError`` for a number of processes that the model cannot be trained with."""
        if devices > 1 and len(self.players(0.0)) > 1:
            raise InputError(f"{type(self).__name__} has several players and trains in one process: use devices=1")
