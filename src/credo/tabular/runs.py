"""A run: a model of a table, the rows held out of its training, and its scores on them, saved as one folder."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from credo import _tensors, io, metrics
from credo._arguments import check_option
from credo._files import read_json, to_json, write_folder
from credo._text import counted, quoted
from credo._version import __version__
from credo.errors import InputError, LoadError, unknown_name
from credo.metrics import Score
from credo.predictive import Predictive
from credo.seeding import check_seed
from credo.tabular.base import TableEstimator
from credo.tabular.estimators import Classifier, Regressor
from credo.tabular.extrapolation import OutsideRange
from credo.tabular.files import MIN_ROWS, read_table, reserve_folder, to_csv
from credo.tabular.leakage import check_table
from credo.tabular.likelihoods import candidates
from credo.tabular.predictions import true_values
from credo.tabular.readings import find_dialect
from credo.tabular.saving import check_run, to_files
from credo.tabular.splitting import RowDetails, hold_out, read_details
from credo.tabular.targets import (
    ClassTarget,
    RegressionTarget,
    TaskType,
    guess_task,
    known_rows,
    notes_on_unknown,
)

HOLDOUT, RECORD, REPORT = "holdout.csv", "run.json", "report.html"
FILES = (_tensors.TENSORS, io.CARD, HOLDOUT, RECORD, REPORT)
"""The files of a run folder."""

MARKER = io.CARD
"""The file by which a run folder is recognized."""

TASKS = ("auto", "regression", "classification")

_NO_REPORT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'">
<title>No report</title>
<p>The model was trained on every row, so that none are left to evaluate it on. Use rows that it was not trained on:</p>
<pre>credo evaluate RUN TEST.csv --report report.html</pre>
</html>
"""


class TaskChoice(NamedTuple):
    """The task and the reason for it, half a sentence."""

    task: TaskType
    reason: str


class LabeledRows(NamedTuple):
    """Rows whose target is known: the columns ``X`` and the target ``y``."""

    X: pd.DataFrame
    y: pd.Series


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


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted model and its evaluation.

    Attributes:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        holdout: the rows held out of training, with their target; empty if the model was trained on all rows.
        record: the content of ``run.json``: source, target, task, method, rows, seed, seconds, version and scores.
        evaluation: the predictions for the held-out rows; ``None`` if there are none or the run was loaded.
    """

    model: TableEstimator
    holdout: pd.DataFrame
    record: dict[str, Any]
    evaluation: Evaluation | None = None

    @property
    def scores(self) -> list[Score]:
        """The scores on the held-out rows."""
        return [_score(entry) for entry in self.record["scores"]]

    def report(self) -> str:
        """The report on the held-out rows as HTML."""
        if self.holdout.empty:
            raise InputError(
                "no rows were held out of this run, so there is none to report on: "
                "use credo evaluate with rows that the model was not trained on, and --report"
            )
        rows = labeled_rows(self.holdout, self.model.target_)
        render = importlib.import_module("credo.report").render  # credo.report imports this package
        about = {name: self.record[name] for name in ("source", "split", "seed")}
        page: str = render(self.model, rows.X, rows.y, evaluation=self.evaluation, **about)
        return page

    def save(self, path: str | Path) -> None:
        """Write the run to the folder ``path``, completely or not at all; only another run is replaced."""
        with reserve_folder(path, FILES, MARKER):
            report = _NO_REPORT if self.holdout.empty else self.report()
            files = {**to_files(self.model), HOLDOUT: _to_csv(self.holdout)}
            digests = {name: _tensors.digest(files[name]) for name in (_tensors.TENSORS, HOLDOUT)}
            files |= {RECORD: to_json({**self.record, "digests": digests}), REPORT: report.encode()}
            write_folder(path, files)


def fit_run(
    frame: pd.DataFrame,
    target: str,
    *,
    task: str | TaskChoice = "auto",
    method: str = "auto",
    holdout: float = 0.2,
    drop: Sequence[str] = (),
    group: str | None = None,
    time: str | None = None,
    calibrate: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: bool | None = False,
    source: str = "",
) -> Run:
    """Hold out rows of a table, train on the others, and score the predictions for the held-out rows.

    Args:
        frame: the table, from :func:`~credo.tabular.files.read_table`.
        target: the column to predict; rows without it are left out.
        task: ``"regression"``, ``"classification"``, ``"auto"`` (by :func:`~credo.tabular.targets.guess_task`), or the
            result of :func:`choose_task`.
        method: ``"auto"``, or one of :func:`credo.tabular.methods.names`.
        holdout: the fraction of the rows to hold out; 0: train on all rows, without scores.
        drop: columns to leave out.
        group: a column of groups, such as patients: rows are held out by whole groups, here and inside training, and
            the column is no feature.
        time: a column of numbers or dates: the last rows are held out, here and inside training; it is a feature too.
        calibrate: as in :class:`credo.Regressor` and :class:`credo.Classifier`.
        epochs: passes over the table; ``None``: chosen by its size.
        seed: the seed of everything random.
        device: the device for training; ``None``: chosen automatically.
        progress: whether to show a progress bar; ``None``: only in a terminal.
        source: the name of the table in reports.

    Returns:
        The run.

    Raises:
        InputError: if the table, the target or an argument cannot be used.
    """
    check_seed(seed)
    frame = drop_columns(frame, drop, target)
    details = read_details(frame, target, group, time)
    frame = frame.drop(columns=[] if group is None else [group])
    frame = find_dialect(frame).attach(frame)
    y = frame[target]
    choice = task if isinstance(task, TaskChoice) else choose_task(y, task)
    learned = RegressionTarget.learn(y) if choice.task == "regression" else ClassTarget.learn(y)
    positions = _choose_holdout(y, learned, holdout, seed, details)
    for note in check_table(frame, learned, positions):
        warnings.warn(note, UserWarning, stacklevel=2)
    others = np.delete(np.arange(len(frame)), positions)
    held_out, training, trained = frame.iloc[positions], frame.iloc[others], details.take(others)
    _to_csv(held_out)  # raises before training if it cannot be saved
    estimator = Regressor if choice.task == "regression" else Classifier
    model: Regressor | Classifier = estimator(
        method, epochs=epochs, calibrate=calibrate, device=device, progress=progress, random_state=seed % 2**32
    )
    if isinstance(model, Regressor):
        model.set_params(likelihood=_possible_likelihood(y, training[target]))
    start = perf_counter()
    model.fit(training.drop(columns=target), training[target], groups=trained.groups, time=trained.time)
    seconds = perf_counter() - start
    evaluation = evaluate(model, labeled_rows(held_out, model.target_), seed=seed) if len(held_out) else None
    for note in evaluation.notes if evaluation else ():
        warnings.warn(note, UserWarning, stacklevel=2)
    record = {
        "source": source,
        "target": target,
        "task": choice.task,
        "task_reason": choice.reason,
        "method": model.method_,
        "calibrate": calibrate,
        "dropped": list(drop),
        "split": details.describe(group or time),
        "trained_rows": int(known_rows(training[target], model.target_).sum()),
        "held_out_rows": len(held_out),
        "rows_held_out": [int(row) for row in positions],
        "seed": seed,
        "seconds": round(seconds, 2),
        "credo": __version__,
        "scores": [score_record(score) for score in evaluation.scores] if evaluation else [],
    }
    return Run(model, held_out, record, evaluation)


def open_run(path: str | Path) -> Run:
    """Read a run from a folder that :meth:`Run.save` wrote."""
    model = load_model(path)
    folder = Path(path).resolve()
    record = read_json(folder / RECORD)
    try:
        check_run(record)
    except LoadError as error:
        raise LoadError(f"{folder / RECORD} does not describe a run: {error}") from error
    digests = record.pop("digests")
    for name in (_tensors.TENSORS, HOLDOUT):
        _tensors.check_digest(folder / name, digests[name], RECORD)
    task = "regression" if isinstance(model, Regressor) else "classification"
    if (record["target"], record["task"]) != (model.target_.name, task):
        raise LoadError(
            f"{folder / RECORD} describes another run: one of {record['task']} of {quoted(record['target'])}"
        )
    rows = record["rows_held_out"]
    as_text = text_columns(model)
    holdout = read_table(folder / HOLDOUT, target=model.target_.name, as_text=as_text) if rows else pd.DataFrame()
    if len(rows) != len(holdout):
        raise LoadError(f"{folder / HOLDOUT} does not hold the {counted(len(rows), 'row')} that {RECORD} lists")
    return Run(model, holdout.set_axis(rows, axis=0), record)


def load_model(path: str | Path) -> TableEstimator:
    """Load the estimator from a folder that its ``save`` or :meth:`Run.save` wrote."""
    model = io.load(path)
    if not isinstance(model, TableEstimator):
        raise LoadError(
            f"{path} holds a {type(model).__name__} of a network, not a model of a table: use credo.load in Python"
        )
    return model


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


def labeled_rows(frame: pd.DataFrame, target: RegressionTarget | ClassTarget) -> LabeledRows:
    """The rows of ``frame`` whose target is known; warns if there are others."""
    name = target.name
    if name not in frame:
        raise InputError(f"the table has no column {quoted(name)}, which the model predicts: add it")
    known = known_rows(frame[name], target)
    if not known.any():
        raise InputError(
            f"the target {quoted(name)} is missing in every row, or not written as in training: there is nothing to "
            "evaluate on"
        )
    if not known.all():
        for note in notes_on_unknown(frame[name], target):
            warnings.warn(note, UserWarning, stacklevel=2)
        frame = frame[known]
    return LabeledRows(frame.drop(columns=name), frame[name])


def text_columns(model: TableEstimator) -> list[str]:
    """The columns, and the target, whose text is read in the format of training."""
    target = model.target_
    is_text = isinstance(target, RegressionTarget) and not target.form.is_plain
    return [*model.columns_.formats, *([target.name] if is_text else [])]


def drop_columns(frame: pd.DataFrame, drop: Sequence[str], target: str) -> pd.DataFrame:
    """``frame`` without the columns ``drop``, which must be there and not include the target."""
    for name in drop:
        if name not in frame:
            raise unknown_name("column to drop", name, frame.columns)
    if target not in frame or target in drop:
        raise InputError(f"the target {quoted(target)} must be a column of the table, and not dropped")
    return frame.drop(columns=list(drop))


def choose_task(y: pd.Series, task: str = "auto") -> TaskChoice:
    """The task for a target: the one that is given, or a guess for ``"auto"``."""
    check_option(task, "task", TASKS)
    if task != "auto":
        return TaskChoice(cast(TaskType, task), "as requested")
    guess, known = guess_task(y), y.dropna()
    different = counted(known.nunique(), "different value")
    content = f"{_describe_target(known, guess)}, {different} in {counted(len(known), 'row')}"
    return TaskChoice(guess, f"because {quoted(y.name)} holds {content}")


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


def _score(entry: Mapping[str, Any]) -> Score:
    """The inverse of :func:`score_record`; a missing bound of a known value is infinite."""
    absent = {"value": math.nan, "lower": -math.inf, "upper": math.inf}
    if entry["value"] is None:
        absent = dict.fromkeys(absent, math.nan)
    value, lower, upper = (absent[key] if entry[key] is None else entry[key] for key in absent)
    return Score(entry["name"], value, lower, upper, entry["level"])


def _describe_target(known: pd.Series, task: TaskType) -> str:
    """The type of the values of a target."""
    if task == "regression":
        return "numbers"
    if pd.api.types.is_bool_dtype(known.infer_objects().dtype):
        return "booleans"
    return "integers" if pd.api.types.is_numeric_dtype(known.dtype) else "text"


def _possible_likelihood(y: pd.Series, training: pd.Series) -> str:
    """``"auto"``, or ``"gaussian"`` if a held-out target could be impossible for what the training rows allow."""
    target = RegressionTarget.learn(y)
    everything, known = (target.parse(column[known_rows(column, target)]) for column in (y, training))
    return "auto" if candidates(everything) == candidates(known) else "gaussian"


def _choose_holdout(
    y: pd.Series, target: RegressionTarget | ClassTarget, fraction: float, seed: int, details: RowDetails
) -> NDArray[np.intp]:
    """The positions of the rows to hold out, of those whose target is known."""
    known = known_rows(y, target).nonzero()[0]
    if len(known) < MIN_ROWS:
        raise InputError(
            f"the target {quoted(y.name)} is known in {counted(len(known), 'row')}, but at least {MIN_ROWS} are "
            "needed: add some"
        )
    classes = target.encode(y.iloc[known]) if isinstance(target, ClassTarget) else None
    return known[hold_out(len(known), fraction, seed, classes, details.take(known))]


def _to_csv(frame: pd.DataFrame) -> bytes:
    """``frame`` as CSV that restores the same values: all digits, durations in days."""
    durations = {name: frame[name] / pd.Timedelta(days=1) for name in frame.select_dtypes("timedelta")}
    return to_csv(frame.assign(**durations)).encode()
