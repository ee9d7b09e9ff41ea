"""The base class of :class:`credo.Regressor` and :class:`credo.Classifier`: encode, train, calibrate, predict."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from credo import calibration
from credo._estimator import draw_seed, restore_on_error
from credo.errors import UnsupportedError
from credo.likelihoods import Likelihood
from credo.methods.base import Method, Predictor
from credo.predictive import Predictive
from credo.seeding import derive, seeded
from credo.tabular import automatic, exporting, methods, recalibration
from credo.tabular.columns import Columns, TableRows, as_frame
from credo.tabular.dialects import Dialect
from credo.tabular.extrapolation import Extrapolation, OutsideRange
from credo.tabular.level_effects import Floats, add_effects
from credo.tabular.methods import NetworkSpec, TabularMethod, TrainingPlan
from credo.tabular.readings import find_dialect
from credo.tabular.several_targets import RegressionTargets, as_target_frame, has_several_targets
from credo.tabular.splitting import RowDetails, Rows, select_rows, split_folds
from credo.tabular.target_cells import as_series
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows
from credo.tabular.validation import check_new, check_training

INITIAL, SPLIT, TRAINING, DRAWS, SCREEN, _, LEVELS = range(7)
"""The random streams of an estimator."""

_MIN_ROWS_FOR_EARLY_STOPPING = 40


def _has_partial_fit(estimator: TableEstimator) -> bool:
    method = getattr(estimator, "method_", estimator.method)
    if method != automatic.NAME and methods.get(method).posterior_as_prior is None:
        raise UnsupportedError(f"method={method!r} has no posterior that could be the next prior: use method='bbb'")
    return True


class TableEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """A Bayesian neural network for a table. See :class:`credo.Regressor` and :class:`credo.Classifier`."""

    _target_class: ClassVar[type[RegressionTarget | ClassTarget]]
    _calibrators: ClassVar[Mapping[str, type[calibration.Calibrator]]]

    columns_: Columns
    target_: RegressionTarget | RegressionTargets | ClassTarget
    model_: Method
    method_: str
    method_reason_: str
    calibrator_: calibration.Calibrator | None
    extrapolation_: Extrapolation | None
    seed_: int
    named_columns_: bool

    def __init__(
        self,
        method: str = "auto",
        *,
        hidden: Sequence[int] | None = None,
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.01,
        samples: int = 100,
        calibrate: str | None = None,
        calibration_fraction: float = 0.2,
        calibration_folds: int | None = None,
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
        self.calibration_folds = calibration_folds
        self.method_options = method_options
        self.device = device
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, time: Any = None) -> Self:
        """Train on a table.

        Args:
            X: a data frame with columns of any type, or an array ``[N, D]``; values may be missing.
            y: the targets ``[N]``, or for a regressor several ``[N, K]``; rows without one are left out.
            sample_weight: how often each row counts in training and early stopping ``[N]``: 2 is the row twice, 0
                leaves it out. A calibrator counts its rows once.
            groups: the group of each row ``[N]``, such as a patient: rows held out for early stopping or calibration
                are of groups that are not trained on.
            time: a number or date per row ``[N]``: rows held out are the last ones. Not together with ``groups``.

        Returns:
            The estimator itself.

        Raises:
            InputError: if the table or the target cannot be used, or an argument of the constructor is not valid.
        """
        with restore_on_error(self):
            return self._fit(X, y, sample_weight, groups, time)

    def _fit(self, X: Any, y: Any, *given: Any, further_rows: bool = False) -> Self:
        automatic.check(self)
        calibrator = recalibration.new_calibrator(self)
        frame, y = check_training(self, X, y, reset=True)
        self.named_columns_ = isinstance(frame, pd.DataFrame)
        self.seed_ = draw_seed(self.random_state)
        details = RowDetails.read(len(y), *given)
        frame, y, details = select_rows(frame, y, details, details.used)
        dialect = find_dialect(as_frame(frame), as_target_frame(y) if has_several_targets(y) else as_series(y))
        self.target_ = self._learn_target(y, dialect)
        frame, y, details = select_rows(frame, y, details, known_rows(y, self.target_))
        self.columns_, rows = Columns.learn_and_read(frame, dialect)
        for note in self._table_notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        targets = self._encode_target(y)
        given_details, details = details, self._weigh(targets, details, learn=True)
        training, held_out = recalibration.split_rows(self, targets, details, calibrator)
        scores, seed = self._scores(targets), derive(self.seed_, LEVELS)
        self.columns_, rows = add_effects(self.columns_, rows, as_frame(frame), scores, details, training, seed)
        features = self.columns_.features(rows)
        method, self.method_reason_ = automatic.choose(self, len(training), further_rows)
        self.method_ = method.name
        plan = TrainingPlan.make(len(training), self.epochs, self.batch_size, self.lr, method.step_factor)
        targets = self._choose_likelihood(y, targets, features, training, details, plan)
        outputs, likelihood = self._network_outputs(plan)
        hidden = methods.hidden_layers(self.hidden, plan.rows, method)
        spec = NetworkSpec(features.shape[1], outputs, likelihood, hidden, self.activation, plan, features[training])
        with seeded(derive(self.seed_, INITIAL), torch.device("cpu")):
            model = method.build(spec, **(self.method_options or {}))
        self._train(model, features[training], targets[training], plan, details.take(training), method)
        self.extrapolation_ = self._learn_extrapolation(rows.take(training))
        self._learn_noise(rows.take(training), targets[training])
        self.calibrator_ = None
        if calibrator is not None and self.calibration_folds is None:
            calibrator.fit(self._predict(rows.take(held_out)), self._decode_target(targets[held_out]))
        elif calibrator is not None:
            order, predictive = recalibration.predict_out_of_fold(self, frame, y, targets, given_details)
            calibrator.fit(predictive, self._decode_target(targets[order]))
        self.calibrator_ = calibrator
        return self

    @available_if(_has_partial_fit)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None, sample_weight: Any = None) -> Self:
        """Train on further rows: the current posterior is the prior, and the old rows are not needed.

        The first call is the same as :meth:`fit`. Later calls keep the encoding of columns and target, and the
        calibration. Only a method whose posterior has a density has it: ``"bbb"``, which ``"auto"`` then is.

        Args:
            X: further rows of the same columns.
            y: their targets ``[N]``.
            classes: all classes, for a classifier whose first rows do not contain all of them.
            sample_weight: as in :meth:`fit`.

        Returns:
            The estimator itself.

        Raises:
            InputError: if the rows do not match those of :meth:`fit`.
        """
        with restore_on_error(self):
            if hasattr(self, "model_"):
                return self._fit_further(X, y, sample_weight)
            self._set_classes(classes)
            return self._fit(X, y, sample_weight, further_rows=True)

    def _fit_further(self, X: Any, y: Any, sample_weight: Any) -> Self:
        method = methods.get(self.method_)
        assert method.posterior_as_prior is not None
        frame, y = check_training(self, X, y, reset=False)
        details = RowDetails.read(len(y), sample_weight)
        frame, y, details = select_rows(frame, y, details, details.used & known_rows(y, self.target_))
        rows, targets = self.columns_.read(frame), self._encode_target(y)
        features, details = self.columns_.features(rows), self._weigh(targets, details, learn=False)
        plan = TrainingPlan.make(len(targets), self.epochs, self.batch_size, self.lr)
        model = method.posterior_as_prior(copy.deepcopy(self.model_).float())
        self._train(model, features, targets, plan, details, method)
        self.columns_ = replace(self.columns_, scaling=self.columns_.scaling.widened(rows.values))
        if self.extrapolation_ is not None:
            further = self._learn_extrapolation(rows)
            assert further is not None
            self.extrapolation_ = self.extrapolation_.merge(further)
        return self

    def predict_dist(self, X: Any) -> Predictive:
        """Predict the distribution of the target for every row.

        The prediction of a row does not depend on the other rows.

        Args:
            X: a data frame with the columns of training, in any order, or an array ``[N, D]``.

        Returns:
            A :class:`credo.Predictive` of N rows, in the target's own units or over its classes.

        Raises:
            InputError: if a column is absent or has another type than in training.
        """
        check_is_fitted(self, "model_")
        return self._predict(self.columns_.read(check_new(self, X)))

    def stream(self, tables: Iterable[Any], outside: OutsideRange | None = None) -> Iterator[Predictive]:
        """:meth:`predict_dist` for one table after the other, for data larger than memory.

        Args:
            tables: tables as in :meth:`predict_dist`.
            outside: counts the rows outside the training range; ``None``: they are not counted.

        Yields:
            The predictions, one per table.
        """
        check_is_fitted(self, "model_")
        predictor = self._predictor()
        for table in tables:
            rows = self.columns_.read(check_new(self, table))
            if outside is not None:
                outside.add(self._flags(rows))
            yield self._predict(rows, predictor)

    def outside_range(self, X: Any) -> pd.DataFrame:
        """Find the numbers and dates outside the range of training, where predictions are extrapolations.

        Args:
            X: rows as in :meth:`predict_dist`.

        Returns:
            Booleans ``[N, columns of numbers and dates]``.
        """
        check_is_fitted(self, "model_")
        flags = self._flags(self.columns_.read(check_new(self, X)))
        return flags.set_axis(X.index, axis=0) if isinstance(X, pd.DataFrame) else flags

    @property
    def notes_(self) -> list[str]:
        """Sentences about the method that was chosen, and about what was left out, converted and imputed."""
        check_is_fitted(self, "model_")
        return [*automatic.notes(self), *self._table_notes]

    @property
    def _table_notes(self) -> list[str]:
        return [*self.columns_.notes, *self.target_.notes]

    @property
    def history_(self) -> list[dict[str, float]]:
        """The metrics of training, one entry per epoch."""
        check_is_fitted(self, "model_")
        return self.model_.history

    def save(self, path: str | Path) -> None:
        """Save to a folder that :func:`credo.load` reads.

        Args:
            path: the folder; it is written completely or not at all.

        Raises:
            InputError: if the folder cannot be written, or an argument of the estimator cannot be saved.
        """
        from credo._files import write_folder
        from credo.tabular.saving import to_files

        write_folder(path, to_files(self))

    export = exporting.export

    def _learn_target(self, y: Any, dialect: Dialect) -> RegressionTarget | RegressionTargets | ClassTarget:
        """The target, fitted to all of ``y``."""
        return self._target_class.learn(y, dialect)

    def _set_classes(self, classes: Sequence[Any] | None) -> None:
        """Set the classes of the next :meth:`fit`; ``None``: those in its targets."""

    @abstractmethod
    def _encode_target(self, y: Any) -> NDArray[Any]:
        """The targets as the network is trained on them, ``[N, 1]`` or ``[N]``."""

    @abstractmethod
    def _decode_target(self, targets: NDArray[Any]) -> torch.Tensor:
        """Encoded targets in the units of :meth:`predict_dist`, ``[N]``."""

    @abstractmethod
    def _scores(self, targets: NDArray[Any]) -> Floats:
        """The targets as the effects of levels are learned from them ``[N, T]``."""

    def _weigh(self, targets: NDArray[Any], details: RowDetails, learn: bool) -> RowDetails:
        """The details of the rows, with weights of classes, which are those of training or learned anew."""
        return details

    def _choose_likelihood(
        self,
        y: Any,
        targets: NDArray[Any],
        features: NDArray[Any],
        training: NDArray[np.intp],
        details: RowDetails,
        plan: TrainingPlan,
    ) -> NDArray[Any]:
        """Choose the likelihood by the training rows, and return the targets encoded for it."""
        return targets

    @abstractmethod
    def _network_outputs(self, plan: TrainingPlan) -> tuple[int, Likelihood]:
        """The number of outputs of the network, and the likelihood given them."""

    @abstractmethod
    def _predict_rows(self, rows: TableRows, predictor: Predictor) -> Predictive:
        """The prediction for ``rows`` in the target's own units, ``[N]``, before calibration."""

    @abstractmethod
    def _learn_extrapolation(self, rows: TableRows) -> Extrapolation | None:
        """The variance to add outside the range of the training ``rows``."""

    def _learn_noise(self, rows: TableRows, targets: NDArray[Any]) -> None:
        """Learn what the network does not about the noise, from the training rows and their encoded targets."""

    def _hold_out(self, targets: NDArray[Any], details: RowDetails, count: int) -> tuple[Rows, Rows]:
        """The rows without about ``count`` of them, and those."""
        classes = targets if isinstance(self.target_, ClassTarget) else None
        return details.split(count, derive(self.seed_, SPLIT), classes)

    def _parts(self, targets: NDArray[Any], details: RowDetails, count: int) -> list[Rows]:
        """``count`` parts of the rows, to be held out in turn.

        They are the last tenth every time, if rows have a time, and occur repeatedly if there are fewer groups.
        """
        if details.time is not None:
            return [self._hold_out(targets, details, max(len(targets) // 10, 1))[1]] * count
        groups = len(targets) // 2 if details.groups is None else len(np.unique(details.groups))
        classes = targets if isinstance(self.target_, ClassTarget) and np.bincount(targets).min() > 1 else None
        parts = split_folds(len(targets), min(count, groups), derive(self.seed_, SPLIT), classes, details)
        return [parts[i % len(parts)] for i in range(count)]

    def _train(
        self,
        model: Method,
        features: NDArray[Any],
        targets: NDArray[Any],
        plan: TrainingPlan,
        details: RowDetails,
        method: TabularMethod,
    ) -> None:
        data: methods.Rows = (features, targets) if details.weight is None else (features, targets, details.weight)
        validation: methods.Rows | None = None
        if method.early_stopping and len(targets) >= _MIN_ROWS_FOR_EARLY_STOPPING:
            rows, held_out = self._hold_out(targets, details, len(targets) // 10)
            data, validation = (tuple(part[chosen] for part in data) for chosen in (rows, held_out))
        method.train(
            model,
            data,
            plan,
            validation=validation,
            held_out=[] if method.folds is None else self._parts(targets, details, method.folds(targets)),
            seed=derive(self.seed_, TRAINING),
            device=self.device,
            progress=self.progress,
        )
        # In double precision the prediction of a row does not depend on the other rows, to the last digit shown.
        self.model_ = model.double()

    def _predictor(self) -> Predictor:
        return self.model_._predictor(self.samples, derive(self.seed_, DRAWS))

    def _predict(self, rows: TableRows, predictor: Predictor | None = None) -> Predictive:
        predictive = self._predict_rows(rows, predictor or self._predictor())
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
