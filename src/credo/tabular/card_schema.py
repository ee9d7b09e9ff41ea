"""What a card of an estimator and the record of a run may contain: every entry, with its type and bounds.

A new entry of a ``get_config()`` is one line here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
from credo.errors import LoadError
from credo.metrics.summary import DESCRIPTIONS
from credo.tabular.date_format import ORDERS
from credo.tabular.encoders import PERIODS
from credo.tabular.estimators import NOISES
from credo.tabular.level_effects import MAX_LEVELS, MAX_SCORES
from credo.tabular.likelihoods import FAMILIES, LIKELIHOODS
from credo.tabular.number_format import CURRENCIES, PERCENT

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
    "calibration_folds": maybe(integer(2, 10**6)),
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

_CATEGORY: dict[str, Schema] = {
    "name": text,
    "kept": list_of(text, minimum=1, unique=True),
    "rare": list_of(text, unique=True),
    "has_missing": flag,
}

_EFFECTS = record(
    {
        "labels": list_of(text, minimum=1, maximum=MAX_LEVELS, unique=True),
        "mean": list_of(list_of(number(), minimum=1, maximum=MAX_SCORES), minimum=1),
        "deviation": list_of(_SHARE, minimum=1),
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
        "categories": list_of(either(record(_CATEGORY), record(_CATEGORY | {"effects": _EFFECTS}))),
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

_QUANTITIES = record(
    {
        "targets": list_of(_QUANTITY, minimum=2),
        "notes": list_of(text),
        "noise_correlation": maybe(list_of(list_of(number(-1.0 - 1e-9, 1.0 + 1e-9), minimum=2), minimum=2)),
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

_EXTRAPOLATION = record(
    {"rows": integer(1, 2**53), "slope_variance": list_of(either(number(0.0), list_of(number(0.0), minimum=2)))}
)


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
        _PARAMETERS | {"noise": one_of(*NOISES), "likelihood": one_of(*LIKELIHOODS), "joint_noise": flag},
        {
            "target": either(_QUANTITY, _QUANTITIES),
            "family": _FAMILY,
            "extrapolation": maybe(_EXTRAPOLATION),
        },
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

_TARGET_SCORES = record({"target": text, "scores": list_of(_SCORE)})

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
        "scores": either(list_of(_SCORE), list_of(_TARGET_SCORES)),
        "digests": record({"model.safetensors": text, "holdout.csv": text}),
    }
)


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
    for category in columns["categories"]:
        effects = category.get("effects")
        if effects and len({len(effects["labels"]), len(effects["mean"]), len(effects["deviation"])}) != 1:
            raise LoadError("estimator.columns.categories holds effects of different lengths")
        if effects and len({len(of_level) for of_level in effects["mean"]}) != 1:
            raise LoadError("estimator.columns.categories holds effects of different widths")
    dates = cycles["dates"]
    if scaling["names"][len(scaling["names"]) - len(dates) :] != dates or not set(cycles["columns"]) <= set(dates):
        raise LoadError("estimator.columns.cycles must be of the last columns of estimator.columns.scaling")
    for name, form in columns["formats"].items():
        (_DATE_FORMAT if name in dates else _NUMBER_FORMAT)(form, f"estimator.columns.formats[{quoted(name)}]")
    if len(cycles["columns"]) != len(cycles["periods"]):
        raise LoadError("estimator.columns.cycles holds lists of different lengths")
    if [summary["name"] for summary in columns["summaries"]] != columns["names"]:
        raise LoadError("estimator.columns.summaries must be of the columns in estimator.columns.names")
