"""How the calibrator of an estimator gets its rows: held out of training, or predicted out of fold."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone, is_regressor

from credo._arguments import check_fraction, check_integer, check_option
from credo.calibration import Calibrator
from credo.errors import InputError
from credo.predictive import Predictive
from credo.seeding import derive
from credo.tabular.splitting import RowDetails, Rows, split_folds
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

_FOLDS = 5  # the random stream of the folds, after those of the estimator


def new_calibrator(estimator: TableEstimator) -> Calibrator | None:
    """The calibrator that is asked for; ``None`` without calibration.

    Args:
        estimator: the estimator, whose arguments decide.

    Returns:
        An untrained calibrator.

    Raises:
        InputError: if an argument about the calibration is not valid.
    """
    if estimator.calibrate is None:
        return None
    check_option(estimator.calibrate, "calibrate", estimator._calibrators)
    check_fraction(estimator.calibration_fraction, "calibration_fraction")
    if estimator.calibration_folds is not None:
        check_integer(estimator.calibration_folds, "calibration_folds", minimum=2)
    return estimator._calibrators[estimator.calibrate]()


def split_rows(
    estimator: TableEstimator, targets: NDArray[Any], details: RowDetails, calibrator: Calibrator | None
) -> tuple[Rows, Rows]:
    """The rows to train on and those held out for the calibrator; with folds none are.

    Args:
        estimator: the estimator.
        targets: the encoded targets of N rows.
        details: their weights, groups or times.
        calibrator: the calibrator; ``None``: no row is held out.

    Returns:
        The positions of both.

    Raises:
        InputError: if too few rows are held out, or in all, or a class is too rare for folds.
    """
    rows = len(targets)
    training, held_out = np.arange(rows), np.arange(0)
    if calibrator is None:
        return training, held_out
    if estimator.calibration_folds is not None:
        if rows < calibrator.min_rows:
            raise InputError(
                f"calibrate={estimator.calibrate!r} needs at least {calibrator.min_rows} rows, got {rows}: add rows, "
                "or use calibrate=None"
            )
        if isinstance(estimator.target_, ClassTarget) and np.bincount(targets).min() < 2:
            raise InputError(
                "calibration_folds needs at least two rows of every class, so that each can be trained on without the "
                "other: leave rare classes out, or use calibration_fraction"
            )
        return training, held_out
    count = round(estimator.calibration_fraction * rows)
    if 0 < count < rows:
        training, held_out = estimator._hold_out(targets, details, count)
    if len(held_out) < calibrator.min_rows or len(training) < 2:
        raise InputError(
            f"calibrate={estimator.calibrate!r} holds out {estimator.calibration_fraction:.0%} of {rows} rows, "
            f"{len(held_out)}, and needs at least {calibrator.min_rows}: add rows, raise calibration_fraction, or "
            "use calibrate=None"
        )
    return training, held_out


def predict_out_of_fold(
    estimator: TableEstimator, frame: Any, y: Any, targets: NDArray[Any], details: RowDetails
) -> tuple[Rows, Predictive]:
    """Predict each row by a clone of the estimator that is trained on the other folds.

    The clones have the method and the likelihood of the estimator, and learn everything else anew, also how columns are
    encoded. With groups no group is in two folds, and with times a fold is predicted from the rows before it.

    Args:
        estimator: the estimator, trained but for its calibrator.
        frame: the table ``[N, D]``.
        y: the targets ``[N]``, as they were given.
        targets: the encoded targets.
        details: the weights, groups or times of the rows.

    Returns:
        The positions of the predicted rows, and their predictions in this order.

    Raises:
        InputError: if there are too few rows, groups or times for the folds.
    """
    assert estimator.calibration_folds is not None
    classes = targets if isinstance(estimator.target_, ClassTarget) else None
    seed = derive(estimator.seed_, _FOLDS)
    folds = split_folds(len(targets), estimator.calibration_folds, seed, classes, details)
    predictives = []
    for test in folds:
        training = details.training_rows(test)
        model = clone(estimator).set_params(
            calibrate=None, calibration_folds=None, method=estimator.method_, random_state=estimator.seed_ % 2**32
        )
        if is_regressor(estimator):
            model.set_params(likelihood=estimator.family_.name)
        of_fold = details.take(training)
        with warnings.catch_warnings():  # the notes of the estimator have them
            warnings.simplefilter("ignore", UserWarning)
            model.fit(_take(frame, training), _take(y, training), of_fold.weight, of_fold.groups, of_fold.time)
            predictives.append(model.predict_dist(_take(frame, test)))
    return np.concatenate(folds), Predictive.concatenate(predictives)


def _take(table: Any, rows: Rows) -> Any:
    return table.iloc[rows] if isinstance(table, pd.DataFrame | pd.Series) else table[rows]
