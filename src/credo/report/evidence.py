"""What a report is drawn from: a fitted estimator, rows it has not seen, and what it says of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from credo._text import counted
from credo.errors import InputError
from credo.predictive import Predictive
from credo.report.associations import Association, associations
from credo.report.forecast import LEVEL, Forecast
from credo.report.wording import cut
from credo.tabular.base import TableEstimator
from credo.tabular.columns import as_frame
from credo.tabular.runs import Evaluation, LabeledRows, evaluate
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows


@dataclass(frozen=True, eq=False)
class Evidence:
    """Held-out rows and what was predicted for them.

    Attributes:
        model: the fitted estimator.
        frame: the N rows whose target is known.
        forecast: what the model predicts for them, and what came true.
        remarks: sentences about what is odd in these rows.
    """

    model: TableEstimator
    frame: pd.DataFrame
    forecast: Forecast
    remarks: tuple[str, ...]

    @property
    def target(self) -> str:
        """The name of what is predicted; empty where it has none."""
        return self.model.target_.name

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes; none where the target is a number."""
        target = self.model.target_
        return [cut(label, 40) for label in target.classes] if isinstance(target, ClassTarget) else []

    @property
    def training_mean(self) -> float:
        """What a model without columns would predict of a quantity."""
        target = self.model.target_
        assert isinstance(target, RegressionTarget)
        return target.mean

    @cached_property
    def left_out(self) -> list[str]:
        """The columns that the model does not use."""
        return [s.name for s in self.model.columns_.summary() if s.treatment.startswith("left out")]

    @cached_property
    def associations(self) -> list[Association]:
        """The columns that the uncertainty goes with, the strongest first."""
        return associations(self.model.columns_, self.frame, self.forecast.uncertainty.numpy())


def gather(model: Any, X: Any, y: Any, seed: int, evaluation: Evaluation | None = None) -> Evidence:
    """Predict held-out rows.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        X: the rows, as ``model.predict_dist`` takes them.
        y: their targets ``[N]``; rows without one are left out.
        seed: of everything that is drawn at random.
        evaluation: the predictions for these rows, if they were made before; ``None``: they are made.
    """
    if not isinstance(model, TableEstimator):
        raise InputError(
            f"model must be a fitted credo.Regressor or credo.Classifier, got {type(model).__name__}: a report is "
            "about a table"
        )
    check_is_fitted(model)
    X = X if isinstance(X, pd.DataFrame) else np.asarray(X)
    known = known_rows(y)
    if len(X) != len(known):
        raise InputError(f"X and y must have as many rows, got {len(X):,} and {len(known):,}")
    if not known.any():
        raise InputError(f"y must hold the targets of the held-out rows, got none in {counted(len(known), 'row')}")
    targets = y.iloc[:, 0] if isinstance(y, pd.DataFrame) else pd.Series(y)
    if evaluation is None:
        evaluation = evaluate(model, LabeledRows(X[known], targets[known]), LEVEL, seed)
    _check_finite(evaluation.predictive)
    remarks = (*evaluation.notes, *evaluation.outside.sentences())
    if not known.all():
        gaps = counted(int((~known).sum()), "held-out row")
        remarks = (f"Left out of this report, because the target is missing: {gaps}.", *remarks)
    forecast = Forecast(evaluation.predictive, evaluation.y, seed)
    if (evaluation.level, evaluation.seed) == (LEVEL, seed):
        vars(forecast)["scores"] = evaluation.scores  # the cached property: the bootstrap runs once
    return Evidence(model, _named(model, X[known]), forecast, remarks)


def _check_finite(p: Predictive) -> None:
    finite = p.draws.isfinite().all(0).reshape(len(p), -1).all(1)
    if not bool(finite.all()):
        raise InputError(
            f"the model predicts NaN or infinity for {int((~finite).sum()):,} of {counted(len(p), 'row')}: its "
            "training has failed; fit it again with a smaller lr"
        )


def _named(model: TableEstimator, X: pd.DataFrame | NDArray[Any]) -> pd.DataFrame:
    """The rows under the names that the model knows their columns by."""
    by_position = not hasattr(model, "feature_names_in_")
    return as_frame(X.to_numpy() if by_position and isinstance(X, pd.DataFrame) else X, model.columns_.names)
