"""A run: a model of a table, the rows it has not seen, and what it is worth on them, as one folder."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo import _tensors, io
from credo._files import read_json, to_json, write_folder
from credo._version import __version__
from credo.errors import InputError, LoadError, unknown_name
from credo.metrics import Score, scores
from credo.seeding import check_seed
from credo.tabular.base import TableEstimator
from credo.tabular.classifier import Classifier
from credo.tabular.predictions import true_values
from credo.tabular.reading import FEWEST_ROWS, read_table
from credo.tabular.regressor import Regressor
from credo.tabular.saving import to_files
from credo.tabular.schema import check_run
from credo.tabular.splitting import hold_out
from credo.tabular.targets import ClassTarget, RegressionTarget, Task, guess_task, known_rows
from credo.tabular.wording import counted, quoted
from credo.tabular.writing import folder_for, to_csv

HOLDOUT, RECORD, REPORT = "holdout.csv", "run.json", "report.html"
FILES = (_tensors.TENSORS, io.CARD, HOLDOUT, RECORD, REPORT)
"""What a run folder holds, all of it and nothing else."""

PROOF = io.CARD
"""The one of them that tells a run from any other folder."""

TASKS = ("auto", "regression", "classification")

_NO_REPORT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'">
<title>No report</title>
<p>The model was trained on every row, so there was none left to judge it by. Give it rows that it has not seen:</p>
<pre>credo evaluate RUN TEST.csv --report report.html</pre>
</html>
"""


class Labeled(NamedTuple):
    """Rows whose target is known.

    Attributes:
        X: what is given.
        y: what is to be predicted.
    """

    X: pd.DataFrame
    y: pd.Series


@dataclass(frozen=True, eq=False)
class Run:
    """A model and what it was made from.

    Attributes:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        holdout: the rows that were kept from it, with their target; none, where it was trained on all.
        record: what ``run.json`` holds: source, target, task, method, rows, seed, seconds, version and scores.
    """

    model: TableEstimator
    holdout: pd.DataFrame
    record: dict[str, Any]

    @property
    def scores(self) -> list[Score]:
        """Of the held-out rows."""
        return [_score(entry) for entry in self.record["scores"]]

    def report(self) -> str:
        """The report on the held-out rows, a page of HTML."""
        from credo.report import render

        if self.holdout.empty:
            raise InputError(
                "no rows were held out of this run, so there is none to report on: "
                "use credo evaluate with rows that the model has not seen, and --report"
            )
        rows = labeled(self.holdout, self.model.target_.name)
        return render(self.model, rows.X, rows.y, source=self.record["source"], seed=self.record["seed"])

    def save(self, path: str | Path) -> None:
        """Write the folder ``path``, whole or not at all; only another run is replaced."""
        with folder_for(path, FILES, PROOF):
            report = _NO_REPORT if self.holdout.empty else self.report()
            files = {**to_files(self.model), HOLDOUT: _to_csv(self.holdout)}
            digests = {name: _tensors.digest(files[name]) for name in (_tensors.TENSORS, HOLDOUT)}
            files |= {RECORD: to_json({**self.record, "digests": digests}), REPORT: report.encode()}
            write_folder(path, files)


def fit_run(
    frame: pd.DataFrame,
    target: str,
    *,
    task: str = "auto",
    method: str = "bbb",
    holdout: float = 0.2,
    drop: Sequence[str] = (),
    calibrate: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: bool | None = False,
    source: str = "",
) -> Run:
    """Hold rows of a table out, learn from the others, and score what was learned on those held out.

    Args:
        frame: the table, as :func:`~credo.tabular.reading.read_table` gives it.
        target: the column to predict; rows without it are left out.
        task: ``"regression"``, ``"classification"`` or ``"auto"``, by :func:`~credo.tabular.targets.guess_task`.
        method: one of :func:`credo.tabular.recipes.names`.
        holdout: the share of the rows to hold out; 0 learns from all, and nothing is scored.
        drop: columns to leave out.
        calibrate: as :class:`credo.Regressor` and :class:`credo.Classifier` take it.
        epochs: passes over the table; by default by its size.
        seed: decides everything that is random.
        device: where to train.
        progress: show a bar; ``None``: where there is a terminal.
        source: what the table is called in reports.
    """
    check_seed(seed)
    frame = without(frame, drop, target)
    y = frame[target]
    task, reason = choose_task(y, task)
    apart = _rows_apart(y, task, holdout, seed)
    held_out, training = frame.iloc[apart], frame.iloc[np.delete(np.arange(len(frame)), apart)]
    _to_csv(held_out)  # what could not be saved is refused before training
    kind = Regressor if task == "regression" else Classifier
    model = kind(
        method, epochs=epochs, calibrate=calibrate, device=device, progress=progress, random_state=seed % 2**32
    )
    start = time.perf_counter()
    model.fit(training.drop(columns=target), training[target])
    seconds = time.perf_counter() - start
    on_holdout = evaluate(model, labeled(held_out, target), seed=seed) if len(held_out) else []
    record = {
        "source": source,
        "target": target,
        "task": task,
        "task_reason": reason,
        "method": method,
        "calibrate": calibrate,
        "dropped": list(drop),
        "trained_rows": int(known_rows(training[target]).sum()),
        "held_out_rows": len(held_out),
        "rows_held_out": [int(row) for row in apart],
        "seed": seed,
        "seconds": round(seconds, 2),
        "credo": __version__,
        "scores": [score_record(score) for score in on_holdout],
    }
    return Run(model, held_out, record)


def open_run(path: str | Path) -> Run:
    """The run in a folder that :meth:`Run.save` wrote."""
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
    holdout = read_table(folder / HOLDOUT, target=model.target_.name) if rows else pd.DataFrame()
    if len(rows) != len(holdout):
        raise LoadError(f"{folder / HOLDOUT} does not hold the {counted(len(rows), 'row')} that {RECORD} lists")
    return Run(model, holdout.set_axis(rows, axis=0), record)


def load_model(path: str | Path) -> TableEstimator:
    """The model of a table in a folder that :meth:`Run.save`, or ``save`` of an estimator, wrote."""
    model = io.load(path)
    if not isinstance(model, TableEstimator):
        raise LoadError(
            f"{path} holds a {type(model).__name__} of a network, not a model of a table: use credo.load in Python"
        )
    return model


def evaluate(model: TableEstimator, rows: Labeled, level: float = 0.95, seed: int = 0) -> list[Score]:
    """The scores of a model on rows whose target is known, by :func:`credo.metrics.scores`."""
    truth = true_values(model.target_, rows.y)
    return scores(model.predict_dist(rows.X), truth, level, seed=seed)


def labeled(frame: pd.DataFrame, target: str) -> Labeled:
    """The rows of ``frame`` whose target is known; warns of others."""
    if target not in frame:
        raise InputError(f"the table has no column {quoted(target)}, which the model predicts: add it")
    known = known_rows(frame[target])
    if not known.any():
        raise InputError(f"the target {quoted(target)} is missing in every row: there is nothing to judge by")
    if not known.all():
        gaps = f"{(~known).sum():,} of {counted(len(frame), 'row')}"
        warnings.warn(f"Left out, because the target is missing: {gaps}.", UserWarning, stacklevel=2)
        frame = frame[known]
    return Labeled(frame.drop(columns=target), frame[target])


def without(frame: pd.DataFrame, drop: Sequence[str], target: str) -> pd.DataFrame:
    """``frame`` without some columns, which must be there and not be the target."""
    for name in drop:
        if name not in frame:
            raise unknown_name("column to drop", name, frame.columns)
    if target not in frame or target in drop:
        raise InputError(f"the target {quoted(target)} must be a column of the table, and not dropped")
    return frame.drop(columns=list(drop))


def choose_task(y: pd.Series, task: str = "auto") -> tuple[Task, str]:
    """The task, and in half a sentence why it is that one."""
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    if task != "auto":
        return cast(Task, task), "as was asked for"
    guess, known = guess_task(y), y.dropna()
    different = counted(known.nunique(), "different value")
    content = f"{_content(known, guess)}, {different} in {counted(len(known), 'row')}"
    return guess, f"because {quoted(y.name)} holds {content}"


def score_record(score: Score) -> dict[str, Any]:
    """A score as JSON holds it, with null for what is not finite."""
    numbers = {"value": score.value, "lower": score.lower, "upper": score.upper}
    return {
        "name": score.name,
        "label": score.label,
        **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
        "level": score.level,
        "better": score.better,
    }


def _score(entry: Mapping[str, Any]) -> Score:
    """The inverse of :func:`score_record`; a bound of a known value that is not there is infinite."""
    absent = {"value": math.nan, "lower": -math.inf, "upper": math.inf}
    if entry["value"] is None:
        absent = dict.fromkeys(absent, math.nan)
    value, lower, upper = (absent[key] if entry[key] is None else entry[key] for key in absent)
    return Score(entry["name"], value, lower, upper, entry["level"])


def _content(known: pd.Series, task: Task) -> str:
    """What a target holds, in a word or two."""
    if task == "regression":
        return "numbers"
    if pd.api.types.is_bool_dtype(known.infer_objects().dtype):
        return "truth values"
    return "integers" if pd.api.types.is_numeric_dtype(known.dtype) else "text"


def _rows_apart(y: pd.Series, task: str, share: float, seed: int) -> NDArray[np.intp]:
    """The positions of the rows to hold out, after a look at all targets."""
    known = known_rows(y).nonzero()[0]
    target = RegressionTarget.learn(y) if task == "regression" else ClassTarget.learn(y)
    if len(known) < FEWEST_ROWS:
        raise InputError(
            f"the target {quoted(y.name)} is known in {counted(len(known), 'row')}, but at least {FEWEST_ROWS} are "
            "needed: add some"
        )
    classes = target.encode(y.iloc[known]) if isinstance(target, ClassTarget) else None
    return known[hold_out(len(known), share, seed, classes)]


def _to_csv(frame: pd.DataFrame) -> bytes:
    """``frame`` as CSV that reads back as the same values: all digits, durations in days."""
    durations = {name: frame[name] / pd.Timedelta(days=1) for name in frame.select_dtypes("timedelta")}
    return to_csv(frame.assign(**durations)).encode()
