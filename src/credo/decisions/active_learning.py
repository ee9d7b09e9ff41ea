"""Pool-based active learning: choose the rows to label, refit, repeat."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from credo._arguments import check_bool, check_integer, check_option
from credo._notices import notify
from credo.decisions._models import (
    FitOptionsSource,
    ModelSource,
    child_seed,
    predict,
    predict_jointly,
    row_count,
    take_rows,
)
from credo.decisions.batch_bald import batch_bald
from credo.decisions.uncertainty import uncertainty
from credo.errors import InputError
from credo.predictive import Predictive
from credo.seeding import check_seed, generator

Acquisition: TypeAlias = str | Callable[[Predictive], Tensor]

_BY_ROW = {
    "bald": "mutual_information",
    "entropy": "entropy",
    "variation_ratio": "variation_ratio",
    "variance": "variance",
}
ACQUISITIONS = (*_BY_ROW, "batch_bald", "random")
_EPISTEMIC = ("bald", "batch_bald", "variance")
_MODEL, _FIT, _PREDICT, _SHUFFLE, _BATCH = range(5)
"""The random streams of a learner."""


class ActiveLearner:
    r"""Pool-based active learning with any model: label the rows from which the model learns most.

    A round is ``query`` (which rows to label), your labels, and ``teach`` (refit with them). The acquisition function
    scores the unlabeled rows by the prediction of the current model:

    - ``"bald"``: the mutual information between label and function, H[y] − E_s H[y | f_s] (Houlsby et al. 2011);
    - ``"batch_bald"``: the same for all rows of a batch jointly (Kirsch et al. 2019), for classes, see
      :func:`~credo.decisions.batch_bald`;
    - ``"entropy"``: H[y];
    - ``"variation_ratio"``: 1 − max_c p(c), for classes;
    - ``"variance"``: the variance of the predicted mean over draws;
    - ``"random"``: the baseline;
    - a callable that returns one score per row of a prediction, ``[B]``, higher for rows to label first.

    Until the first ``teach``, rows are queried at random.

    Args:
        model: a method such as ``credo.BayesByBackprop(net)``, an estimator such as ``credo.Classifier()``, or a
            callable without arguments that returns one. It is copied and itself never trained. From scratch, a copy of
            a method starts from the weights that the method has now; a callable can draw new ones.
        pool: the inputs to choose from, rows along dim 0: a tensor, an array, a data frame, or a tuple or mapping of
            tensors.
        acquisition: one of the above.
        batch_size: number of rows per query.
        samples: number of posterior draws for the scores.
        candidates: number of unlabeled rows, drawn at random, that a query scores; ``None``: all.
        warm_start: whether to continue from the weights of the round before, instead of from scratch.
        fit_options: the options of the method's ``fit``, such as ``{"epochs": 100, "lr": 1e-2}``, or ``callable(n)``
            that returns them for n labels, such as ``lambda n: {"epochs": 10_000 // n}``.
        score: ``callable(model)`` evaluated after every fit, for ``history``: an accuracy on test rows, for example.
        seed: makes all rounds reproducible; ``None``: from torch's random state.

    Attributes:
        model: the model of the last round; ``None`` before the first ``teach``.
        labeled: row numbers of the labeled rows in the order of their labels, ``[n]``, int64.
        labels: their labels, ``[n, ...]``.
        history: one entry per round: ``{"labels": n}``, and ``"score"`` if there is one.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> learner = credo.decisions.ActiveLearner(
        ...     credo.MCDropout(net, credo.Categorical()), pool, "bald", fit_options={"epochs": 50}, seed=0
        ... )
        >>> for _ in range(10):
        ...     rows = learner.query()
        ...     learner.teach(rows, ask_an_expert(pool[rows]))
        >>> p = learner.model.predict(x_new)

    References:
        N. Houlsby, F. Huszár, Z. Ghahramani, M. Lengyel. Bayesian active learning for classification and preference
        learning. 2011.
        Y. Gal, R. Islam, Z. Ghahramani. Deep Bayesian active learning with image data. ICML 2017.
    """

    def __init__(
        self,
        model: Any,
        pool: Any,
        acquisition: Acquisition = "bald",
        batch_size: int = 10,
        *,
        samples: int = 100,
        candidates: int | None = None,
        warm_start: bool = False,
        fit_options: FitOptionsSource | None = None,
        score: Callable[[Any], float] | None = None,
        seed: int | None = None,
    ) -> None:
        if not callable(acquisition):
            check_option(acquisition, "acquisition", ACQUISITIONS)
        self.acquisition = acquisition
        self.batch_size = check_integer(batch_size, "batch_size", minimum=1)
        self.samples = check_integer(samples, "samples", minimum=1)
        self.candidates = None if candidates is None else check_integer(candidates, "candidates", minimum=1)
        self.warm_start = check_bool(warm_start, "warm_start")
        self.seed = check_seed(seed)
        self.model: Any = None
        self.labeled = torch.zeros(0, dtype=torch.long)
        self.labels: Any = None
        self.history: list[dict[str, float]] = []
        self._source = ModelSource(model, fit_options)
        self._score = score
        self._pool = _as_table(pool)
        self._size = row_count(self._pool)
        if not self._size:
            raise InputError("the pool is empty; give at least one row")

    @property
    def unlabeled(self) -> Tensor:
        """Row numbers of the pool without a label, ascending, int64."""
        is_labeled = torch.zeros(self._size, dtype=torch.bool)
        is_labeled[self.labeled] = True
        return (~is_labeled).nonzero()[:, 0]

    def query(self, n: int | None = None) -> Tensor:
        """Choose unlabeled rows of the pool to label next.

        Without a ``teach`` in between, the same rows are returned again.

        Args:
            n: number of rows; ``None``: ``batch_size``. Fewer are returned if fewer are unlabeled.

        Returns:
            Row numbers in the pool, the most useful first, ``[n]``, int64.

        Raises:
            InputError: if all rows of the pool are labeled.
            UnsupportedError: if the acquisition is not defined for the model's targets.
        """
        n = self.batch_size if n is None else check_integer(n, "n", minimum=1)
        unlabeled = self.unlabeled
        if not len(unlabeled):
            raise InputError(f"all {self._size} rows of the pool are labeled: there is nothing left to query")
        n = min(n, len(unlabeled))
        # In random order, so that ties are broken at random.
        order = torch.randperm(len(unlabeled), generator=generator(torch.device("cpu"), *self._stream(_SHUFFLE)))
        rows = unlabeled[order]
        if self.model is None or self.acquisition == "random":
            return rows[:n]
        rows = rows[: None if self.candidates is None else max(self.candidates, n)]
        x, seed = take_rows(self._pool, rows), child_seed(*self._stream(_PREDICT))
        if self.acquisition == "batch_bald":
            p = predict_jointly(self.model, x, self.samples, seed)
            selected = batch_bald(p, n, seed=child_seed(*self._stream(_BATCH)))
            best, scores = selected.rows, selected.information
        else:
            scores = self._scores(predict(self.model, x, self.samples, seed)).cpu()
            best = scores.argsort(descending=True, stable=True)[:n]
        if self.acquisition in _EPISTEMIC and not bool(scores.any()):
            notify(
                f"all scores of {self.acquisition!r} are 0, as the model has no epistemic uncertainty: rows are chosen "
                "at random; use a model with a posterior, or acquisition='entropy'"
            )
        return rows[best]

    def teach(self, rows: Any, labels: Any) -> Self:
        """Add labels, and fit a model to all labels so far.

        Args:
            rows: row numbers in the pool, ``[n]``, as returned by :meth:`query` or chosen by you.
            labels: the targets of these rows, ``[n, ...]``, a tensor or array as the model takes them.

        Returns:
            The learner itself.

        Raises:
            InputError: if a row does not exist, occurs twice or is labeled already, or if the numbers of rows and
                labels differ. The learner is unchanged.
        """
        labeled = torch.cat([self.labeled, self._check_rows(rows)])
        labels = labels if isinstance(labels, Tensor) else np.asarray(labels)
        if labels.ndim == 0 or len(labels) != len(labeled) - len(self.labeled):
            raise InputError(
                f"labels must hold one label per row, {len(labeled) - len(self.labeled)}, got shape "
                f"{list(labels.shape)}"
            )
        if self.labels is not None and labels.shape[1:] != self.labels.shape[1:]:
            raise InputError(
                f"labels must have the shape of those before, {list(self.labels.shape[1:])} per row, got "
                f"{list(labels.shape[1:])}"
            )
        labels = labels if self.labels is None else _concatenate(self.labels, labels)
        if self.warm_start and self.model is not None:
            model = copy.deepcopy(self.model)  # the model of this round stays as it is if its fit or score fails
        else:
            model = self._source.new(child_seed(*self._stream(_MODEL)))
        x = take_rows(self._pool, labeled)
        model = self._source.fit(model, x, labels, child_seed(*self._stream(_FIT)))
        entry: dict[str, float] = {"labels": len(labeled)}
        if self._score is not None:
            entry["score"] = float(self._score(model))
        self.model, self.labeled, self.labels = model, labeled, labels
        self.history.append(entry)
        return self

    def run(self, oracle: Any, n_labels: int) -> Self:
        """Query and teach until ``n_labels`` rows are labeled, as in an experiment in which all labels are known.

        Args:
            oracle: the labels of the whole pool, or ``callable(rows)`` that returns those of some rows.
            n_labels: the number of labels at the end.

        Returns:
            The learner itself.

        Raises:
            InputError: if the pool has fewer rows, or ``oracle`` does not match it.
        """
        if check_integer(n_labels, "n_labels", minimum=1) > self._size:
            raise InputError(f"n_labels must be at most the number of rows of the pool, {self._size}, got {n_labels}")
        if not callable(oracle):
            oracle = oracle if isinstance(oracle, Tensor) else np.asarray(oracle)
            if len(oracle) != self._size:
                raise InputError(f"oracle must hold one label per row of the pool, {self._size}, got {len(oracle)}")
        while len(self.labeled) < n_labels:
            rows = self.query(min(self.batch_size, n_labels - len(self.labeled)))
            self.teach(rows, oracle(rows) if callable(oracle) else take_rows(oracle, rows))
        return self

    def _scores(self, p: Predictive) -> Tensor:
        if isinstance(self.acquisition, str):
            return uncertainty(p, _BY_ROW[self.acquisition])
        scores = self.acquisition(p)
        if not isinstance(scores, Tensor) or scores.shape != (len(p),):
            found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(f"acquisition must return a tensor with one score per row, [{len(p)}], got {found}")
        if bool(scores.isnan().any()):
            raise InputError(
                f"acquisition must return numbers, got NaN for {int(scores.isnan().sum())} of {len(p)} rows"
            )
        return scores

    def _check_rows(self, rows: Any) -> Tensor:
        try:
            index = torch.as_tensor(rows).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"rows must be a list of row numbers of the pool, got {rows!r:.100}") from error
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool or not len(index):
            raise InputError(f"rows must be a list of row numbers of the pool, got {rows!r}")
        index = index.long()
        if bool(((index < 0) | (index >= self._size)).any()):
            wrong = int(index[(index < 0) | (index >= self._size)][0])
            raise InputError(f"rows must be between 0 and {self._size - 1}, the rows of the pool, got {wrong}")
        known = torch.isin(index, self.labeled)
        if bool(known.any()):
            raise InputError(f"row {int(index[known][0])} is labeled already: leave it out")
        if len(index.unique()) != len(index):
            raise InputError("rows contain a row twice: give every row once")
        return index

    def _stream(self, use: int) -> tuple[int, int, int]:
        """The seed of one use of randomness in this round."""
        return self.seed, use, len(self.history)


def _as_table(pool: Any) -> Any:
    return np.asarray(pool) if isinstance(pool, list) and not any(isinstance(x, Tensor) for x in pool) else pool


def _concatenate(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second.to(first.device)])
    return np.concatenate([np.asarray(first), np.asarray(second)])
