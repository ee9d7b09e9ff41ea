"""Conformal intervals and sets of classes from cross-validation: every row trains, and every row calibrates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import _safe_indexing, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from credo._arguments import check_fraction, check_integer
from credo._text import counted, quoted
from credo.errors import InputError
from credo.predictive import ClassPredictive, Interval, Predictive

Floats = NDArray[np.float64]

_MAX_NUMBERS = 2**24  # candidates of one chunk of rows


class _CrossConformal(BaseEstimator):  # type: ignore[misc]
    """The models of all folds, and the score of every row under the model that was not trained on it."""

    models_: list[Any]
    fold_: NDArray[np.intp]
    scores_: Floats
    groups_: NDArray[Any] | None

    def __init__(self, estimator: Any, folds: int = 10, random_state: int | None = 0) -> None:
        self.estimator = estimator
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train one model per fold on the other folds, and score the rows of the fold by it.

        Args:
            X: a data frame or an array ``[N, D]``, as the estimator takes it; rows must be exchangeable.
            y: the targets ``[N]``, none of them missing.
            groups: the group of each row ``[N]``, such as a region: intervals then hold in every group by itself, not
                only on average over them (Mondrian). ``None``: one group.

        Returns:
            The fitted object.

        Raises:
            InputError: if there are fewer rows than folds, or ``groups`` has another number of rows.
        """
        rows = len(y)
        check_consistent_length(X, y)
        folds = check_integer(self.folds, "folds", minimum=2)
        if folds > rows:
            raise InputError(f"folds must be at most the number of rows, {rows}, got {folds}")
        self.groups_ = None if groups is None else np.asarray(groups)
        if self.groups_ is not None and self.groups_.shape != (rows,):
            raise InputError(f"groups must hold one label for each of {counted(rows, 'row')}")
        self.models_, self.fold_, self.scores_ = [], np.zeros(rows, dtype=np.intp), np.zeros(rows)
        for k, (training, test) in enumerate(self._split(y, folds)):
            model = clone(self.estimator).fit(_safe_indexing(X, training), _safe_indexing(y, training))
            self.models_.append(model)
            self.fold_[test] = k
            predictive = model.predict_dist(_safe_indexing(X, test))
            self.scores_[test] = self._score(model, predictive, _safe_indexing(y, test))
        return self

    def _split(self, y: Any, folds: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        shuffled = KFold(folds, shuffle=True, random_state=self.random_state)
        yield from shuffled.split(np.zeros(len(y)))

    def _score(self, model: Any, predictive: Predictive, y: Any) -> Floats:
        raise NotImplementedError

    def _groups_of(self, rows: int, groups: Any) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """For each group, the positions of new rows and of the rows of ``fit`` that calibrate them."""
        if (groups is None) != (self.groups_ is None):
            given = "was given to fit and is needed here" if groups is None else "was not given to fit"
            raise InputError(f"groups {given}: pass the group of each row, or leave it out of both")
        if self.groups_ is None:
            yield np.arange(rows), np.arange(len(self.scores_))
            return
        labels = np.asarray(groups)
        if labels.shape != (rows,):
            raise InputError(f"groups must hold one label for each of {counted(rows, 'row')}")
        for label in np.unique(labels):
            known = np.flatnonzero(self.groups_ == label)
            if not len(known):
                raise InputError(f"the group {quoted(label)} was not in fit, so that nothing is known about its errors")
            yield np.flatnonzero(labels == label), known


class CrossConformalRegressor(_CrossConformal):
    """CV+ intervals: conformal intervals from cross-validation (Barber et al. 2021), with normalized scores.

    Row i of n is scored by the model of its fold, which was trained without it: R_i = |y_i − m_{−i}(x_i)|/σ_{−i}(x_i).
    The interval of level 1 − α at x is

        [ the ⌊α(n + 1)⌋-th smallest of m_{−i}(x) − R_i σ_{−i}(x),
          the ⌈(1 − α)(n + 1)⌉-th smallest of m_{−i}(x) + R_i σ_{−i}(x) ].

    If rows are exchangeable, it contains the target with probability at least 1 − 2α − √(2/n), for any model, and in
    practice about 1 − α. Unlike :class:`SplitConformal`, which guarantees 1 − α, no row is kept from training; there
    are as many models as folds. With one fold per row it is the jackknife+. With ``groups``, only the rows of the same
    group count, and the guarantee holds in every group.

    Args:
        estimator: an estimator with ``fit`` and ``predict_dist``, such as :class:`credo.Regressor`; it is cloned.
        folds: the number of folds K, up to the number of rows.
        random_state: the seed of the folds.

    Attributes:
        models_: the fitted models, one per fold.
        fold_: the fold of each row ``[N]``.
        scores_: the score R of each row ``[N]``.

    Example:
        >>> conformal = credo.calibration.CrossConformalRegressor(credo.Regressor(), folds=5).fit(X, y)
        >>> lower, upper = conformal.predict_interval(X_new, 0.9)

    Reference: R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani. Predictive inference with the jackknife+. Annals
    of Statistics 49(1), 2021.
    """

    def predict_interval(self, X: Any, level: float = 0.95, groups: Any = None) -> Interval:
        """Return intervals for new rows.

        Args:
            X: rows as in :meth:`fit`.
            level: the probability 1 − α, strictly between 0 and 1.
            groups: the group of each row ``[N]``, if :meth:`fit` had groups.

        Returns:
            The ends ``[N]`` each, as tensors.

        Raises:
            InputError: if ``level`` needs more rows than there are, or a group was not in :meth:`fit`.
        """
        import torch

        check_is_fitted(self, "models_")
        level = check_fraction(level, "level")
        predictives = [model.predict_dist(X) for model in self.models_]
        mean, std = (np.stack([np.asarray(getattr(p, name)) for p in predictives]) for name in ("mean", "std"))
        ends = np.empty((2, mean.shape[1]))
        for rows, known in self._groups_of(mean.shape[1], groups):
            rank = _rank(level, len(known))
            score, fold = self.scores_[known], self.fold_[known]
            for part in _chunks(rows, len(known)):
                center, spread = mean[:, part][fold], score[:, None] * std[:, part][fold]
                ends[1, part] = np.partition(center + spread, rank - 1, axis=0)[rank - 1]
                ends[0, part] = -np.partition(spread - center, rank - 1, axis=0)[rank - 1]
        return Interval(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]))

    def _score(self, model: Any, predictive: Predictive, y: Any) -> Floats:
        mean, std = np.asarray(predictive.mean), np.asarray(predictive.std)
        parse = getattr(getattr(model, "target_", None), "parse", None)  # text, as the estimators of tables read it
        values = np.asarray(y, dtype=np.float64) if parse is None else parse(y)
        scores = np.abs(values - mean) / std
        if not np.isfinite(scores).all():
            raise InputError("the errors in standard deviations are not finite: check the targets and the model")
        return np.asarray(scores, dtype=np.float64)


class CrossConformalClassifier(_CrossConformal):
    """Sets of classes from cross-validation: cross-conformal prediction (Vovk 2015).

    Row i of n is scored by the model of its fold, which was trained without it: s_i = 1 − p_{−i}(y_i | x_i). A class c
    is in the set of level 1 − α at x if it is not more surprising than a share α of the rows are:

        (1 + #{i: s_i ≥ 1 − p_{−i}(c | x)}) / (n + 1) > α.

    If rows are exchangeable, the set contains the class of a new row with probability at least 1 − 2α − √(2/n), for any
    model, and in practice about 1 − α (Barber et al. 2021). A set is never empty: the most probable class is in it.
    With ``groups``, the guarantee holds in every group by itself; groups can be the classes themselves only if they are
    known beforehand, as for an audit.

    Args:
        estimator: an estimator with ``fit`` and ``predict_dist``, such as :class:`credo.Classifier`; it is cloned.
        folds: the number of folds K; they are stratified.
        random_state: the seed of the folds.

    Attributes:
        classes_: the labels, in the order of the columns of :meth:`predict_set`.
        models_: the fitted models, one per fold.
        fold_: the fold of each row ``[N]``.
        scores_: the score s of each row ``[N]``.

    Example:
        >>> conformal = credo.calibration.CrossConformalClassifier(credo.Classifier(), folds=5).fit(X, y)
        >>> conformal.predict_set(X_new, 0.9)

    References:
        V. Vovk. Cross-conformal predictors. Annals of Mathematics and Artificial Intelligence 74, 2015.
        R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani. Predictive inference with the jackknife+. Annals of
        Statistics 49(1), 2021.
    """

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order of the columns of :meth:`predict_set`."""
        return np.asarray(self.models_[0].classes_)

    def predict_set(self, X: Any, level: float = 0.95, groups: Any = None) -> NDArray[np.bool]:
        """Return the set of classes of each new row.

        Args:
            X: rows as in :meth:`fit`.
            level: the probability 1 − α, strictly between 0 and 1.
            groups: the group of each row ``[N]``, if :meth:`fit` had groups.

        Returns:
            Booleans ``[N, C]``: whether each of ``classes_`` is in the set.

        Raises:
            InputError: if ``level`` needs more rows than there are, or a group was not in :meth:`fit`.
        """
        check_is_fitted(self, "models_")
        level = check_fraction(level, "level")
        surprise = 1.0 - np.stack([np.asarray(model.predict_dist(X).mean) for model in self.models_])
        inside = np.zeros(surprise.shape[1:], dtype=bool)
        for rows, known in self._groups_of(surprise.shape[1], groups):
            _rank(level, len(known))
            score, fold = self.scores_[known], self.fold_[known]
            for part in _chunks(rows, len(known) * surprise.shape[2]):
                as_surprising = np.zeros((len(part), surprise.shape[2]), dtype=np.int64)
                for k in range(len(self.models_)):
                    ordered = np.sort(score[fold == k])
                    as_surprising += len(ordered) - np.searchsorted(ordered, surprise[k, part], side="left")
                inside[part] = 1 + as_surprising > (1.0 - level) * (len(known) + 1) + 1e-9
        inside[np.arange(len(inside)), surprise.mean(axis=0).argmin(axis=1)] = True
        return inside

    def _split(self, y: Any, folds: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        labels, counts = np.unique(np.asarray(y), return_counts=True)
        if counts.min() < folds:
            rare = quoted(labels[counts.argmin()])
            raise InputError(f"folds must be at most {counts.min()}, the rows of the class {rare}, got {folds}")
        shuffled = StratifiedKFold(folds, shuffle=True, random_state=self.random_state)
        yield from shuffled.split(np.zeros(len(y)), np.asarray(y))

    def _score(self, model: Any, predictive: Predictive, y: Any) -> Floats:
        if not isinstance(predictive, ClassPredictive):
            raise InputError("CrossConformalClassifier is for classes: use CrossConformalRegressor for quantities")
        position = np.searchsorted(model.classes_, np.asarray(y))
        return 1.0 - np.asarray(predictive.mean, dtype=np.float64)[np.arange(len(position)), position]


def _rank(level: float, rows: int) -> int:
    """⌈level·(n + 1)⌉; raise ``InputError`` if it is above n."""
    rank = int(np.ceil(round(level * (rows + 1), 9)))
    if rank > rows:
        needed = int(np.ceil(round(level / (1.0 - level), 9)))
        raise InputError(
            f"an interval or set of level {level:g} needs at least {needed} rows, of each group if there are groups, "
            f"got {rows}: lower the level, or merge groups"
        )
    return rank


def _chunks(rows: NDArray[np.intp], cost: int) -> Sequence[NDArray[np.intp]]:
    """``rows`` in parts, such that the candidates of a part, ``cost`` per row, take little memory."""
    return np.array_split(rows, max(1, -(-len(rows) * cost // _MAX_NUMBERS)))
