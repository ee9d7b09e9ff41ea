"""What a classifier answered, target by target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.errors import InputError
from credo.metrics._statistics import Statistic
from credo.metrics._targets import Values, class_targets
from credo.predictive import Predictive
from credo.predictive.categorical import CategoricalComponents


@dataclass(frozen=True, eq=False)
class Answers:
    """The N targets that count, flat over rows and their pixels or tokens, and what was predicted for them.

    Args:
        probability: π, ``[N, C]``; two classes for a Bernoulli prediction.
        predicted: the most probable class, ``[N]``.
        label: the true class, ``[N]``.
        kept: which targets count, ``[B, ...]``.
    """

    probability: Tensor
    predicted: Tensor
    label: Tensor
    kept: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, p: Predictive, y: Values, metric: str) -> Answers:
        """What ``p`` answers where ``y`` asks, on the CPU; targets with the label ``ignore_index`` are left out."""
        label = class_targets(p, y, metric).cpu().long()
        mean, kept = p.mean.double().cpu(), torch.ones_like(label, dtype=torch.bool)
        if isinstance(p.components, CategoricalComponents):
            probability = mean.movedim(p.components.class_dim, -1)
            if p.components.ignore_index is not None:
                kept = label != p.components.ignore_index
        else:
            probability = torch.stack([1 - mean, mean], -1)
        if not bool(kept.any()):
            raise InputError(f"{metric} of no targets is undefined: every label is the ignore_index.")
        return cls(probability[kept], p.mode.cpu()[kept], label[kept], kept)

    @property
    def confidence(self) -> Tensor:
        """max_c π_c, ``[N]``."""
        return self.probability.amax(1)

    @property
    def correct(self) -> Tensor:
        """1 where the most probable class is right, else 0, ``[N]``."""
        return (self.predicted == self.label).double()

    @property
    def brier(self) -> Tensor:
        """Σ_c (π_c − 1{y = c})², ``[N]``."""
        return (self.probability - F.one_hot(self.label, self.probability.shape[1])).square().sum(1)

    def flat(self, values: Tensor) -> Tensor:
        """A quantity of every target ``[B, ...]`` in the order of the answers, ``[N]``."""
        return values.detach().double().cpu()[self.kept]

    @property
    def filled_rows(self) -> int:
        """How many rows have a target that counts."""
        return int(self.kept.reshape(len(self.kept), -1).any(1).sum())

    def rows_with(self, marked: Tensor) -> int:
        """How many rows have an answer that is marked, ``[N]``."""
        return len(self.kept.nonzero()[marked.bool(), 0].unique())

    def by_row(self, statistic: Statistic) -> Statistic:
        """A statistic of the answers as one of the rows they belong to."""
        return statistic.on_rows(self.kept.nonzero()[:, 0], len(self.kept))
