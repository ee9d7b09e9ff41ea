"""The preprocessing of a table as nodes of a graph: from raw columns to the features of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from credo.export.builder import Builder, Value
from credo.export.graphs import ROWS
from credo.export.texts import add_category, add_days
from credo.tabular.columns import Columns
from credo.tabular.encoders import MAX_FEATURE, PERIODS, NumericScaler

if TYPE_CHECKING:
    from onnx import ValueInfoProto

_HUGE = 1e100  # as in credo.tabular.encoders


@dataclass(frozen=True)
class Preprocessing:
    """The nodes of the preprocessing.

    Attributes:
        inputs: one per column that is used, ``[rows]``.
        features: ``[rows, D]``, float32.
        edge_features: the features of the values at the nearest end of their training range.
        distance: of numbers and dates from that range, in standard deviations ``[rows, C]``, float64.
    """

    inputs: list[ValueInfoProto]
    features: Value
    edge_features: Value
    distance: Value


def add_preprocessing(b: Builder, columns: Columns) -> Preprocessing:
    """Add the encoding of :class:`credo.tabular.Columns`.

    Args:
        b: collects the nodes, in double precision.
        columns: the fitted columns.

    Returns:
        Numbers are inputs in double precision with NaN for gaps; categories and dates are texts, empty for gaps.

    Raises:
        UnsupportedError: a category cannot be recognized by a graph.
    """
    from onnx import TensorProto, helper

    scaling, dates = columns.scaling, columns.cycles.dates
    inputs, values, gaps = [], [], []
    for name in scaling.names:
        kind = TensorProto.STRING if name in dates else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(name, kind, [ROWS]))
        if name in dates:
            days, is_known = add_days(b, name)
            values.append(days)
            gaps.append(b("Not", is_known))
        else:
            values.append(name)
            gaps.append(b("Or", b("IsNaN", name), b("IsInf", name)))
    others = []
    for encoder in columns.categories:
        inputs.append(helper.make_tensor_value_info(encoder.name, TensorProto.STRING, [ROWS]))
        others.append(add_category(b, encoder, encoder.name))
    if not values:
        features = _joined(b, others)
        return Preprocessing(inputs, features, features, features)
    missing = _columns(b, gaps)
    known = b("Min", b("Max", b("Where", missing, scaling.median, _columns(b, values)), -_HUGE), _HUGE)
    others = [*_cycles(b, columns, values, gaps), *others]
    clipped = b("Min", b("Max", known, scaling.lowest), scaling.highest)
    numbers = b("Where", scaling.clipped, clipped, known)
    features = _joined(b, [_scaled(b, scaling, numbers, missing), *others])
    edge = _joined(b, [_scaled(b, scaling, clipped, missing), *others])
    return Preprocessing(inputs, features, edge, _distance(b, scaling, known, clipped, missing))


def _scaled(b: Builder, scaling: NumericScaler, known: Value, missing: Value) -> Value:
    """The features of ``NumericScaler.encode``, from values with the median in gaps."""
    from onnx import TensorProto

    u = b("Where", missing, 0.0, _relative(b, known, scaling.median, scaling.width))
    z = b("Min", b("Max", _relative(b, u, scaling.mean, scaling.std), -MAX_FEATURE), MAX_FEATURE)
    parts = [_take(b, z, scaling.varies)]
    if scaling.long_tailed.any():
        root = b("Sqrt", b("Add", b("Mul", u, u), 1.0))
        asinh = b("Mul", b("Sign", u), b("Log", b("Add", b("Abs", u), root)))
        parts.append(_take(b, b("Div", b("Sub", asinh, scaling.asinh_mean), scaling.asinh_std), scaling.long_tailed))
    if scaling.has_missing.any():
        parts.append(_take(b, b("Cast", missing, to=TensorProto.DOUBLE), scaling.has_missing))
    return b("Cast", _joined(b, parts), to=TensorProto.FLOAT)


def _distance(b: Builder, scaling: NumericScaler, known: Value, clipped: Value, missing: Value) -> Value:
    """``NumericScaler.distance`` of values from the ends of their range."""
    difference = b("Div", _relative(b, known, clipped, scaling.width), scaling.std)
    inside = b("Min", b("Max", difference, -MAX_FEATURE), MAX_FEATURE)
    return b("Where", b("Or", missing, ~scaling.varies), 0.0, inside)


def _cycles(b: Builder, columns: Columns, values: list[Value], gaps: list[Value]) -> list[Value]:
    """Sine and cosine of the time of day, week and year; 0 for gaps."""
    from onnx import TensorProto

    cycles, names = columns.cycles, columns.scaling.names
    waves = []
    for name, period in zip(cycles.columns, cycles.periods, strict=True):
        place, length = names.index(name), PERIODS[period]
        rest = b("Mod", values[place], length, fmod=1)
        rest = b("Where", b("Less", rest, 0.0), b("Add", rest, length), rest)
        angle = b("Mul", b("Div", rest, length), 2.0 * math.pi)
        for wave in ("Sin", "Cos"):
            known = b("Where", gaps[place], 0.0, b(wave, angle))
            waves.append(b("Cast", b("Unsqueeze", known, b.axes(1)), to=TensorProto.FLOAT))
    return waves


def _relative(b: Builder, values: Value, center: Value | np.ndarray, width: np.ndarray) -> Value:
    ratio = b("Div", b("Sub", values, center), width)
    return b("Min", b("Max", ratio, -_HUGE), _HUGE)


def _take(b: Builder, values: Value, chosen: np.ndarray) -> Value:
    return b("Gather", values, np.flatnonzero(chosen), axis=1)


def _columns(b: Builder, values: list[Value]) -> Value:
    """Columns ``[rows]`` as ``[rows, C]``."""
    return _joined(b, [b("Unsqueeze", value, b.axes(1)) for value in values])


def _joined(b: Builder, parts: list[Value]) -> Value:
    return parts[0] if len(parts) == 1 else b("Concat", *parts, axis=1)
