"""The predictions of a model for rows whose target is known, and their scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor

from credo import metrics
from credo._text import listed, quoted
from credo.errors import InputError
from credo.metrics import Score
from credo.predictive import Predictive
from credo.tabular.base import TableEstimator
from credo.tabular.estimators import Regressor
from credo.tabular.extrapolation import OutsideRange
from credo.tabular.predictions import true_values
from credo.tabular.several_targets import RegressionTargets
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows, notes_on_unknown


class LabeledRows(NamedTuple):
    """Rows whose target is known: the columns ``X`` and the target ``y``, or a frame of several."""

    X: pd.DataFrame
    y: pd.Series | pd.DataFrame


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictions of a model for rows whose target is known.

    Attributes:
        predictive: the predictions of the N rows.
        y: the targets ``[N]``, in their own units or as positions among the classes.
        notes: warnings about the rows.
        outside: the number of rows outside the training range.
        level: the probability of the intervals that are scored.
        seed: the seed of the bootstrap.
    """

    predictive: Predictive
    y: Tensor
    notes: tuple[str, ...]
    outside: OutsideRange
    level: float
    seed: int

    @cached_property
    def scores(self) -> list[Score]:
        """The scores, by :func:`credo.metrics.scores`, computed once."""
        return metrics.scores(self.predictive, self.y, self.level, seed=self.seed)


def evaluate(model: TableEstimator, rows: LabeledRows, level: float = 0.95, seed: int = 0) -> Evaluation:
    """Predict rows whose target is known.

    Args:
        model: a fitted estimator.
        rows: the rows, from :func:`labeled_rows`.
        level: the probability of the intervals that are scored.
        seed: the seed of the bootstrap.

    Returns:
        The predictions. Warnings about the rows are in ``notes`` and not issued; other warnings are.
    """
    y = true_values(model.target_, rows.y)
    outside = OutsideRange()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (predictive,) = model.stream([rows.X], outside)
    for warning in caught:
        if warning.category is not UserWarning:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    notes = tuple(str(warning.message) for warning in caught if warning.category is UserWarning)
    return Evaluation(predictive, y, notes, outside, level, seed)


def labeled_rows(frame: pd.DataFrame, target: RegressionTarget | RegressionTargets | ClassTarget) -> LabeledRows:
    """The rows of ``frame`` whose target is known, or all of several; warns if there are others."""
    for name in target.names:
        if name not in frame:
            raise InputError(f"the table has no column {quoted(name)}, which the model predicts: add it")
    several = isinstance(target, RegressionTargets)
    columns, name = list(target.names) if several else target.name, target.name
    known = known_rows(frame[columns], target)
    if not known.any():
        raise InputError(
            f"the target {quoted(name)} is missing in every row, or not written as in training: there is nothing to "
            "evaluate on"
        )
    if not known.all():
        for one in target.targets if isinstance(target, RegressionTargets) else [target]:
            for note in notes_on_unknown(frame[one.name], one):
                warnings.warn(note, UserWarning, stacklevel=2)
        frame = frame[known]
    return LabeledRows(frame.drop(columns=columns), frame[columns])


def text_columns(model: TableEstimator) -> list[str]:
    """The columns, and the target, whose text is read in the format of training."""
    target = model.target_
    targets = target.targets if isinstance(target, RegressionTargets) else [target]
    as_text = [one.name for one in targets if isinstance(one, RegressionTarget) and not one.form.is_plain]
    return [*model.columns_.formats, *as_text]


def score_record(score: Score) -> dict[str, Any]:
    """A score as JSON values, with null for numbers that are not finite."""
    numbers = {"value": score.value, "lower": score.lower, "upper": score.upper}
    return {
        "name": score.name,
        "label": score.label,
        **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
        "level": score.level,
        "better": score.better,
    }


def read_score(entry: Mapping[str, Any]) -> Score:
    """The inverse of :func:`score_record`; a missing bound of a known value is infinite."""
    absent = {"value": math.nan, "lower": -math.inf, "upper": math.inf}
    if entry["value"] is None:
        absent = dict.fromkeys(absent, math.nan)
    value, lower, upper = (absent[key] if entry[key] is None else entry[key] for key in absent)
    return Score(entry["name"], value, lower, upper, entry["level"])


def by_target(model: TableEstimator) -> dict[str, TableEstimator]:
    """The model of each target by its name: the model itself, or the marginals of several targets."""
    if isinstance(model.target_, RegressionTargets):
        assert isinstance(model, Regressor)
        return {name: model.marginal(name) for name in model.target_.names}
    return {model.target_.name: model}


def choose_target(model: TableEstimator, name: str | None) -> TableEstimator:
    """The model of one target; raise ``InputError`` if there are several and none is named, or an unknown one is."""
    models = by_target(model)
    if name is None and len(models) == 1:
        return model
    if name is None or name not in models:
        given = "" if name is None else f", got {quoted(name)}"
        raise InputError(f"choose one of the targets {listed([quoted(n) for n in models])} (--target){given}")
    return models[name]
