"""Predictions beside what came true, and everything a report derives from the two, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from credo import metrics
from credo.metrics.classification import LabeledPredictions
from credo.predictive import ClassPredictive, Interval, Predictive

LEVEL = 0.95
"""Of the intervals that a report shows."""

LEVELS = (0.5, 0.8, LEVEL)
"""Of the intervals whose coverage is told and tested."""

_ROUNDING = 1e-6  # an epistemic share below this is that of draws that are all the same


@dataclass(frozen=True, eq=False)
class Forecast:
    """Predictions of N rows that were not trained on, and their targets.

    Attributes:
        p: the predictions, one number or one class a row.
        y: the targets ``[N]``, in their own unit or as positions among the classes.
        seed: of everything that is drawn at random.
    """

    p: Predictive
    y: Tensor
    seed: int

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_of_classes(self) -> bool:
        """Whether classes are predicted, not numbers."""
        return isinstance(self.p, ClassPredictive)

    @cached_property
    def scores(self) -> list[metrics.Score]:
        """The standard scores with their confidence intervals."""
        return metrics.scores(self.p, self.y, LEVEL, seed=self.seed)

    def score(self, name: str) -> metrics.Score:
        """One of them."""
        return next(score for score in self.scores if score.name == name)

    @cached_property
    def answers(self) -> LabeledPredictions:
        """What a classifier answered."""
        return LabeledPredictions.from_predictive(self.p, self.y, "report")

    @cached_property
    def interval(self) -> Interval:
        """The intervals of :data:`LEVEL`."""
        return self.p.interval(LEVEL)

    @cached_property
    def coverage(self) -> dict[float, float]:
        """The share of targets inside the intervals of each of :data:`LEVELS`."""
        return {level: metrics.coverage(self.p, self.y, level) for level in LEVELS}

    @cached_property
    def mean(self) -> Tensor:
        """The predicted means ``[N]``, or the class probabilities ``[N, K]``."""
        return self.p.mean

    @cached_property
    def uncertainty(self) -> Tensor:
        """How unsure each row is, ``[N]``: a standard deviation in the target's unit, or an entropy in nats."""
        return self.p.entropy if self.is_of_classes else self.p.std

    @cached_property
    def loss(self) -> Tensor:
        """How wrong each row is, ``[N]``: its squared error, or 1 where the class is wrong."""
        return 1 - self.answers.correct if self.is_of_classes else (self.mean - self.y).square()

    @cached_property
    def epistemic_share(self) -> float:
        """The part of the whole uncertainty on which the draws disagree, between 0 and 1; NaN where there is none."""
        epistemic, aleatoric = float(self.p.epistemic.sum()), float(self.p.aleatoric.sum())
        return epistemic / (epistemic + aleatoric) if epistemic + aleatoric else float("nan")

    @property
    def has_epistemic_part(self) -> bool:
        """Whether there are draws that differ: one network alone knows of extrapolation only."""
        return self.p.n_draws > 1 and self.epistemic_share > _ROUNDING
