"""Tables as users pass them to an estimator, validated as in scikit-learn."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data

from credo.errors import InputError
from credo.tabular.several_targets import as_target_frame, has_several_targets

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator


def check_training(estimator: TableEstimator, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
    """The table and its targets; a data frame keeps its columns.

    Args:
        estimator: the estimator, which learns the number and names of the columns.
        X: a data frame, or an array ``[N, D]``.
        y: the targets ``[N]``, or several ``[N, K]``.
        reset: whether the columns are learned or compared with those of an earlier table.

    Returns:
        The data frame or array, and the targets.

    Raises:
        InputError: if there are no targets, or fewer than 2 rows.
    """
    several = has_several_targets(y)
    if not isinstance(X, pd.DataFrame) and several:
        rows = validate_data(estimator, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=2)
        check_consistent_length(rows, y)
        return rows, as_target_frame(y)
    if not isinstance(X, pd.DataFrame):
        rows, targets = validate_data(
            estimator, X, y, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=2
        )
        return rows, targets
    _, y = validate_data(estimator, X, y, reset=reset, skip_check_array=True)
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    y = as_target_frame(y) if several else pd.Series(y) if isinstance(y, list | tuple) else y
    y = column_or_1d(y, warn=True) if isinstance(y, np.ndarray) else y
    check_consistent_length(X, y)
    if len(X) < 2:
        raise InputError(f"a training table needs at least 2 rows, got n_samples = {len(X)}")
    return X, y


def check_new(estimator: TableEstimator, X: Any) -> Any:
    """Rows to predict. Columns of a data frame are matched by name, those of an array by position."""
    if isinstance(X, pd.DataFrame) and estimator.named_columns_:
        return X
    if isinstance(X, pd.DataFrame):
        warnings.warn(
            f"X has column names, but {type(estimator).__name__} was fitted without: columns are matched by position",
            UserWarning,
            stacklevel=3,
        )
        X = X.to_numpy()
    return validate_data(estimator, X, reset=False, dtype=None, ensure_all_finite="allow-nan")
