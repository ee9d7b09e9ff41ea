"""The training task of variational posteriors: a KL that rises, enough steps, and signs that there were too few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from credo.training.optimizers import STEPS
from credo.training.supervised import SupervisedModel, SupervisedTask
from credo.training.warmup import Warmup

_UNMOVED = 0.25
"""Change of log σ, in the median, below which a posterior counts as unmoved."""
_RISE = 0.1
"""Gain of the ELBO, relative to its size, that counts as still rising."""
_FEW_STEPS = 1000
"""In fewer, a learning rate that falls to 0 ends the rise before the posterior does."""
_MIN_EPOCHS = 5


class VariationalModel(SupervisedModel, Protocol):
    """What the task uses of a method whose KL has a warm-up."""

    _warmup: Warmup
    _kl_warmup: int | None


V = TypeVar("V", bound=VariationalModel)


class FreeEnergyTask(SupervisedTask[V]):
    """Trains by −(1/T)·mean log p(y | x, w) + c·KL/n_data, with c rising from 0 to 1 in warm-up."""

    minimum_steps = STEPS

    def __init__(self, model: V) -> None:
        super().__init__(model)
        self._warmup_before = int(model._warmup.length)

    def on_train_start(self, steps: int | None) -> None:
        """Bring the KL in over the first half of the first training run, unless ``kl_warmup`` was given."""
        super().on_train_start(steps)
        warmup = self.model._warmup
        if self.model._kl_warmup is None and not warmup.steps and steps is not None:
            warmup.length.fill_(steps // 2)

    def undo_setup(self) -> None:
        """Restore the length of the warm-up too."""
        super().undo_setup()
        self.model._warmup.length.fill_(self._warmup_before)


def convergence_notes(
    scales: Iterable[Tensor], initial_scale: float, history: Sequence[dict[str, float]], steps: int | None
) -> list[str]:
    """Signs that a posterior has not converged.

    Args:
        scales: σ of every weight tensor after training; 0 for pruned weights.
        initial_scale: σ before training.
        history: one entry per epoch, with ``elbo``.
        steps: the number of training steps, if it is known.

    Returns:
        Sentences, each with advice; empty if nothing was found.
    """
    notes = []
    scale = torch.cat([s.detach().flatten() for s in scales])
    scale = scale[scale > 0]
    longer = "train longer" if not steps else f"train longer, epochs={_longer(len(history), steps)}"
    if len(scale) and float((scale / initial_scale).log().abs().median()) < _UNMOVED:
        notes.append(
            f"the posterior has hardly moved from its start: the median σ is {float(scale.median()):.3g}, "
            f"initial_scale {initial_scale:.3g}, so the epistemic uncertainty is what was put in; {longer}, or raise lr"
        )
    rise = _relative_rise([entry["elbo"] for entry in history], few_steps=bool(steps and steps < _FEW_STEPS))
    if rise > _RISE:
        notes.append(f"the ELBO was still rising at the end of training, by {rise:.0%}; {longer} for it to converge")
    return notes


def _relative_rise(elbo: list[float], few_steps: bool) -> float:
    """How much the bound rose at the end: over the last fifth of the epochs, or the last half of few steps."""
    if len(elbo) < _MIN_EPOCHS:
        return 0.0
    length = max(1, len(elbo) // 5)
    end = sum(elbo[-length:]) / length
    earlier = elbo[len(elbo) // 2 - 1 : len(elbo) // 2] if few_steps else elbo[-2 * length : -length]
    return (end - sum(earlier) / len(earlier)) / max(abs(end), 1e-12)


def _longer(epochs: int, steps: int) -> int:
    """Twice as many epochs, or as many as enough steps take."""
    return max(2 * epochs, math.ceil(STEPS * epochs / steps))
