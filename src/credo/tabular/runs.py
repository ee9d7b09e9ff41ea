"""A run: a model of a table, the rows held out of its training, and its scores on them, saved as one folder."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo import _tensors, io
from credo._arguments import check_option
from credo._files import read_json, to_json, write_folder
from credo._text import counted, quoted
from credo._version import __version__
from credo.errors import InputError, LoadError, unknown_name
from credo.metrics import Score
from credo.seeding import check_seed
from credo.tabular.base import TableEstimator
from credo.tabular.card_schema import check_run
from credo.tabular.estimators import Classifier, Regressor
from credo.tabular.evaluations import (
    Evaluation,
    LabeledRows,
    by_target,
    choose_target,
    evaluate,
    labeled_rows,
    read_score,
    score_record,
    text_columns,
)
from credo.tabular.files import MIN_ROWS, read_table, reserve_folder, to_csv
from credo.tabular.leakage import check_table
from credo.tabular.likelihoods import candidates
from credo.tabular.readings import find_dialect
from credo.tabular.saving import to_files
from credo.tabular.several_targets import RegressionTargets
from credo.tabular.splitting import RowDetails, hold_out, read_details
from credo.tabular.targets import (
    ClassTarget,
    RegressionTarget,
    TaskType,
    guess_task,
    known_rows,
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

_SEVERAL = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'">
<title>Several targets</title>
<p>The model has several targets, and a report is about one of them:</p>
<pre>credo report RUN --target NAME --out report.html</pre>
</html>
"""


class TaskChoice(NamedTuple):
    """The task and the reason for it, half a sentence."""

    task: TaskType
    reason: str


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
        """The scores on the held-out rows; those of several targets are in :attr:`scores_by_target`."""
        return [] if self.has_several_targets else [read_score(entry) for entry in self.record["scores"]]

    @property
    def scores_by_target(self) -> dict[str, list[Score]]:
        """The scores on the held-out rows, by the name of the target."""
        if not self.has_several_targets:
            return {self.model.target_.name: self.scores}
        return {part["target"]: [read_score(entry) for entry in part["scores"]] for part in self.record["scores"]}

    @property
    def has_several_targets(self) -> bool:
        """Whether there is more than one target."""
        return isinstance(self.model.target_, RegressionTargets)

    def report(self, target: str | None = None) -> str:
        """The report on the held-out rows as HTML, about one ``target`` if there are several."""
        if self.holdout.empty:
            raise InputError(
                "no rows were held out of this run, so there is none to report on: "
                "use credo evaluate with rows that the model was not trained on, and --report"
            )
        model, rows = choose_target(self.model, target), labeled_rows(self.holdout, self.model.target_)
        y = rows.y if isinstance(rows.y, pd.Series) else rows.y[model.target_.name]
        render = importlib.import_module("credo.report").render  # credo.report imports this package
        about = {name: self.record[name] for name in ("source", "split", "seed")}
        page: str = render(model, rows.X, y, evaluation=self.evaluation, **about)
        return page

    def save(self, path: str | Path) -> None:
        """Write the run to the folder ``path``, completely or not at all; only another run is replaced."""
        with reserve_folder(path, FILES, MARKER):
            report = _NO_REPORT if self.holdout.empty else _SEVERAL if self.has_several_targets else self.report()
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
    joint_noise: bool = False,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: bool | None = False,
    source: str = "",
) -> Run:
    """Hold out rows of a table, train on the others, and score the predictions for the held-out rows.

    Args:
        frame: the table, from :func:`~credo.tabular.files.read_table`.
        target: the column to predict, or several with commas between; rows without it are left out.
        task: ``"regression"``, ``"classification"``, ``"auto"`` (by :func:`~credo.tabular.targets.guess_task`), or the
            result of :func:`choose_task`.
        method: ``"auto"``, or one of :func:`credo.tabular.methods.names`.
        holdout: the fraction of the rows to hold out; 0: train on all rows, without scores.
        drop: columns to leave out.
        group: a column of groups, such as patients: rows are held out by whole groups, here and inside training, and
            the column is no feature.
        time: a column of numbers or dates: the last rows are held out, here and inside training; it is a feature too.
        calibrate: as in :class:`credo.Regressor` and :class:`credo.Classifier`.
        joint_noise: as in :class:`credo.Regressor`.
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
    names = target_columns(frame.columns, target)
    for name in names:
        frame = drop_columns(frame, drop if name == names[0] else (), name)
        details = read_details(frame, name, group, time)
    frame = frame.drop(columns=[] if group is None else [group])
    frame = find_dialect(frame).attach(frame)
    columns = names[0] if len(names) == 1 else names
    y = frame[columns]
    choice = task if isinstance(task, TaskChoice) else choose_task(y, task)
    learned: RegressionTarget | RegressionTargets | ClassTarget
    if len(names) > 1:
        learned = RegressionTargets.learn(y)
    else:
        learned = RegressionTarget.learn(y) if choice.task == "regression" else ClassTarget.learn(y)
    positions = _choose_holdout(y, learned, holdout, seed, details)
    for note in _check_tables(frame, learned, positions):
        warnings.warn(note, UserWarning, stacklevel=2)
    others = np.delete(np.arange(len(frame)), positions)
    held_out, training, trained = frame.iloc[positions], frame.iloc[others], details.take(others)
    _to_csv(held_out)  # raises before training if it cannot be saved
    estimator = Regressor if choice.task == "regression" else Classifier
    model: Regressor | Classifier = estimator(
        method, epochs=epochs, calibrate=calibrate, device=device, progress=progress, random_state=seed % 2**32
    )
    if isinstance(model, Regressor):
        model.set_params(
            likelihood="gaussian" if len(names) > 1 else _possible_likelihood(y, training[target]),
            joint_noise=joint_noise,
        )
    start = perf_counter()
    model.fit(training.drop(columns=names), training[columns], groups=trained.groups, time=trained.time)
    seconds = perf_counter() - start
    evaluation = evaluate(model, labeled_rows(held_out, model.target_), seed=seed) if len(held_out) else None
    scores = [] if evaluation is None else _score_records(model, held_out, evaluation, seed)
    for note in evaluation.notes if evaluation else ():
        warnings.warn(note, UserWarning, stacklevel=2)
    record = {
        "source": source,
        "target": model.target_.name,
        "task": choice.task,
        "task_reason": choice.reason,
        "method": model.method_,
        "calibrate": calibrate,
        "dropped": list(drop),
        "split": details.describe(group or time),
        "trained_rows": int(known_rows(training[columns], model.target_).sum()),
        "held_out_rows": len(held_out),
        "rows_held_out": [int(row) for row in positions],
        "seed": seed,
        "seconds": round(seconds, 2),
        "credo": __version__,
        "scores": scores,
    }
    return Run(model, held_out, record, None if len(names) > 1 else evaluation)


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
    holdout = read_table(folder / HOLDOUT, as_text=as_text) if rows else pd.DataFrame()
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


def drop_columns(frame: pd.DataFrame, drop: Sequence[str], target: str) -> pd.DataFrame:
    """``frame`` without the columns ``drop``, which must be there and not include the target."""
    for name in drop:
        if name not in frame:
            raise unknown_name("column to drop", name, frame.columns)
    if target not in frame or target in drop:
        raise InputError(f"the target {quoted(target)} must be a column of the table, and not dropped")
    return frame.drop(columns=list(drop))


def target_columns(columns: Iterable[str], target: str) -> list[str]:
    """The names of the targets: a column, or several with commas between.

    Raises:
        InputError: if there is no such column, or one is named twice.
    """
    known = [str(name) for name in columns]
    names = [target] if target in known else [name.strip() for name in target.split(",")]
    for name in names:
        if name not in known:
            raise unknown_name("target", name, known)
    if len(set(names)) < len(names):
        raise InputError(f"the targets {quoted(target)} name a column twice: name each once")
    return names


def choose_task(y: pd.Series | pd.DataFrame, task: str = "auto") -> TaskChoice:
    """The task for a target: the one that is given, or a guess for ``"auto"``; several targets are quantities."""
    check_option(task, "task", TASKS)
    if isinstance(y, pd.DataFrame):
        for name in y:
            if task == "classification" or (task == "auto" and guess_task(y[name]) == "classification"):
                raise InputError(
                    f"several targets must be quantities, but {quoted(name)} holds classes: predict it by itself, or "
                    "use --task regression"
                )
        return TaskChoice("regression", f"of {y.shape[1]} targets")
    if task != "auto":
        return TaskChoice(cast(TaskType, task), "as requested")
    guess, known = guess_task(y), y.dropna()
    different = counted(known.nunique(), "different value")
    content = f"{_describe_target(known, guess)}, {different} in {counted(len(known), 'row')}"
    return TaskChoice(guess, f"because {quoted(y.name)} holds {content}")


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


def _check_tables(
    frame: pd.DataFrame, target: RegressionTarget | RegressionTargets | ClassTarget, held_out: NDArray[np.intp]
) -> list[str]:
    """The warnings of :func:`check_table`, about each of several targets without the others."""
    if not isinstance(target, RegressionTargets):
        return list(check_table(frame, target, held_out))
    notes: list[str] = []
    for one in target.targets:
        others = [name for name in target.names if name != one.name]
        notes += check_table(frame.drop(columns=others), one, held_out)
    return list(dict.fromkeys(notes))


def _score_records(
    model: TableEstimator, held_out: pd.DataFrame, evaluation: Evaluation, seed: int
) -> list[dict[str, Any]]:
    """The scores as JSON values, by target if there are several."""
    if not isinstance(model.target_, RegressionTargets):
        return [score_record(score) for score in evaluation.scores]
    rows = labeled_rows(held_out, model.target_)
    found = {
        name: evaluate(one, LabeledRows(rows.X, rows.y[name]), seed=seed) for name, one in by_target(model).items()
    }
    return [{"target": name, "scores": [score_record(s) for s in part.scores]} for name, part in found.items()]


def _choose_holdout(
    y: Any, target: RegressionTarget | RegressionTargets | ClassTarget, fraction: float, seed: int, details: RowDetails
) -> NDArray[np.intp]:
    """The positions of the rows to hold out, of those whose target is known."""
    known = known_rows(y, target).nonzero()[0]
    if len(known) < MIN_ROWS:
        raise InputError(
            f"the target {quoted(target.name)} is known in {counted(len(known), 'row')}, but at least {MIN_ROWS} are "
            "needed: add some"
        )
    classes = target.encode(y.iloc[known]) if isinstance(target, ClassTarget) else None
    return known[hold_out(len(known), fraction, seed, classes, details.take(known))]


def _to_csv(frame: pd.DataFrame) -> bytes:
    """``frame`` as CSV that restores the same values: all digits, durations in days."""
    durations = {name: frame[name] / pd.Timedelta(days=1) for name in frame.select_dtypes("timedelta")}
    return to_csv(frame.assign(**durations)).encode()
