"""A fitted estimator as files: the tensors of its model, and a card with everything else.

The schemas list every entry of the card and of the record of a run, with type and bounds: a new entry of a
``get_config()`` is one line here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from credo import _tensors, io
from credo._files import shorten, to_json
from credo._schema import (
    Schema,
    either,
    flag,
    integer,
    list_of,
    mapping,
    maybe,
    number,
    one_of,
    positive,
    record,
    text,
)
from credo._text import listed, quoted
from credo.calibration import Calibrator
from credo.errors import InputError, LoadError
from credo.methods.base import Method
from credo.metrics.summary import DESCRIPTIONS
from credo.priors import Normal, to_config
from credo.tabular.columns import Columns, TableRows
from credo.tabular.date_format import ORDERS
from credo.tabular.encoders import PERIODS
from credo.tabular.estimators import NOISES, Classifier, Regressor
from credo.tabular.extrapolation import Extrapolation
from credo.tabular.likelihoods import FAMILIES, LIKELIHOODS, TargetFamily
from credo.tabular.number_format import CURRENCIES, PERCENT
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

_SECTION = "estimator"
"""The section of a card that describes the estimator around a model."""

MAX_SEED = 2**63 - 1

_COUNT = integer(0, 2**53)
_SHARE = number(0.0, 1.0)
_FINITE = number(-math.inf, math.inf)

_PARAMETERS: dict[str, Schema] = {
    "method": text,
    "hidden": maybe(list_of(integer(1, 10**6), maximum=1_000)),
    "activation": text,
    "epochs": maybe(integer(1, 10**9)),
    "batch_size": maybe(integer(1, 10**9)),
    "lr": number(1e-30, 1e6),
    "samples": integer(0, 100_000),
    "calibrate": maybe(text),
    "calibration_fraction": number(1e-9, 1.0 - 1e-9),
    "method_options": maybe(mapping),
    "device": maybe(text),
    "progress": maybe(flag),
    "random_state": maybe(integer(0, 2**32 - 1)),
}

_SCALING = record(
    {
        "names": list_of(text),
        "lowest": list_of(number()),
        "highest": list_of(number()),
        "median": list_of(number()),
        "width": list_of(positive),
        "mean": list_of(number()),
        "std": list_of(positive),
        "long_tailed": list_of(flag),
        "asinh_mean": list_of(number()),
        "asinh_std": list_of(positive),
        "varies": list_of(flag),
        "has_missing": list_of(flag),
        "clipped": list_of(flag),
    }
)

_NUMBER_FORMAT = record(
    {"decimal": one_of(".", ","), "grouped": flag, "unit": one_of("", PERCENT, *CURRENCIES), "boolean": flag}
)

_DATE_FORMAT = record({"order": one_of("", *ORDERS), "compact": flag})

_CYCLES = record(
    {"dates": list_of(text, unique=True), "columns": list_of(text), "periods": list_of(one_of(*PERIODS))},
)

_CATEGORY = record(
    {
        "name": text,
        "kept": list_of(text, minimum=1, unique=True),
        "rare": list_of(text, unique=True),
        "has_missing": flag,
    }
)

_SUMMARY = record(
    {
        "name": text,
        "kind": one_of("number", "date", "category"),
        "missing": _SHARE,
        "distinct": _COUNT,
        "content": text,
        "treatment": text,
        "reading": text,
    }
)

_COLUMNS = record(
    {
        "names": list_of(text, minimum=1, unique=True),
        "scaling": _SCALING,
        "cycles": _CYCLES,
        "formats": mapping,
        "categories": list_of(_CATEGORY),
        "notes": list_of(text),
        "summaries": list_of(_SUMMARY),
    }
)

_QUANTITY = record(
    {
        "name": text,
        "mean": number(),
        "scale": positive,
        "constant": flag,
        "notes": list_of(text),
        "form": _NUMBER_FORMAT,
        "limits": maybe(list_of(number(), minimum=2, maximum=2)),
    }
)

_CLASSES = record(
    {
        "name": text,
        "classes": list_of(either(flag, number(), text), minimum=2, unique=True),
        "dtype": text,
        "notes": list_of(text),
        "numeric": flag,
    }
)


_FAMILY = record(
    {
        "name": one_of(*FAMILIES),
        "center": number(),
        "scale": positive,
        "lower": number(),
        "upper": number(),
        "note": text,
    }
)

_EXTRAPOLATION = record({"rows": integer(1, 2**53), "slope_variance": list_of(number(0.0))})


def _estimator(parameters: Mapping[str, Schema], further: Mapping[str, Schema]) -> Schema:
    return record(
        {
            "class": text,
            "parameters": record(parameters, some=True),
            "columns": _COLUMNS,
            "calibrator": maybe(mapping),
            "seed": integer(0, MAX_SEED),
            "named": flag,
            "method": text,
            "method_reason": text,
            **further,
        }
    )


_ESTIMATORS = {
    "Regressor": _estimator(
        _PARAMETERS | {"noise": one_of(*NOISES), "likelihood": one_of(*LIKELIHOODS)},
        {"target": _QUANTITY, "family": _FAMILY, "extrapolation": maybe(_EXTRAPOLATION)},
    ),
    "Classifier": _estimator(
        _PARAMETERS
        | {
            "ordered": either(flag, list_of(either(flag, number(), text), minimum=2)),
            "class_weight": maybe(one_of("balanced")),
        },
        {"target": _CLASSES, "class_weights": maybe(list_of(positive, minimum=2))},
    ),
}

_SCORE = record(
    {
        "name": one_of(*DESCRIPTIONS),
        "label": text,
        "value": maybe(_FINITE),
        "lower": maybe(_FINITE),
        "upper": maybe(_FINITE),
        "level": maybe(_SHARE),
        "better": text,
    }
)

_RUN = record(
    {
        "source": text,
        "target": text,
        "task": one_of("regression", "classification"),
        "task_reason": text,
        "method": text,
        "calibrate": maybe(text),
        "dropped": list_of(text),
        "split": text,
        "trained_rows": _COUNT,
        "held_out_rows": _COUNT,
        "rows_held_out": list_of(_COUNT, unique=True),
        "seed": integer(0, MAX_SEED),
        "seconds": number(0.0),
        "credo": text,
        "scores": list_of(_SCORE),
        "digests": record({"model.safetensors": text, "holdout.csv": text}),
    }
)


def to_files(estimator: TableEstimator) -> dict[str, bytes]:
    """The files of a fitted estimator, by name."""
    check_is_fitted(estimator)
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
        "target": estimator.target_.get_config(),
        "calibrator": None if calibrator is None else calibrator.get_config(),
        "seed": estimator.seed_,
        "named": estimator.named_columns_,
        "method": estimator.method_,
        "method_reason": estimator.method_reason_,
        **_describe_likelihood(estimator),
    }


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
        estimator.target_ = estimator._target_class.from_config(section["target"])
        extrapolation = section.get("extrapolation")
        estimator.extrapolation_ = None if extrapolation is None else Extrapolation.from_config(extrapolation)
        if isinstance(estimator, Regressor):
            estimator.family_ = TargetFamily.from_config(section["family"])
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


def check_estimator(section: Any) -> None:
    """Raise LoadError if a section of a card is not as :func:`describe` returns it."""
    mapping(section, "estimator")
    kind = section.get("class")
    one_of(*_ESTIMATORS)(kind, "estimator.class")
    _ESTIMATORS[kind](section, "estimator")
    _check_columns(section["columns"])
    variances = (section.get("extrapolation") or {}).get("slope_variance")
    names = section["columns"]["scaling"]["names"]
    if variances is not None and len(variances) != len(names):
        raise LoadError(f"estimator.extrapolation holds {len(variances):,} slope variances of {len(names):,} columns")


def check_run(content: Any) -> None:
    """Raise LoadError if the record of a run is not as a run writes it."""
    _RUN(content, "it")
    rows = len(content["rows_held_out"])
    if content["held_out_rows"] != rows:
        raise LoadError(f"it lists {rows:,} held-out rows, but their number is {content['held_out_rows']:,}")
    if bool(content["scores"]) != bool(rows):
        raise LoadError(f"it holds {len(content['scores'])} scores of {rows:,} held-out rows")


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Raise LoadError if valid entries refer to different columns."""
    known, scaling, cycles = set(columns["names"]), columns["scaling"], columns["cycles"]
    if len({len(values) for values in scaling.values()}) != 1:
        raise LoadError("estimator.columns.scaling holds lists of different lengths")
    used = [*scaling["names"], *(category["name"] for category in columns["categories"])]
    unknown = [quoted(name) for name in (*used, *columns["formats"]) if name not in known]
    if unknown:
        raise LoadError(f"estimator.columns uses columns that it does not name: {listed(unknown)}")
    if len(set(used)) != len(used):
        raise LoadError("estimator.columns uses a column twice")
    dates = cycles["dates"]
    if scaling["names"][len(scaling["names"]) - len(dates) :] != dates or not set(cycles["columns"]) <= set(dates):
        raise LoadError("estimator.columns.cycles must be of the last columns of estimator.columns.scaling")
    for name, form in columns["formats"].items():
        (_DATE_FORMAT if name in dates else _NUMBER_FORMAT)(form, f"estimator.columns.formats[{quoted(name)}]")
    if len(cycles["columns"]) != len(cycles["periods"]):
        raise LoadError("estimator.columns.cycles holds lists of different lengths")
    if [summary["name"] for summary in columns["summaries"]] != columns["names"]:
        raise LoadError("estimator.columns.summaries must be of the columns in estimator.columns.names")


def _check_network(estimator: TableEstimator) -> None:
    """Raise LoadError if the network does not match the features of the columns or the target."""
    columns = estimator.columns_
    width, others = len(columns.feature_names), len(columns.feature_names) - len(columns.scaling.feature_names)
    target = estimator.target_
    shape = [1, len(target.classes)] if isinstance(target, ClassTarget) else [1]
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
