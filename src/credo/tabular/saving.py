"""A fitted estimator as files: the tensors of its model, and a card with everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from credo import _tensors, io
from credo._files import shorten, to_json
from credo.calibration import Calibrator
from credo.errors import InputError, LoadError
from credo.methods.base import Method
from credo.priors import Normal, to_config
from credo.tabular.card_schema import check_estimator
from credo.tabular.columns import Columns, TableRows
from credo.tabular.estimators import Classifier, Regressor
from credo.tabular.extrapolation import Extrapolation
from credo.tabular.likelihoods import TargetFamily
from credo.tabular.several_targets import RegressionTargets
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

_SECTION = "estimator"
"""The section of a card that describes the estimator around a model."""


def to_files(estimator: TableEstimator) -> dict[str, bytes]:
    """The files of a fitted estimator, by name."""
    check_is_fitted(estimator)
    if isinstance(estimator, Regressor) and estimator.output_ is not None:
        raise InputError("one of several targets cannot be saved by itself: save the model of all targets")
    tensors = _tensors.tensor_bytes(estimator.model_)
    card = {**io.describe(estimator.model_, tensors), _SECTION: describe(estimator)}
    _set_default_prior(card["config"])
    content = to_json(card)
    try:
        check_estimator(json.loads(content)[_SECTION])
    except LoadError as error:
        raise InputError(f"this {type(estimator).__name__} could not be loaded again: {error}") from error
    return {_tensors.TENSORS: tensors, io.CARD: content}


def describe(estimator: TableEstimator) -> dict[str, Any]:
    """The section of the card about the estimator around the model."""
    parameters = estimator.get_params(deep=False)
    calibrator = estimator.calibrator_
    return {
        "class": type(estimator).__name__,
        "parameters": {name: value for name, value in parameters.items() if _is_plain(value)},
        "columns": estimator.columns_.get_config(),
        "target": _describe_target(estimator),
        "calibrator": None if calibrator is None else calibrator.get_config(),
        "seed": estimator.seed_,
        "named": estimator.named_columns_,
        "method": estimator.method_,
        "method_reason": estimator.method_reason_,
        **_describe_likelihood(estimator),
    }


def _describe_target(estimator: TableEstimator) -> dict[str, Any]:
    config = estimator.target_.get_config()
    if isinstance(estimator, Regressor) and isinstance(estimator.target_, RegressionTargets):
        correlation = estimator.noise_correlation_
        config["noise_correlation"] = None if correlation is None else correlation.tolist()
    return config


def _describe_likelihood(estimator: TableEstimator) -> dict[str, Any]:
    if isinstance(estimator, Classifier):
        weights = estimator.class_weights_
        return {"class_weights": None if weights is None else weights.tolist()}
    assert isinstance(estimator, Regressor)
    extrapolation = estimator.extrapolation_
    return {
        "family": estimator.family_.get_config(),
        "extrapolation": None if extrapolation is None else extrapolation.get_config(),
    }


def restore(section: Any, model: Any) -> TableEstimator:
    """The estimator that a card describes, around its model; called by :func:`credo.load`."""
    if not isinstance(model, Method):
        raise LoadError(f"the card describes an estimator of tables around a {type(model).__name__}")
    classes = {cls.__name__: cls for cls in (Regressor, Classifier)}
    try:
        check_estimator(section)
        parameters = dict(section["parameters"])
        if parameters.get("hidden") is not None:
            parameters["hidden"] = tuple(parameters["hidden"])
        estimator = classes[section["class"]](**parameters)
        estimator.columns_ = Columns.from_config(section["columns"])
        several = "targets" in section["target"]
        estimator.target_ = (RegressionTargets if several else estimator._target_class).from_config(section["target"])
        extrapolation = section.get("extrapolation")
        estimator.extrapolation_ = None if extrapolation is None else Extrapolation.from_config(extrapolation)
        if isinstance(estimator, Regressor):
            estimator.family_ = TargetFamily.from_config(section["family"])
            correlation = section["target"].get("noise_correlation")
            estimator.noise_correlation_ = None if correlation is None else np.array(correlation, dtype=np.float64)
        else:
            weights = section["class_weights"]
            estimator.class_weights_ = None if weights is None else np.array(weights, dtype=np.float64)
        calibrator = section["calibrator"]
        estimator.calibrator_ = None if calibrator is None else Calibrator.from_config(calibrator)
    except LoadError as error:
        raise LoadError(f"the card's description of the estimator is damaged: {shorten(error)}") from error
    estimator.seed_ = section["seed"]
    estimator.n_features_in_ = len(estimator.columns_.names)
    estimator.named_columns_ = section["named"]
    if estimator.named_columns_:
        estimator.feature_names_in_ = np.array(estimator.columns_.names, dtype=object)
    estimator.method_, estimator.method_reason_ = section["method"], section["method_reason"]
    estimator.model_ = model
    _check_network(estimator)
    return estimator


def _check_network(estimator: TableEstimator) -> None:
    """Raise LoadError if the network does not match the features of the columns or the target."""
    columns = estimator.columns_
    width, others = len(columns.feature_names), len(columns.feature_names) - len(columns.scaling.feature_names)
    target = estimator.target_
    shape = [1, *([len(target.classes)] if isinstance(target, ClassTarget) else [])]
    shape += [len(target.names)] if isinstance(target, RegressionTargets) else []
    try:
        row = TableRows(columns.scaling.median[None], np.zeros((1, others), dtype=np.float32))
        mean = estimator._predict(row, estimator.model_._predictor(samples=0, seed=None)).mean
    except Exception as error:  # any layer may fail
        reason = shorten(error) or type(error).__name__
        raise LoadError(f"the card describes {width:,} features, which do not match its network: {reason}") from error
    if list(mean.shape) != shape or not bool(mean.isfinite().all()):
        raise LoadError(
            f"the network that the card describes does not predict a {type(estimator).__name__}'s target: its "
            f"prediction of one row is {list(mean.shape)}, expected {shape}, and must be finite"
        )


def _set_default_prior(config: dict[str, Any]) -> None:
    """Replace a prior that JSON cannot represent by a standard normal; ``partial_fit`` uses the posterior instead."""
    if "prior" in config and config["prior"] is None:
        config["prior"] = to_config(Normal())
    if isinstance(config.get("member"), dict):
        _set_default_prior(config["member"])


def _is_plain(value: object) -> bool:
    """Whether JSON can represent a parameter; others, such as a random state or a prior, are restored as defaults."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(v) for key, v in value.items())
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool | np.bool | np.integer | np.floating)
