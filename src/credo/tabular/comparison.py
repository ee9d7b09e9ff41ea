"""Which method suits a table: all of them on the same parts of it, and whether the difference means anything."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._files import to_json, write_folder
from credo._version import __version__
from credo.errors import InputError, unknown_name
from credo.metrics import Score, scores
from credo.predictive import Predictive
from credo.tabular import recipes
from credo.tabular.classifier import Classifier
from credo.tabular.columns import Columns
from credo.tabular.predictions import true_values
from credo.tabular.regressor import Regressor
from credo.tabular.runs import score_record
from credo.tabular.splitting import folds as split
from credo.tabular.targets import ClassTarget, RegressionTarget, Task, known_rows
from credo.tabular.wording import listed, quoted
from credo.tabular.writing import folder_for

RECORD, REPORT = "compare.json", "report.html"
FILES = (RECORD, REPORT)
"""What the folder of a comparison holds, both and nothing else."""

CLEAR = 2.0
"""Standard errors from which on a difference counts as one: chance alone goes beyond them once in twenty times."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method predicted for every row, from models that had not seen it.

    Attributes:
        name: as ``method=`` takes it.
        title: as tables show it.
        scores: of all rows together, with confidence intervals.
        fold_nll: the mean −log p(y) of each part.
        seconds: to train and predict, all parts together.
        predictive: of all rows, in the order of the table.
    """

    name: str
    title: str
    scores: list[Score]
    fold_nll: list[float]
    seconds: float
    predictive: Predictive

    @property
    def nll(self) -> float:
        """The mean −log p(y) of all rows, by which methods are ranked."""
        return next(score.value for score in self.scores if score.name == "nll")


@dataclass(frozen=True)
class Gap:
    """How far a method is behind the best one.

    Attributes:
        name: of the method.
        title: as tables show it.
        mean: of the differences of log p(y) between the best method and this one, row by row, in nats.
        standard_error: of that mean; NaN where a difference is infinite, or there is one row.
    """

    name: str
    title: str
    mean: float
    standard_error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than :data:`CLEAR` standard errors, or infinite."""
        return self.mean == math.inf or self.mean > CLEAR * self.standard_error

    @property
    def shown(self) -> str:
        """Mean ± standard error, with the digits that the error allows."""
        if not math.isfinite(self.mean):
            return "∞"
        digits = 2 if not self.standard_error > 0 else max(1 - math.floor(math.log10(self.standard_error)), 0)
        return f"{self.mean:.{digits}f} ± {self.standard_error:.{digits}f}"

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return f"{self.title} without bound, for it held a target for impossible"
        return f"{self.title} by {self.shown}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods, compared on the same rows by cross-validation.

    Attributes:
        task: ``"regression"`` or ``"classification"``.
        target: the column that was predicted.
        n_rows: how many rows were predicted.
        folds: the number of parts; each was predicted by a model trained on the others.
        y: the targets of all rows ``[n_rows]``, in the order of the table; positions among the classes.
        results: one a method.
    """

    task: Task
    target: str
    n_rows: int
    folds: int
    y: Tensor
    results: list[MethodResult]

    @property
    def best(self) -> MethodResult:
        """The method with the lowest mean −log p(y)."""
        return min(self.results, key=lambda result: math.inf if math.isnan(result.nll) else result.nll)

    @cached_property
    def gaps(self) -> list[Gap]:
        """How far each of the other methods is behind the best, the nearest first.

        Every method predicts the same rows, and rows are hard or easy for all of them alike. So the differences
        d_n = log p_best(y_n) − log p(y_n) are averaged, and the standard error of their mean is that of the d_n,
        s/√N, often far below what the two scores' own intervals suggest. It takes rows for independent, which those
        of one fold, predicted by one trained model, are not quite.

        References:
            T. G. Dietterich. Approximate statistical tests for comparing supervised classification learning
            algorithms. Neural Computation 10(7), 1998.
            Y. Bengio, Y. Grandvalet. No unbiased estimator of the variance of k-fold cross-validation. JMLR 5, 2004.
        """
        best = self.best
        reference = best.predictive.log_prob(self.y)
        others = (result for result in self.results if result is not best)
        return sorted((self._gap(reference, result) for result in others), key=lambda gap: gap.mean)

    @property
    def verdict(self) -> str:
        """Which method predicts best, and whether that is more than chance, in words."""
        best, gaps = self.best, self.gaps
        if not gaps:
            return f"Only {best.title} was tried, so there is nothing to compare it with."
        rivals = [gap.title for gap in gaps if not gap.is_clear]
        if rivals:
            opening = (
                f"{best.title} comes out first, but that may be chance: it is less than {CLEAR:g} standard errors "
                f"ahead of {' and '.join(rivals)}."
            )
        else:
            opening = f"{best.title} predicts best, beyond what chance explains."
        return (
            f"{opening} Behind it in mean log likelihood, in nats a row: {'; '.join(map(str, gaps))} "
            f"(± standard error of the paired differences over {self.n_rows:,} rows)."
        )

    def record(self) -> dict[str, Any]:
        """What ``compare.json`` holds: all numbers, but for the predictions."""
        return {
            "target": self.target,
            "task": self.task,
            "rows": self.n_rows,
            "folds": self.folds,
            "best": self.best.name,
            "verdict": self.verdict,
            "gaps": [asdict(gap) for gap in self.gaps],
            "results": [
                {
                    "name": result.name,
                    "title": result.title,
                    "seconds": round(result.seconds, 2),
                    "fold_nll": result.fold_nll,
                    "scores": [score_record(score) for score in result.scores],
                }
                for result in self.results
            ],
            "credo": __version__,
        }

    def save(self, path: str | Path) -> None:
        """Write the folder ``path`` with ``compare.json`` and ``report.html``, whole or not at all."""
        from credo.report import render_comparison

        with folder_for(path, FILES, RECORD):
            write_folder(path, {RECORD: to_json(self.record()), REPORT: render_comparison(self).encode()})

    def _gap(self, reference: Tensor, result: MethodResult) -> Gap:
        difference = (reference - result.predictive.log_prob(self.y)).double()
        error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else math.nan
        return Gap(result.name, result.title, float(difference.mean()), error)


def compare(
    frame: pd.DataFrame,
    target: str,
    *,
    task: Task,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Predict every row of a table by every method, each time from a model trained on other rows.

    The parts are the same for all methods. What is worth a note about the table is warned of once.

    Args:
        frame: the table, as :func:`~credo.tabular.reading.read_table` gives it.
        target: the column to predict; rows without it are left out, and so are classes of a single row, which cannot
            be both learned and tested.
        task: ``"regression"`` or ``"classification"``.
        methods: some of :func:`credo.tabular.recipes.names`; ``None`` is all of them.
        folds: into how many parts the table is cut.
        epochs: passes over the table in each training; by default by its size.
        seed: decides everything that is random.
        device: where to train.
        progress: told in a few words what is being done.
    """
    chosen = [recipes.get(name) for name in dict.fromkeys(methods or recipes.names())]
    if target not in frame:
        raise unknown_name("target", target, frame.columns)
    learned = RegressionTarget.learn(frame[target]) if task == "regression" else ClassTarget.learn(frame[target])
    _warn([*learned.notes, *Columns.learn(frame.drop(columns=target)).notes])
    rows = frame[known_rows(frame[target])]
    if isinstance(learned, ClassTarget):
        rows, learned = _without_lonely_classes(rows, target, learned)
    truth = true_values(learned, rows[target])
    parts = split(len(rows), folds, seed, truth.numpy() if isinstance(learned, ClassTarget) else None)
    results = []
    for recipe in chosen:
        estimator = (Regressor if task == "regression" else Classifier)(
            recipe.name, epochs=epochs, device=device, random_state=seed % 2**32
        )
        results.append(_cross_validate(estimator, recipe.title, rows, target, truth, parts, progress))
    return Comparison(task, target, len(rows), folds, truth, results)


def _cross_validate(
    estimator: Regressor | Classifier,
    title: str,
    rows: pd.DataFrame,
    target: str,
    truth: Tensor,
    parts: list[NDArray[np.intp]],
    progress: Callable[[str], None],
) -> MethodResult:
    start = time.perf_counter()
    pieces = []
    for k, part in enumerate(parts):
        progress(f"{title}, fold {k + 1} of {len(parts)}")
        training, test = rows.iloc[np.delete(np.arange(len(rows)), part)], rows.iloc[part]
        with _notes_said_before():
            estimator.fit(training.drop(columns=target), training[target])
            pieces.append(estimator.predict_dist(test.drop(columns=target)))
    seconds = time.perf_counter() - start
    in_table_order = torch.from_numpy(np.argsort(np.concatenate(parts)))
    predictive = Predictive.concatenate(pieces)[in_table_order]
    log_p = predictive.log_prob(truth)
    fold_nll = [-float(log_p[part].mean()) for part in parts]
    progress(f"{title}, scores")
    return MethodResult(estimator.method, title, scores(predictive, truth), fold_nll, seconds, predictive)


def _without_lonely_classes(rows: pd.DataFrame, target: str, learned: ClassTarget) -> tuple[pd.DataFrame, ClassTarget]:
    positions = learned.encode(rows[target])
    lonely = np.bincount(positions) == 1
    if not lonely.any():
        return rows, learned
    labels = [quoted(label) for label in learned.classes[lonely]]
    _warn([f"Left out of the comparison, because a class of one row cannot be learned and tested: {listed(labels)}."])
    rows = rows[~lonely[positions]]
    if (~lonely).sum() < 2:
        raise InputError(f"the target {quoted(target)} holds no two classes of two rows or more: there is no comparing")
    return rows, ClassTarget.learn(rows[target])


@contextmanager
def _notes_said_before() -> Iterator[None]:
    """Keep quiet what every fold would note about its part of the table."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"credo\.tabular")
        yield


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
