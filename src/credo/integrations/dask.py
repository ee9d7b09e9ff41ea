"""Dask: conjugate pairs and tables on partitioned data. Needs the extra ``dask``.

The classical models, such as :class:`credo.linear.BayesianLinearRegression`, :class:`credo.mixture.KMeans`,
:class:`credo.mixture.GaussianMixture` and :class:`credo.decomposition.PCA`, take Dask arrays and frames in ``fit`` as
they take those of NumPy and pandas: sufficient statistics are computed where a partition is and added up by a tree of
tasks, and the result is that of one machine up to rounding. Models that iterate read the data in every iteration, so
``persist()`` them in the memory of the workers first, where they fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from credo._arguments import check_fraction
from credo._partitions import is_partitioned, partitions
from credo.conjugate.base import ConjugatePair
from credo.errors import InputError, missing_extra
from credo.tabular.base import TableEstimator
from credo.tabular.predictions import column_names, to_frame
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    import dask.dataframe as dd

Pair = TypeVar("Pair", bound=ConjugatePair)

__all__ = ["predict", "update"]


def predict(model: TableEstimator, frame: dd.DataFrame, level: float = 0.95) -> dd.DataFrame:
    """Predict a Dask data frame, partition by partition, where the partitions are.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        frame: the columns of training, and any others.
        level: the probability of the interval from ``lower`` to ``upper``.

    Returns:
        A Dask data frame with the partitions and index of ``frame``, not computed yet: the columns of
        :func:`credo.tabular.predictions.to_frame`. Each row is predicted as on one machine.

    Raises:
        InputError: ``frame`` is not a Dask data frame, or Dask is not installed.
    """
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise missing_extra("credo.dask", "dask", error) from error
    if not isinstance(frame, dd.DataFrame):
        raise InputError(
            f"frame must be a Dask data frame, got {type(frame).__name__}; use model.predict_dist for others"
        )
    check_fraction(level, "level")
    return frame.map_partitions(_predict_part, model, level, meta=_empty(model))


def update(pair: Pair, data: Any) -> Pair:
    """Condition a conjugate pair on partitioned data.

    Hyperparameters, a few numbers, go from partition to partition, in their order.

    Args:
        pair: such as :class:`credo.conjugate.BetaBernoulli`.
        data: one observation per row, a Dask array or series.

    Returns:
        ``pair.update(all rows)``, up to rounding.

    Raises:
        InputError: the data do not match the likelihood, or are not those of Dask.
    """
    if not is_partitioned(data):
        raise InputError(f"data must be a Dask array or series, got {type(data).__name__}; use pair.update for others")
    parts = partitions(data)
    import dask

    found = dask.delayed(pair)
    for part in parts:
        found = dask.delayed(_update_part, pure=False)(found, part)
    return found.compute()  # type: ignore[no-any-return]


def _update_part(pair: Pair, part: Any) -> Pair:
    return pair.update(np.asarray(part))


def _predict_part(part: pd.DataFrame, model: TableEstimator, level: float) -> pd.DataFrame:
    if not len(part):
        return _empty(model)
    found = to_frame(model.predict_dist(part), model.target_, level)
    return found.astype(_empty(model).dtypes.to_dict()).set_axis(part.index, axis=0)


def _empty(model: TableEstimator) -> pd.DataFrame:
    """The columns of a prediction, without rows."""
    names = column_names(model.target_)
    frame = pd.DataFrame({name: pd.Series(dtype="float64") for name in names})
    if isinstance(model.target_, ClassTarget):
        kind = pd.Series(model.target_.decode(np.zeros(1, np.int64))).dtype
        frame["class"] = frame["class"].astype(kind)
    return frame
