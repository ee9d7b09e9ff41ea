"""What ``fit`` can be told, checked before anything is touched."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.optim import Optimizer

from credo.errors import InputError, unknown_name
from credo.seeding import check_seed

_SCHEDULES = ("cosine", "constant")
_COUNTS = {"batch_size": 1, "checkpoint_every": 1, "devices": 1}
_CONVERTING = ("16-true", "bf16-true", "64-true", "64")
_OPTIONAL_COUNTS = {"epochs": 0, "patience": 1, "n_data": 1}


Schedule: TypeAlias = "str | Callable[[float], float]"
Builder: TypeAlias = Callable[..., Optimizer]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to train.

    Attributes:
        epochs: passes over the data; ``None``: 20, or as many as 2,000 steps take where there are scales to learn.
        batch_size: rows in a minibatch, over all processes; a DataLoader keeps its own.
        lr: learning rate at the start; where a model has several players, such as a generator and a discriminator, a
            mapping from their names may give each its own.
        optimizer: ``callable(parameter_groups, lr=…)`` giving an optimizer; by default Adam, in the
            posterior's own units where it has scales (:class:`credo.training.NaturalAdam`). Groups it gives learning
            rates of their own keep their ratios; or a mapping from the names of players.
        schedule: ``"cosine"`` (to 0), ``"constant"``, or ``callable(progress)`` giving a factor on the learning
            rate for progress from 0 to 1; or a mapping from the names of players.
        weight_decay: the optimizer's, for the network's weights and never for the scales of a posterior.
        gradient_clip: largest norm of the whole gradient, or ``None``.
        validation: held-out data, evaluated after every epoch.
        monitor: what early stopping watches, per held-out datum: ``"elbo"``, ``"log_likelihood"``, or whatever else the
            model has to offer; by default the first.
        patience: stop after this many epochs without a better score and return to the best; ``None``: never.
        precision: Fabric's name of a precision, ``"32-true"``, ``"bf16-mixed"`` or ``"16-mixed"``.
        compile: compile the loss with ``torch.compile``.
        checkpoint: a folder to write after every ``checkpoint_every`` epochs, whole or not at all.
        checkpoint_every: epochs between checkpoints.
        resume: continue from ``checkpoint`` if it exists.
        device: where to train; by default where the network is.
        devices: number of processes.
        strategy: Fabric's name of a strategy: ``"ddp"`` from a script, ``"ddp_notebook"`` from a notebook,
            ``"ddp_find_unused_parameters_true"`` for a network with layers it does not use.
        seed: makes the run reproducible; torch's random state is left as it was.
        n_data: number of data in the training set, where a loader cannot tell.
        progress: show a bar; ``None``: where there is a terminal.
    """

    epochs: int | None = None
    batch_size: int = 128
    lr: float | Mapping[str, float] = 1e-3
    optimizer: Builder | Mapping[str, Builder] | None = None
    schedule: Schedule | Mapping[str, Schedule] = "cosine"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    validation: Any = None
    monitor: str | None = None
    patience: int | None = None
    precision: Any = "32-true"
    compile: bool = False
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    resume: bool = False
    device: str | torch.device | None = None
    devices: int = 1
    strategy: str = "auto"
    seed: int | None = None
    n_data: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (_COUNTS | _OPTIONAL_COUNTS).items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL_COUNTS:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
        for lr in _each(self.lr):
            if not _is_positive(lr):
                raise InputError(f"lr must be positive and finite, got {lr!r}")
        if self.weight_decay != 0 and not _is_positive(self.weight_decay):
            raise InputError(f"weight_decay must be 0 or more and finite, got {self.weight_decay!r}")
        if self.gradient_clip is not None and not _is_positive(self.gradient_clip):
            raise InputError(f"gradient_clip must be positive and finite, or None, got {self.gradient_clip!r}")
        for optimizer in _each(self.optimizer):
            if optimizer is not None and not callable(optimizer):
                raise InputError(f"optimizer must be a callable such as torch.optim.SGD, got {optimizer!r}")
        for schedule in _each(self.schedule):
            if not callable(schedule) and schedule not in _SCHEDULES:
                raise unknown_name("schedule", schedule, _SCHEDULES)
        if self.patience is not None and self.validation is None:
            raise InputError("patience needs held-out data to watch: pass validation=...")
        if self.resume and self.checkpoint is None:
            raise InputError("resume=True needs to know from where: pass checkpoint='folder'")
        if str(self.precision) in _CONVERTING:
            instead = (
                "use net.double() and data in float64"
                if "64" in str(self.precision)
                else "use 'bf16-mixed' or '16-mixed', which compute in 16 bits and keep the weights as they are"
            )
            raise InputError(f"precision={self.precision!r} would convert the network; {instead}")
        if self.seed is not None:
            check_seed(self.seed)

    @classmethod
    def from_keywords(cls, keywords: dict[str, Any]) -> Options:
        """Options from keyword arguments; a misspelled one gets the nearest names."""
        names = [field.name for field in dataclasses.fields(cls)]
        for key in keywords:
            if key not in names:
                raise unknown_name("option of fit", key, names)
        return cls(**keywords)


def factor(schedule: Schedule, progress: float) -> float:
    """What the learning rate is multiplied with when ``progress`` of the training, from 0 to 1, is done."""
    if schedule == "constant":
        return 1.0
    if not callable(schedule):
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    given = schedule(progress)
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = math.nan
    if not 0.0 <= found < math.inf:
        raise InputError(f"schedule must give a number of at least 0, but gave {given!r} at progress {progress:g}")
    return found


def _each(option: Any) -> list[Any]:
    """An option for all players as a list of one, or those of each."""
    return list(option.values()) if isinstance(option, Mapping) else [option]


def _is_positive(value: object) -> bool:
    return isinstance(value, float | int | np.number) and not isinstance(value, bool) and 0 < float(value) < math.inf
