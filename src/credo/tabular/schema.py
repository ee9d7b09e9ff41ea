"""What the card of an estimator and the record of a run hold: every entry, its type and its bounds.

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
from credo.errors import LoadError
from credo.metrics.summary import DESCRIPTIONS
from credo.tabular.cycles import PERIODS
from credo.tabular.regressor import NOISES
from credo.tabular.wording import listed, quoted

LARGEST_SEED = 2**63 - 1

_COUNT = integer(0, 2**53)
_SHARE = number(0.0, 1.0)
_FINITE = number(-math.inf, math.inf)

_PARAMETERS: dict[str, Schema] = {
    "method": text,
    "hidden": maybe(list_of(integer(1, 10**6), most=1_000)),
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
        "has_gaps": list_of(flag),
    }
)

_CYCLES = record(
    {"dates": list_of(text, unique=True), "columns": list_of(text), "periods": list_of(one_of(*PERIODS))},
)

_CATEGORY = record(
    {
        "name": text,
        "kept": list_of(text, least=1, unique=True),
        "rare": list_of(text, unique=True),
        "has_gaps": flag,
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
    }
)

_COLUMNS = record(
    {
        "names": list_of(text, least=1, unique=True),
        "scaling": _SCALING,
        "cycles": _CYCLES,
        "unclean": list_of(text),
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
    }
)

_CLASSES = record(
    {
        "name": text,
        "classes": list_of(either(flag, number(), text), least=2, unique=True),
        "dtype": text,
        "notes": list_of(text),
    }
)


_EXTRAPOLATION = record({"rows": integer(1, 2**53), "slopes": list_of(number(0.0))})


def _estimator(parameters: Mapping[str, Schema], further: Mapping[str, Schema]) -> Schema:
    return record(
        {
            "class": text,
            "parameters": record(parameters, some=True),
            "columns": _COLUMNS,
            "calibrator": maybe(mapping),
            "seed": integer(0, LARGEST_SEED),
            "named": flag,
            **further,
        }
    )


_ESTIMATORS = {
    "Regressor": _estimator(
        _PARAMETERS | {"noise": one_of(*NOISES)}, {"target": _QUANTITY, "extrapolation": _EXTRAPOLATION}
    ),
    "Classifier": _estimator(_PARAMETERS, {"target": _CLASSES}),
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
        "trained_rows": _COUNT,
        "held_out_rows": _COUNT,
        "rows_held_out": list_of(_COUNT, unique=True),
        "seed": integer(0, LARGEST_SEED),
        "seconds": number(0.0),
        "credo": text,
        "scores": list_of(_SCORE),
        "digests": record({"model.safetensors": text, "holdout.csv": text}),
    }
)


def check_estimator(section: Any) -> None:
    """Raise LoadError if the estimator section of a card is not what ``describe`` of an estimator gives."""
    mapping(section, "estimator")
    kind = section.get("class")
    one_of(*_ESTIMATORS)(kind, "estimator.class")
    _ESTIMATORS[kind](section, "estimator")
    _check_columns(section["columns"])
    slopes, names = section.get("extrapolation", {}).get("slopes"), section["columns"]["scaling"]["names"]
    if slopes is not None and len(slopes) != len(names):
        raise LoadError(f"estimator.extrapolation holds {len(slopes):,} slopes of {len(names):,} columns")


def check_run(content: Any) -> None:
    """Raise LoadError if the record of a run is not what a run writes."""
    _RUN(content, "it")
    rows = len(content["rows_held_out"])
    if content["held_out_rows"] != rows:
        raise LoadError(f"it lists {rows:,} rows that were held out, but says {content['held_out_rows']:,}")
    if bool(content["scores"]) != bool(rows):
        raise LoadError(f"it holds {len(content['scores'])} scores of {rows:,} rows that were held out")


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Entries that are each of the right type must also speak of the same columns."""
    known, scaling, cycles = set(columns["names"]), columns["scaling"], columns["cycles"]
    if len({len(values) for values in scaling.values()}) != 1:
        raise LoadError("estimator.columns.scaling holds lists of different lengths")
    used = [*scaling["names"], *(category["name"] for category in columns["categories"])]
    strangers = [quoted(name) for name in (*used, *columns["unclean"]) if name not in known]
    if strangers:
        raise LoadError(f"estimator.columns uses columns that it does not name: {listed(strangers)}")
    if len(set(used)) != len(used):
        raise LoadError("estimator.columns uses a column twice")
    dates = cycles["dates"]
    if scaling["names"][len(scaling["names"]) - len(dates) :] != dates or not set(cycles["columns"]) <= set(dates):
        raise LoadError("estimator.columns.cycles must be of the last columns of estimator.columns.scaling")
    if len(cycles["columns"]) != len(cycles["periods"]):
        raise LoadError("estimator.columns.cycles holds lists of different lengths")
    if [summary["name"] for summary in columns["summaries"]] != columns["names"]:
        raise LoadError("estimator.columns.summaries must be of the columns in estimator.columns.names")
