"""What the two estimators of tables have in common: from rows to a trained, calibrated model, and back to a folder."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from credo import calibration
from credo._estimator import draw_seed, restore_on_error
from credo._threads import one_thread
from credo.errors import InputError, UnsupportedError, unknown_name
from credo.likelihoods import Likelihood
from credo.methods.base import Method, Predictor
from credo.predictive import Predictive
from credo.seeding import derive, seeded
from credo.tabular import recipes
from credo.tabular.columns import Columns, TableRows
from credo.tabular.extrapolation import Extrapolation, OutsideRange
from credo.tabular.splitting import divide
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows
from credo.training.optimizers import adam

_INITIAL, _SPLIT, _TRAINING, _DRAWS = range(4)
"""The random streams of an estimator."""

_FEWEST_TO_STOP_BY = 40  # a tenth of fewer rows says nothing about when to stop
_ROWS_AT_ONCE = 10_000
_WORTH_THREADS = 2**24  # products in a step, from which on threads gain more than they cost


def _can_carry_over(estimator: TableEstimator) -> bool:
    if recipes.get(estimator.method).carry_over is None:
        raise UnsupportedError(
            f"method={estimator.method!r} has no posterior that could become the next prior: use method='bbb'"
        )
    return True


class TableEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """A Bayesian network on a table. See :class:`credo.Regressor` and :class:`credo.Classifier`."""

    columns_: Columns
    target_: RegressionTarget | ClassTarget
    model_: Method
    calibrator_: calibration.Calibrator | None
    extrapolation_: Extrapolation | None
    seed_: int
    named_columns_: bool

    def __init__(
        self,
        method: str = "bbb",
        *,
        hidden: Sequence[int] | None = None,
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.01,
        samples: int = 100,
        calibrate: str | None = None,
        calibration_fraction: float = 0.2,
        method_options: Mapping[str, Any] | None = None,
        device: str | None = None,
        progress: bool | None = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.activation = activation
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.samples = samples
        self.calibrate = calibrate
        self.calibration_fraction = calibration_fraction
        self.method_options = method_options
        self.device = device
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from a table.

        Args:
            X: a data frame with columns of any kind, or an array ``[N, D]``; values may be missing.
            y: the targets ``[N]``.
        """
        with restore_on_error(self):
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> Self:
        recipe = recipes.get(self.method)
        calibrator = self._new_calibrator()
        frame, y = self._check_training(X, y, reset=True)
        self.named_columns_ = isinstance(frame, pd.DataFrame)
        self.seed_ = draw_seed(self.random_state)
        self.target_ = self._learn_target(y)
        frame, y = _with_target(frame, y)
        self.columns_ = Columns.learn(frame)
        for note in self.notes_:
            warnings.warn(note, UserWarning, stacklevel=3)
        rows, targets = self.columns_.read(frame), self._encode_target(y)
        training, held_out = self._split(len(targets), targets, calibrator)
        features = self.columns_.features(rows)
        plan = recipes.Plan.make(len(training), self.epochs, self.batch_size, self.lr, recipe.effort)
        task = recipes.Task(
            features.shape[1], *self._outputs(plan), _widths(self.hidden, plan), activation=self.activation, plan=plan
        )
        with seeded(derive(self.seed_, _INITIAL), torch.device("cpu")):
            model = recipe.build(task, **(self.method_options or {}))
        self._train(model, features[training], targets[training], plan, recipe.stops_early)
        self.extrapolation_ = self._learn_extrapolation(rows.take(training))
        self.calibrator_ = None
        if calibrator is not None:
            calibrator.fit(self._predict(rows.take(held_out)), self._truth(targets[held_out]))
            self.calibrator_ = calibrator
        return self

    @available_if(_can_carry_over)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> Self:
        """Learn from further rows: what was believed so far is the prior, and the old rows are not needed.

        The first call is :meth:`fit`. How columns and targets are scaled is learned then and kept, and so is the
        calibration, which the further rows do not touch.

        Args:
            X: further rows of the same columns.
            y: their targets.
            classes: all classes that may ever come, for a classifier whose first rows do not hold them all.
        """
        with restore_on_error(self):
            if hasattr(self, "model_"):
                return self._fit_further(X, y)
            self._announce_classes(classes)
            return self._fit(X, y)

    def _fit_further(self, X: Any, y: Any) -> Self:
        carry_over = recipes.get(self.method).carry_over
        assert carry_over is not None
        frame, y = _with_target(*self._check_training(X, y, reset=False))
        rows, targets = self.columns_.read(frame), self._encode_target(y)
        features = self.columns_.features(rows)
        plan = recipes.Plan.make(len(targets), self.epochs, self.batch_size, self.lr)
        self._train(carry_over(copy.deepcopy(self.model_).float()), features, targets, plan, stops_early=False)
        self.columns_ = replace(self.columns_, scaling=self.columns_.scaling.widened(rows.values))
        if self.extrapolation_ is not None:
            further = self._learn_extrapolation(rows)
            assert further is not None
            self.extrapolation_ = self.extrapolation_.joined(further)
        return self

    def predict_dist(self, X: Any) -> Predictive:
        """The predictive distribution of every row, in the target's own units or over its classes.

        Its mean, interval, quantiles, epistemic and aleatoric parts are those of :class:`credo.Predictive`; a row's
        prediction does not depend on the rows beside it.
        """
        check_is_fitted(self, "model_")
        return self._predict(self.columns_.read(self._check_new(X)))

    def stream(self, tables: Iterable[Any], outside: OutsideRange | None = None) -> Iterator[Predictive]:
        """:meth:`predict_dist` of one table after the other, in memory for one: for files larger than memory.

        Args:
            tables: as :meth:`predict_dist` takes them.
            outside: counts the rows outside the training range as the tables pass.
        """
        check_is_fitted(self, "model_")
        predictor = self._predictor()
        for table in tables:
            rows = self.columns_.read(self._check_new(table))
            if outside is not None:
                outside.add(self._flags(rows))
            yield self._predict(rows, predictor)

    def outside_range(self, X: Any) -> pd.DataFrame:
        """Which values of numbers and dates lie outside the range that training had, ``[N, columns]`` of truth values.

        Predictions for such rows rest on extrapolation: their epistemic part grows with the distance.
        """
        check_is_fitted(self, "model_")
        flags = self._flags(self.columns_.read(self._check_new(X)))
        return flags.set_axis(X.index, axis=0) if isinstance(X, pd.DataFrame) else flags

    @property
    def notes_(self) -> list[str]:
        """Sentences about what was left out, converted and imputed."""
        return [*self.columns_.notes, *self.target_.notes]

    @property
    def history_(self) -> list[dict[str, float]]:
        """One entry an epoch of the training."""
        check_is_fitted(self, "model_")
        return self.model_.history

    def save(self, path: str | Path) -> None:
        """Write the folder ``path``, whole or not at all; read it back with :func:`credo.load`."""
        from credo._files import write_folder
        from credo.tabular.saving import to_files

        write_folder(path, to_files(self))

    @staticmethod
    @abstractmethod
    def restore_target(config: Mapping[str, Any]) -> RegressionTarget | ClassTarget:
        """The target of a saved estimator."""

    @abstractmethod
    def _learn_target(self, y: Any) -> RegressionTarget | ClassTarget:
        """What the targets are, from all of them."""

    @abstractmethod
    def _encode_target(self, y: Any) -> NDArray[Any]:
        """The targets as the network learns them, ``[N, 1]`` or ``[N]``."""

    @abstractmethod
    def _truth(self, targets: NDArray[Any]) -> torch.Tensor:
        """Encoded targets as :meth:`predict_dist` speaks of them, ``[N]``."""

    @abstractmethod
    def _outputs(self, plan: recipes.Plan) -> tuple[int, Likelihood]:
        """How many numbers the network outputs, and what they mean."""

    @abstractmethod
    def _in_units(self, predictive: Predictive, rows: TableRows, predictor: Predictor) -> Predictive:
        """The network's prediction for ``rows`` in the target's own units, ``[N]``."""

    @abstractmethod
    def _learn_extrapolation(self, rows: TableRows) -> Extrapolation | None:
        """How predictions are to be taken outside the range of the training ``rows``."""

    @property
    @abstractmethod
    def _calibrators(self) -> dict[str, type[calibration.Calibrator]]:
        """The calibrators for this kind of target."""

    def _announce_classes(self, classes: Sequence[Any] | None) -> None:
        """Take note of classes that the first rows may not hold."""

    def _check_training(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        """The table and its targets, checked as scikit-learn does; a data frame keeps its columns."""
        if not isinstance(X, pd.DataFrame):
            rows, targets = validate_data(
                self, X, y, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=2
            )
            return rows, targets
        _, y = validate_data(self, X, y, reset=reset, skip_check_array=True)
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = pd.Series(y) if isinstance(y, list | tuple) else y
        y = column_or_1d(y, warn=True) if isinstance(y, np.ndarray) else y
        check_consistent_length(X, y)
        if len(X) < 2:
            raise InputError(f"a table to learn from needs 2 rows or more, got n_samples = {len(X)}")
        return X, y

    def _check_new(self, X: Any) -> Any:
        """Rows to predict. Columns of a data frame go by name, those of an array by position."""
        if isinstance(X, pd.DataFrame) and self.named_columns_:
            return X
        if isinstance(X, pd.DataFrame):
            warnings.warn(
                f"X has column names, but {type(self).__name__} was fitted without: they go by position",
                UserWarning,
                stacklevel=3,
            )
            X = X.to_numpy()
        return validate_data(self, X, reset=False, dtype=None, ensure_all_finite="allow-nan")

    def _new_calibrator(self) -> calibration.Calibrator | None:
        if self.calibrate is None:
            return None
        if self.calibrate not in self._calibrators:
            raise unknown_name("calibrate", self.calibrate, self._calibrators)
        if not 0.0 < self.calibration_fraction < 1.0:
            raise InputError(
                f"calibration_fraction must lie between 0 and 1, both excluded, got {self.calibration_fraction}"
            )
        return self._calibrators[self.calibrate]()

    def _split(
        self, rows: int, targets: NDArray[Any], calibrator: calibration.Calibrator | None
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The rows to train on and those held out for the calibrator."""
        everything = np.arange(rows)
        if calibrator is None:
            return everything, everything[:0]
        share = round(self.calibration_fraction * rows)
        if share < calibrator.min_rows or share > rows - 2:
            raise InputError(
                f"calibrate={self.calibrate!r} holds out {self.calibration_fraction:.0%} of {rows} rows, {share}, and "
                f"needs {calibrator.min_rows} at least: add rows, raise calibration_fraction, or do without"
            )
        return self._divide(everything, targets, share)

    def _divide(
        self, rows: NDArray[np.intp], targets: NDArray[Any], share: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """``rows`` without ``share`` of them, and those."""
        classes = targets if isinstance(self.target_, ClassTarget) else None
        return divide(rows, share, derive(self.seed_, _SPLIT), classes)

    def _train(
        self, model: Method, features: NDArray[Any], targets: NDArray[Any], plan: recipes.Plan, stops_early: bool
    ) -> None:
        options: dict[str, Any] = {}
        rows = np.arange(len(targets))
        if stops_early and len(rows) >= _FEWEST_TO_STOP_BY:
            rows, watched = self._divide(rows, targets, len(rows) // 10)
            options = {
                "validation": (features[watched], targets[watched]),
                "monitor": "log_likelihood",
                "patience": max(plan.epochs // 5, 5),
            }
        weights = sum(parameter.numel() for parameter in model.parameters())
        with one_thread(weights * plan.batch_size < _WORTH_THREADS):
            model.fit(
                (features[rows], targets[rows]),
                epochs=plan.epochs,
                batch_size=plan.batch_size,
                lr=plan.lr,
                optimizer=adam,  # which the lengths and rates of training were chosen with
                seed=derive(self.seed_, _TRAINING),
                device=self.device,
                progress=self.progress,
                **options,
            )
        # In double precision a row's prediction is the same, to the last digit shown, whatever rows are beside it.
        self.model_ = model.double()

    def _predictor(self) -> Predictor:
        return self.model_._predictor(self.samples, derive(self.seed_, _DRAWS))

    def _predict(self, rows: TableRows, predictor: Predictor | None = None) -> Predictive:
        predictor = predictor or self._predictor()
        predictive = self._in_units(predict_features(predictor, self.columns_.features(rows)), rows, predictor)
        calibrator = getattr(self, "calibrator_", None)
        return predictive if calibrator is None else calibrator(predictive)

    def _flags(self, rows: TableRows) -> pd.DataFrame:
        scaling = self.columns_.scaling
        return pd.DataFrame(scaling.outside(rows.values), columns=list(scaling.names))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def predict_features(predictor: Predictor, features: NDArray[Any]) -> Predictive:
    """What the network predicts, piece by piece, in double precision."""
    pieces = [
        predictor(torch.from_numpy(features[start : start + _ROWS_AT_ONCE]).double()).cpu()
        for start in range(0, max(len(features), 1), _ROWS_AT_ONCE)
    ]
    return pieces[0] if len(pieces) == 1 else Predictive.concatenate(pieces)


def _widths(hidden: object, plan: recipes.Plan) -> tuple[int, ...]:
    if hidden is None:
        return recipes.WIDTHS_FOR_FEW_ROWS if plan.has_few_rows else recipes.WIDTHS
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise InputError(f"hidden must be the widths of the hidden layers, such as (50, 50), got {hidden!r}")
    return tuple(hidden)


def _with_target(frame: Any, y: Any) -> tuple[Any, Any]:
    """The rows of a data frame whose target is known; an array was checked to have them all."""
    known = known_rows(y)
    return (frame, y) if known.all() else (frame[known], y[known])
