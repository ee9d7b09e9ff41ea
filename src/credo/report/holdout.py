"""Held-out rows: their predictions, their targets, and what a report computes from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo import metrics
from credo._text import counted
from credo.errors import InputError
from credo.metrics import Score
from credo.metrics.classification import LabeledPredictions
from credo.predictive import ClassPredictive, Interval, Predictive
from credo.report.associations import Association, find_associations
from credo.report.formatting import truncate
from credo.tabular.base import TableEstimator
from credo.tabular.columns import as_frame
from credo.tabular.evaluations import Evaluation, LabeledRows, evaluate
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows

LEVEL = 0.95
"""The level of the intervals that a report shows."""

LEVELS = (0.5, 0.8, LEVEL)
"""The levels of the intervals whose coverage is shown and tested."""

_MIN_EPISTEMIC_SHARE = 1e-6  # below it, the difference between draws is rounding error


@dataclass(frozen=True, eq=False)
class ScoredPredictions:
    """Predictions of N rows and their targets, with metrics that are computed once.

    Attributes:
        prediction: one number or one class per row.
        y: the targets ``[N]``, in their own unit or as class indices.
        seed: of everything that is random.
        known_scores: the scores at :data:`LEVEL`, if they have been computed already.
    """

    prediction: Predictive
    y: Tensor
    seed: int
    known_scores: Sequence[Score] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_classification(self) -> bool:
        """Whether classes are predicted, not numbers."""
        return isinstance(self.prediction, ClassPredictive)

    @cached_property
    def scores(self) -> Sequence[Score]:
        """The standard scores with their confidence intervals."""
        if self.known_scores is not None:
            return self.known_scores
        return metrics.scores(self.prediction, self.y, LEVEL, seed=self.seed)

    def score(self, name: str) -> Score:
        """Return the score with this name."""
        return next(score for score in self.scores if score.name == name)

    @cached_property
    def class_predictions(self) -> LabeledPredictions:
        """The predicted classes and their probabilities beside the labels."""
        return LabeledPredictions.from_predictive(self.prediction, self.y, "report")

    @cached_property
    def interval(self) -> Interval:
        """The intervals at :data:`LEVEL`."""
        return self.prediction.interval(LEVEL)

    @cached_property
    def coverage(self) -> dict[float, float]:
        """The fraction of targets inside the intervals at each of :data:`LEVELS`."""
        return {level: metrics.coverage(self.prediction, self.y, level) for level in LEVELS}

    @cached_property
    def mean(self) -> Tensor:
        """The predicted means ``[N]``, or the class probabilities ``[N, K]``."""
        return self.prediction.mean

    @cached_property
    def uncertainty(self) -> Tensor:
        """The uncertainty per row ``[N]``: the standard deviation in the target's unit, or the entropy in nats."""
        return self.prediction.entropy if self.is_classification else self.prediction.std

    @cached_property
    def loss(self) -> Tensor:
        """The error per row ``[N]``: the squared error, or 1 if the class is wrong."""
        return 1 - self.class_predictions.correct if self.is_classification else (self.mean - self.y).square()

    @cached_property
    def epistemic_share(self) -> float:
        """The epistemic part of the total uncertainty, from 0 to 1; NaN if there is no uncertainty."""
        epistemic, aleatoric = float(self.prediction.epistemic.sum()), float(self.prediction.aleatoric.sum())
        return epistemic / (epistemic + aleatoric) if epistemic + aleatoric else float("nan")

    @property
    def has_epistemic_part(self) -> bool:
        """Whether there are draws that differ; a single network has epistemic variance for extrapolation only."""
        return self.prediction.n_draws > 1 and self.epistemic_share > _MIN_EPISTEMIC_SHARE


@dataclass(frozen=True, eq=False)
class HoldoutResult:
    """A fitted estimator evaluated on held-out rows.

    Attributes:
        model: the estimator.
        frame: the N rows with a known target.
        scored: their predictions and targets.
        notes: sentences about these rows, such as categories that training did not have.
    """

    model: TableEstimator
    frame: pd.DataFrame
    scored: ScoredPredictions
    notes: tuple[str, ...]

    @property
    def target(self) -> str:
        """The name of the target; empty if it has none."""
        return self.model.target_.name

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes; empty for regression."""
        target = self.model.target_
        return [truncate(label, 40) for label in target.classes] if isinstance(target, ClassTarget) else []

    @property
    def training_mean(self) -> float:
        """The mean of the training targets, for regression."""
        target = self.model.target_
        assert isinstance(target, RegressionTarget)
        return target.mean

    @cached_property
    def unused_columns(self) -> list[str]:
        """The columns that the model does not use."""
        return [s.name for s in self.model.columns_.summary() if s.treatment.startswith("left out")]

    @cached_property
    def associations(self) -> list[Association]:
        """The columns that are associated with the uncertainty, the strongest first."""
        return find_associations(self.model.columns_, self.frame, self.scored.uncertainty.numpy())


def evaluate_holdout(model: Any, X: Any, y: Any, seed: int, evaluation: Evaluation | None = None) -> HoldoutResult:
    """Evaluate a fitted estimator on held-out rows.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        X: the rows, as ``model.predict_dist`` takes them.
        y: their targets ``[N]``; rows without a target are left out.
        seed: of everything that is random.
        evaluation: the result of :func:`credo.tabular.evaluations.evaluate` for the rows with a target; by default, it
            is computed.

    Raises:
        InputError: if ``model`` is not an estimator for tables, the rows do not match, no target is known, or a
            prediction is not finite.
    """
    if not isinstance(model, TableEstimator):
        raise InputError(
            f"model must be a fitted credo.Regressor or credo.Classifier, got {type(model).__name__}: a report "
            "describes a model of a table"
        )
    check_is_fitted(model)
    X = X if isinstance(X, pd.DataFrame) else np.asarray(X)
    known = known_rows(y, model.target_)
    if len(X) != len(known):
        raise InputError(f"X and y must have the same number of rows, got {len(X):,} and {len(known):,}")
    if not known.any():
        raise InputError(f"y must contain the targets of the held-out rows, got none in {counted(len(known), 'row')}")
    targets = y.iloc[:, 0] if isinstance(y, pd.DataFrame) else pd.Series(y)
    X, targets = X[known], targets[known]
    if evaluation is None:
        evaluation = evaluate(model, LabeledRows(X, targets), LEVEL, seed)
    elif len(evaluation.y) != len(X):
        raise InputError(
            f"evaluation must be about the {counted(len(X), 'row')} with a target, got {len(evaluation.y):,}"
        )
    _check_finite(evaluation.predictive)
    notes = [*evaluation.notes, *evaluation.outside.sentences()]
    if not known.all():
        missing = counted(int((~known).sum()), "held-out row")
        notes.insert(0, f"Left out of this report, because the target is missing: {missing}.")
    is_reusable = (evaluation.level, evaluation.seed) == (LEVEL, seed)
    scored = ScoredPredictions(evaluation.predictive, evaluation.y, seed, evaluation.scores if is_reusable else None)
    return HoldoutResult(model, _with_column_names(model, X), scored, tuple(notes))


def _check_finite(prediction: Predictive) -> None:
    finite = prediction.draws.isfinite().all(0).reshape(len(prediction), -1).all(1)
    if not bool(finite.all()):
        raise InputError(
            f"the model predicts NaN or infinity for {int((~finite).sum()):,} of {counted(len(finite), 'row')}: its "
            "training has failed; fit it again with a smaller lr"
        )


def _with_column_names(model: TableEstimator, X: pd.DataFrame | NDArray[Any]) -> pd.DataFrame:
    """Return the rows with the column names of training."""
    by_position = not hasattr(model, "feature_names_in_")
    return as_frame(X.to_numpy() if by_position and isinstance(X, pd.DataFrame) else X, model.columns_.names)
