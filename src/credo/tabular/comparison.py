"""Methods compared on a table by cross-validation, with standard errors of their differences."""

from __future__ import annotations

import importlib
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
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from credo._files import to_json, write_folder
from credo._text import listed, quoted
from credo._version import __version__
from credo.errors import InputError, unknown_name
from credo.metrics import Score, scores
from credo.predictive import Predictive
from credo.tabular import methods as registry
from credo.tabular.columns import Columns
from credo.tabular.estimators import Classifier, Regressor
from credo.tabular.evaluations import score_record
from credo.tabular.files import reserve_folder
from credo.tabular.likelihoods import candidates
from credo.tabular.predictions import true_values
from credo.tabular.readings import find_dialect
from credo.tabular.splitting import RowDetails, read_details, split_folds
from credo.tabular.targets import ClassTarget, RegressionTarget, TaskType, known_rows

RECORD, REPORT = "compare.json", "report.html"
FILES = (RECORD, REPORT)
"""The files of a comparison folder."""

CLEAR = 2.0
"""A difference of more standard errors than this is clear: chance alone exceeds it once in twenty times."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """The cross-validated predictions of one method.

    Attributes:
        name: its name in ``method=``.
        title: its name in tables.
        scores: the scores over all rows, with confidence intervals.
        fold_nll: the mean −log p(y) of each fold.
        seconds: the time to train and predict, over all folds.
        predictive: the predictions of all rows, in the order of the table.
    """

    name: str
    title: str
    scores: list[Score]
    fold_nll: list[float]
    seconds: float
    predictive: Predictive

    @property
    def nll(self) -> float:
        """The mean −log p(y) over all rows, by which methods are ranked."""
        return next(score.value for score in self.scores if score.name == "nll")


@dataclass(frozen=True)
class Gap:
    """The difference in log likelihood between the best method and another one.

    Attributes:
        name: the name of the other method.
        title: its name in tables.
        mean: the mean over rows of the difference of log p(y), in nats.
        standard_error: the standard error of that mean; NaN if a difference is infinite, or there is one row.
    """

    name: str
    title: str
    mean: float
    standard_error: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than :data:`CLEAR` standard errors, or infinite."""
        return self.mean == math.inf or self.mean > CLEAR * self.standard_error

    @property
    def shown(self) -> str:
        """Mean ± standard error, rounded to the precision of the error."""
        if not math.isfinite(self.mean):
            return "∞"
        digits = 2 if not self.standard_error > 0 else max(1 - math.floor(math.log10(self.standard_error)), 0)
        return f"{self.mean:.{digits}f} ± {self.standard_error:.{digits}f}"

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return f"{self.title} by infinity, because it gave a target zero probability"
        return f"{self.title} by {self.shown}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods compared on the same rows by cross-validation.

    Attributes:
        task: ``"regression"`` or ``"classification"``.
        target: the column that was predicted.
        n_rows: the number of rows that were predicted.
        folds: the number of folds; each was predicted by a model trained on the others, or on those before it.
        y: the targets of these rows ``[n_rows]``, in the order of the table; positions among the classes.
        results: one per method.
        split: how rows were split into folds, in words.
    """

    task: TaskType
    target: str
    n_rows: int
    folds: int
    y: Tensor
    results: list[MethodResult]
    split: str = "at random"

    @property
    def best(self) -> MethodResult:
        """The method with the lowest mean −log p(y)."""
        return min(self.results, key=lambda result: math.inf if math.isnan(result.nll) else result.nll)

    @cached_property
    def gaps(self) -> list[Gap]:
        """The differences between the best method and each of the others, in ascending order.

        All methods predict the same rows, which are hard or easy for all of them alike. So the standard error is that
        of the paired differences d_n = log p_best(y_n) − log p(y_n), s/√N, often far below what the intervals of the
        two scores suggest. It assumes independent rows, which those of one fold, predicted by one trained model, are
        not exactly.

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
        """Which method predicts best, and whether the difference is clear, in words."""
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
            f"{opening} Behind it in mean log likelihood, in nats per row: {'; '.join(map(str, gaps))} "
            f"(± standard error of the paired differences over {self.n_rows:,} rows)."
        )

    def record(self) -> dict[str, Any]:
        """The content of ``compare.json``: all numbers except the predictions."""
        return {
            "target": self.target,
            "task": self.task,
            "rows": self.n_rows,
            "folds": self.folds,
            "split": self.split,
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
        """Write ``compare.json`` and ``report.html`` to the folder ``path``, completely or not at all."""
        render_comparison = importlib.import_module("credo.report").render_comparison  # it imports this package
        with reserve_folder(path, FILES, RECORD):
            write_folder(path, {RECORD: to_json(self.record()), REPORT: render_comparison(self).encode()})

    def _gap(self, reference: Tensor, result: MethodResult) -> Gap:
        difference = (reference - result.predictive.log_prob(self.y)).double()
        error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else math.nan
        return Gap(result.name, result.title, float(difference.mean()), error)


def compare(
    frame: pd.DataFrame,
    target: str,
    *,
    task: TaskType,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    group: str | None = None,
    time: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    n_jobs: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Cross-validate methods on a table, with the same folds for all of them.

    Args:
        frame: the table, from :func:`~credo.tabular.files.read_table`.
        target: the column to predict. Rows without it are left out, and so are classes with a single row, which cannot
            be both trained on and tested.
        task: ``"regression"`` or ``"classification"``.
        methods: some of :func:`credo.tabular.methods.names`; ``None``: all that are trained in epochs. Samplers,
            which take much longer, are compared if they are named.
        folds: the number of folds.
        group: a column of groups: no group is both trained on and tested, and the column is no feature.
        time: a column of numbers or dates: every fold is predicted from the rows before it, the first rows not at all.
        epochs: passes over the table in each training; ``None``: chosen by its size.
        seed: the seed of everything random.
        device: the device for training; ``None``: chosen automatically.
        n_jobs: the number of folds that are trained at once, as in scikit-learn: ``None`` is 1 or what the backend of
            joblib says, -1 is all processors. Results do not depend on it.
        progress: called with a description of each step.

    Returns:
        The comparison. Notes about the table are issued as warnings once.

    Raises:
        InputError: if the table, the target or an argument cannot be used.
    """
    trained = [name for name in registry.names() if registry.get(name).has_epochs]
    chosen = [registry.get(name) for name in dict.fromkeys(methods or trained)]
    if target not in frame:
        raise unknown_name("target", target, frame.columns)
    details = read_details(frame, target, group, time)
    frame = frame.drop(columns=[] if group is None else [group])
    frame = find_dialect(frame).attach(frame.copy(deep=False))
    learned = RegressionTarget.learn(frame[target]) if task == "regression" else ClassTarget.learn(frame[target])
    _warn([*learned.notes, *Columns.learn(frame.drop(columns=target)).notes])
    known = known_rows(frame[target], learned)
    rows, details = frame[known], details.take(known)
    if isinstance(learned, ClassTarget):
        rows, details, learned = _drop_single_row_classes(rows, details, target, learned)
    y = true_values(learned, rows[target])
    parts = split_folds(len(rows), folds, seed, y.numpy() if isinstance(learned, ClassTarget) else None, details)
    tested = np.sort(np.concatenate(parts))
    results: list[MethodResult] = []
    likelihood = "auto"
    for method in chosen:
        settings: dict[str, Any] = {"epochs": epochs, "device": device, "random_state": seed % 2**32}
        if task == "regression":
            estimator: Regressor | Classifier = Regressor(method.name, likelihood=likelihood, **settings)
        else:
            estimator = Classifier(method.name, **settings)
        results.append(_cross_validate(estimator, method.title, rows, target, y, parts, details, n_jobs, progress))
        likelihood = getattr(estimator, "likelihood", likelihood)
    return Comparison(task, target, len(tested), folds, y[tested], results, details.describe(group or time))


def _cross_validate(
    estimator: Regressor | Classifier,
    title: str,
    rows: pd.DataFrame,
    target: str,
    y: Tensor,
    parts: list[NDArray[np.intp]],
    details: RowDetails,
    n_jobs: int | None,
    progress: Callable[[str], None],
) -> MethodResult:
    start = time.perf_counter()

    def fold(k: int) -> tuple[Any, ...]:
        progress(f"{title}, fold {k + 1} of {len(parts)}")
        return clone(estimator), rows, target, y, parts[k], details

    first, name = _predict_fold(*fold(0))
    if name is not None:
        estimator.set_params(likelihood=name)
    others = Parallel(n_jobs=n_jobs)(delayed(_predict_fold)(*fold(k)) for k in range(1, len(parts)))
    predictives = [first, *(predictive for predictive, _ in others)]
    seconds = time.perf_counter() - start
    fold_nll = [-float(p.log_prob(y[part]).mean()) for p, part in zip(predictives, parts, strict=True)]
    tested = np.concatenate(parts)
    predictive = Predictive.concatenate(predictives)[torch.from_numpy(np.argsort(tested))]
    progress(f"{title}, scores")
    found = scores(predictive, y[np.sort(tested)])
    return MethodResult(estimator.method, title, found, fold_nll, seconds, predictive)


def _predict_fold(
    estimator: Regressor | Classifier,
    rows: pd.DataFrame,
    target: str,
    y: Tensor,
    part: NDArray[np.intp],
    details: RowDetails,
) -> tuple[Predictive, str | None]:
    """The predictions of a fold by a model of the others, and the likelihood that it chose for all, if it did."""
    trained = details.training_rows(part)
    training, test, known = rows.iloc[trained], rows.iloc[part], details.take(trained)
    name = None
    with _without_notes():
        given = training.drop(columns=target), training[target]
        estimator.fit(*given, groups=known.groups, time=known.time)
        if isinstance(estimator, Regressor) and estimator.likelihood == "auto":
            name = _common_likelihood(estimator, y)
            if name != estimator.family_.name:
                estimator.set_params(likelihood=name).fit(*given, groups=known.groups, time=known.time)
        return estimator.predict_dist(test.drop(columns=target)), name


def _common_likelihood(estimator: Regressor, y: Tensor) -> str:
    """The likelihood for all folds and methods: that of the first fit, if it is possible for all rows.

    The ends of a share can differ between folds, so that their predictions cannot be joined: it is Gaussian.
    """
    name = estimator.family_.name
    return name if name in candidates(y.numpy()) and name != "beta" else "gaussian"


def _drop_single_row_classes(
    rows: pd.DataFrame, details: RowDetails, target: str, learned: ClassTarget
) -> tuple[pd.DataFrame, RowDetails, ClassTarget]:
    positions = learned.encode(rows[target])
    is_single = np.bincount(positions) == 1
    if not is_single.any():
        return rows, details, learned
    labels = [quoted(label) for label in learned.classes[is_single]]
    _warn(
        [f"Left out of the comparison, because a class of one row cannot be trained on and tested: {listed(labels)}."]
    )
    kept = ~is_single[positions]
    rows = rows[kept]
    if (~is_single).sum() < 2:
        raise InputError(
            f"the target {quoted(target)} has fewer than two classes with at least two rows: methods cannot be compared"
        )
    return rows, details.take(kept), ClassTarget.learn(rows[target])


@contextmanager
def _without_notes() -> Iterator[None]:
    """Suppress the notes about the training part of each fold; those about the whole table were issued before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"credo\.tabular")
        yield


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
