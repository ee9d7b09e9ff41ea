"""An estimator as a folder: the model's tensors, and a card that also says how tables become features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from credo import _tensors, io
from credo._files import shortened, to_json
from credo.calibration import Calibrator
from credo.errors import InputError, LoadError
from credo.methods.base import Method
from credo.priors import Normal, to_config
from credo.tabular.columns import Columns, TableRows
from credo.tabular.extrapolation import Extrapolation
from credo.tabular.schema import check_estimator
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

_SECTION = "estimator"
"""The section of a card that describes the estimator around a model."""


def to_files(estimator: TableEstimator) -> dict[str, bytes]:
    """The files of a fitted estimator, by name."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    tensors = _tensors.tensor_bytes(estimator.model_)
    card = {**io.describe(estimator.model_, tensors), _SECTION: describe(estimator)}
    _name_a_prior(card["config"])
    content = to_json(card)
    try:
        check_estimator(json.loads(content)[_SECTION])
    except LoadError as error:
        raise InputError(f"this {type(estimator).__name__} could not be loaded again: {error}") from error
    return {_tensors.TENSORS: tensors, io.CARD: content}


def describe(estimator: TableEstimator) -> dict[str, Any]:
    """What the card says beyond the model's own."""
    parameters = estimator.get_params(deep=False)
    calibrator, extrapolation = estimator.calibrator_, estimator.extrapolation_
    return {
        "class": type(estimator).__name__,
        "parameters": {name: value for name, value in parameters.items() if _is_plain(value)},
        "columns": estimator.columns_.get_config(),
        "target": estimator.target_.get_config(),
        "calibrator": None if calibrator is None else calibrator.get_config(),
        "seed": estimator.seed_,
        "named": estimator.named_columns_,
        **({} if extrapolation is None else {"extrapolation": extrapolation.get_config()}),
    }


def restore(section: Any, model: Any) -> TableEstimator:
    """The estimator that a card describes, around its model."""
    from credo.tabular import Classifier, Regressor

    if not isinstance(model, Method):
        raise LoadError(f"the card describes an estimator of tables around a {type(model).__name__}")
    known = {cls.__name__: cls for cls in (Regressor, Classifier)}
    try:
        check_estimator(section)
        parameters = dict(section["parameters"])
        if parameters.get("hidden") is not None:
            parameters["hidden"] = tuple(parameters["hidden"])
        estimator = known[section["class"]](**parameters)
        estimator.columns_ = Columns.from_config(section["columns"])
        estimator.target_ = estimator.restore_target(section["target"])
        extrapolation = section.get("extrapolation")
        estimator.extrapolation_ = None if extrapolation is None else Extrapolation.from_config(extrapolation)
        calibrator = section["calibrator"]
        estimator.calibrator_ = None if calibrator is None else Calibrator.from_config(calibrator)
    except LoadError as error:
        raise LoadError(f"the card's description of the estimator is damaged: {shortened(error)}") from error
    estimator.seed_ = section["seed"]
    estimator.n_features_in_ = len(estimator.columns_.names)
    estimator.named_columns_ = section["named"]
    if estimator.named_columns_:
        estimator.feature_names_in_ = np.array(estimator.columns_.names, dtype=object)
    estimator.model_ = model
    _check_agreement(estimator)
    return estimator


def _check_agreement(estimator: TableEstimator) -> None:
    """Raise LoadError if the network does not take the features of the columns, or give what the target needs."""
    columns = estimator.columns_
    width, others = len(columns.feature_names), len(columns.feature_names) - len(columns.scaling.feature_names)
    target = estimator.target_
    shape = [1, len(target.classes)] if isinstance(target, ClassTarget) else [1]
    try:
        row = TableRows(columns.scaling.median[None], np.zeros((1, others), dtype=np.float32))
        mean = estimator._predict(row, estimator.model_._predictor(samples=0, seed=None)).mean
    except Exception as error:  # any layer may be the one that does not fit
        reason = shortened(error) or type(error).__name__
        raise LoadError(f"the card describes {width:,} features, which do not fit its network: {reason}") from error
    if list(mean.shape) != shape or not bool(mean.isfinite().all()):
        raise LoadError(
            f"the network that the card describes does not predict a {type(estimator).__name__}'s target: its "
            f"prediction of one row is {list(mean.shape)}, expected {shape}, and must be finite"
        )


def _name_a_prior(config: dict[str, Any]) -> None:
    """Put a standard normal where JSON cannot hold the prior: further rows continue from the posterior, not from it."""
    if "prior" in config and config["prior"] is None:
        config["prior"] = to_config(Normal())
    if isinstance(config.get("member"), dict):
        _name_a_prior(config["member"])


def _is_plain(value: object) -> bool:
    """Whether JSON holds a parameter as it is; others, such as a random generator or a prior, return as defaults."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(v) for key, v in value.items())
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool | np.bool | np.integer | np.floating)
