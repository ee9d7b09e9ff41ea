"""An estimator as a folder: the model's tensors, and a card that also says how tables become features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import save as to_bytes

from credo import io
from credo._files import shortened, to_json
from credo.calibration import Calibrator
from credo.errors import LoadError
from credo.methods.base import Method
from credo.priors import Normal, to_config
from credo.tabular.columns import Columns
from credo.tabular.extrapolation import Extrapolation

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator


def to_files(estimator: TableEstimator) -> dict[str, bytes]:
    """The files of a fitted estimator, by name."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    card = {**io.describe(estimator.model_), io.ESTIMATOR: describe(estimator)}
    _name_a_prior(card["config"])
    return {io.TENSORS: to_bytes(io.unique_tensors(estimator.model_)), io.CARD: to_json(card)}


def describe(estimator: TableEstimator) -> dict[str, Any]:
    """What the card says beyond the model's own."""
    parameters = estimator.get_params(deep=False)
    calibrator = estimator.calibrator_
    return {
        "class": type(estimator).__name__,
        "parameters": {name: value for name, value in parameters.items() if _is_plain(value)},
        "columns": estimator.columns_.config(),
        "target": estimator.target_.config(),
        "extrapolation": estimator.extrapolation_ and estimator.extrapolation_.config(),
        "calibrator": None if calibrator is None else calibrator.config(),
        "seed": estimator.seed_,
        "named": estimator.named_columns_,
    }


def restore(section: object, model: Method) -> TableEstimator:
    """The estimator that a card describes, around its model."""
    from credo.tabular import Classifier, Regressor

    known = {cls.__name__: cls for cls in (Regressor, Classifier)}
    try:
        if not isinstance(section, Mapping):
            raise LoadError("it must be a JSON object")
        parameters = section["parameters"]
        hidden = parameters["hidden"]
        estimator = known[section["class"]](**(parameters | {"hidden": hidden and tuple(hidden)}))
        estimator.columns_ = Columns.from_config(section["columns"])
        estimator.target_ = estimator.restore_target(section["target"])
        extrapolation = section["extrapolation"]
        estimator.extrapolation_ = None if extrapolation is None else Extrapolation.from_config(extrapolation)
        calibrator = section["calibrator"]
        estimator.calibrator_ = None if calibrator is None else Calibrator.from_config(calibrator)
        estimator.seed_ = int(section["seed"])
        estimator.n_features_in_ = len(estimator.columns_.names)
        estimator.named_columns_ = bool(section["named"])
        if estimator.named_columns_:
            estimator.feature_names_in_ = np.array(estimator.columns_.names, dtype=object)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"the card's description of the estimator is damaged: {shortened(repr(error))}") from error
    estimator.model_ = model
    return estimator


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
    return value is None or isinstance(value, str | int | float | bool)
