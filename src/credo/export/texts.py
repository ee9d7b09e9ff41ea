"""Texts in a graph: categories as positions of features, dates in ISO 8601 as days."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credo._text import quoted
from credo.errors import UnsupportedError
from credo.export.builder import Builder, Value
from credo.tabular.encoders import CategoryEncoder
from credo.tabular.number_format import parse_plain
from credo.tabular.parsing import MISSING_TEXTS

_SPACE = r"[\s\x{0b}\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
"""What ``str.strip`` removes."""
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
_ORIGIN = "1970-01-01T00:00:00"
_ML = "ai.onnx.ml"
_CUT = "…"
_MAX_SPACED = 500


def add_category(b: Builder, encoder: CategoryEncoder, cells: Value) -> Value:
    """The features ``[N, K]`` of a column of texts ``[N]``, as ``CategoryEncoder.encode`` has them.

    Outer spaces do not count, words for true and false are the same in any case, numbers are compared as numbers, and
    the texts of :data:`credo.tabular.parsing.MISSING_TEXTS` are missing. If a column has more than 500 levels with
    effects, a level with outer spaces counts as unseen.

    Args:
        b: collects the nodes.
        encoder: of the column.
        cells: the texts.

    Returns:
        Zeros and ones, and the effects of levels, in float32.

    Raises:
        UnsupportedError: a category is stored by its digest, or is an infinite number.
    """
    from onnx import TensorProto

    _check_labels(encoder)
    other = len(encoder.kept) if encoder.rare else -1
    missing = len(encoder.kept) + bool(encoder.rare) if encoder.has_missing else other
    slot = _add_slot(b, cells, encoder.kept, missing, other)
    positions = np.arange(len(encoder.kept) + bool(encoder.rare) + encoder.has_missing)
    one_hot = b("Cast", b("Equal", b("Unsqueeze", slot, b.axes(1)), positions), to=TensorProto.FLOAT)
    if encoder.effects is None:
        return one_hot
    unseen = len(encoder.effects.labels)
    level = _add_slot(b, cells, encoder.effects.labels, unseen, unseen)
    return b("Concat", one_hot, b("Gather", encoder.effects.table, level), axis=1)


def _add_slot(b: Builder, cells: Value, labels: Sequence[str], missing: int, other: int) -> Value:
    """The positions ``[N]`` of texts among ``labels``."""
    numbers = {label: parse_plain(label) for label in labels if not math.isnan(parse_plain(label))}
    numbers = {label: value for label, value in numbers.items() if label not in ("True", "False")}
    slots = {label: slot for slot, label in enumerate(labels) if label not in numbers}
    exact = slots | dict.fromkeys(MISSING_TEXTS, missing)
    slot = b(
        "LabelEncoder",
        cells,
        domain=_ML,
        keys_strings=list(exact),
        values_int64s=list(exact.values()),
        default_int64=other,
    )
    for word in ("True", "False"):
        if word in slots:
            slot = b("Where", _matches(b, cells, f"(?i:{word})"), np.array(slots[word]), slot)
    if numbers:
        position = {label: place for place, label in enumerate(labels)}
        slot = _add_numbers(b, cells, slot, {value: position[label] for label, value in numbers.items()}, other)
    return _add_spaced(b, cells, slot, exact) if len(labels) <= _MAX_SPACED else slot


def _add_numbers(b: Builder, cells: Value, slot: Value, slots: dict[float, int], other: int) -> Value:
    """``slot``, or for texts that are numbers the feature of the number."""
    from onnx import TensorProto

    spaced = f"{_SPACE}*{_NUMBER}{_SPACE}*"
    is_number = _matches(b, cells, spaced)
    digits = b("Where", is_number, cells, np.array("0", dtype=object))
    values = b("Cast", digits, to=TensorProto.DOUBLE)
    table, default = np.array(list(slots)), np.array(other)
    found = b("Equal", b("Unsqueeze", values, b.axes(1)), table)
    place = b("Where", found, np.array([slots[value] for value in slots]), np.array(-2))
    best = b("ReduceMax", place, b.axes(1), keepdims=0)
    chosen = b("Where", b("Equal", best, np.array(-2)), default, best)
    return b("Where", is_number, chosen, slot)


def _add_spaced(b: Builder, cells: Value, slot: Value, slots: dict[str, int]) -> Value:
    """``slot``, or for texts with outer spaces the feature of the text without them."""
    from onnx import TensorProto

    is_spaced = _matches(b, cells, f"(?s:{_SPACE}.*|.*{_SPACE})")
    some = b("ReduceMax", b("Cast", _padded(b, is_spaced), to=TensorProto.INT32), keepdims=0)
    any_spaced = b("Cast", some, to=TensorProto.BOOL)
    inner, plain = b.inner(), b.inner()
    found = slot
    by_slot: dict[int, list[str]] = {}
    for text, place in slots.items():
        by_slot.setdefault(place, []).append(text)
    for place, texts in by_slot.items():
        words = "|".join(_literal(text) for text in texts)
        found = inner("Where", _matches(inner, cells, f"{_SPACE}*({words}){_SPACE}*"), np.array(place), found)
    for word in ("True", "False"):
        if word in slots:
            matches = _matches(inner, cells, f"{_SPACE}*(?i:{word}){_SPACE}*")
            found = inner("Where", matches, np.array(slots[word]), found)
    branches = {
        "then_branch": inner.subgraph("spaced", [], [inner("Identity", found)]),
        "else_branch": plain.subgraph("plain", [], [plain("Identity", slot)]),
    }
    return b("If", any_spaced, **branches)


def add_days(b: Builder, cells: Value) -> tuple[Value, Value]:
    """Days since 1970 of dates in ISO 8601, such as ``2024-01-31``, ``2024-01-31 12:30`` or ``2024-01-31T12:30:00.5Z``.

    Args:
        b: collects the nodes, in double precision.
        cells: the texts ``[N]``.

    Returns:
        The days ``[N]``, and whether a text is a date; others are missing.
    """
    from onnx import TensorProto

    def text(value: str) -> NDArray[Any]:
        return np.array(value, dtype=object)

    is_date = _matches(b, cells, rf"\s*{_DATE}([T ]{_TIME}Z?)?\s*")
    known = b("StringConcat", b("Where", is_date, cells, text(_ORIGIN)), text(" 00:00:00"))
    first, second = _token(b, known, "", 0), _token(b, known, "", 1)
    has_t = _matches(b, first, ".*T.*")
    moment = b("StringConcat", b("StringConcat", first, text("T")), second)
    moment = b("StringConcat", b("Where", has_t, first, moment), text("Z"))
    moment = _token(b, moment, "Z", 0)
    is_short = _matches(b, moment, rf"{_DATE}T\d{{2}}:\d{{2}}")
    moment = b("Where", is_short, b("StringConcat", moment, text(":00")), moment)
    date, time = _token(b, moment, "T", 0), _token(b, moment, "T", 1)
    year, month, day = (b("Cast", _token(b, date, "-", i), to=TensorProto.DOUBLE) for i in range(3))
    hour, minute, second = (b("Cast", _token(b, time, ":", i), to=TensorProto.DOUBLE) for i in range(3))
    micro = b("Round", b("Mul", second, 1e6))
    micro = b("Add", micro, b("Add", b("Mul", hour, 3.6e9), b("Mul", minute, 6e7)))
    days = b("Add", _days_from_civil(b, year, month, day), b("Div", micro, 8.64e10))
    return days, b("And", is_date, _is_in_calendar(b, year, month, day))


def _is_in_calendar(b: Builder, year: Value, month: Value, day: Value) -> Value:
    """Whether there is such a date."""
    lengths = np.array([0.0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])

    def divides(number: float) -> Value:
        return b("Equal", b("Mod", year, number, fmod=1), 0.0)

    is_leap = b("And", divides(4.0), b("Or", b("Not", divides(100.0)), divides(400.0)))
    valid_month = b("And", b("GreaterOrEqual", month, 1.0), b("LessOrEqual", month, 12.0))
    place = b("Cast", b("Where", valid_month, month, 0.0), to=7)
    extra = b("Where", b("And", is_leap, b("Equal", month, 2.0)), 1.0, 0.0)
    length = b("Add", b("Gather", lengths, place), extra)
    valid_day = b("And", b("GreaterOrEqual", day, 1.0), b("LessOrEqual", day, length))
    return b("And", b("And", valid_month, valid_day), b("GreaterOrEqual", year, 1.0))


def _days_from_civil(b: Builder, year: Value, month: Value, day: Value) -> Value:
    """Days since 1970 of a date of the Gregorian calendar, by years that begin in March."""
    early = b("LessOrEqual", month, 2.0)
    y = b("Where", early, b("Sub", year, 1.0), year)
    era = b("Floor", b("Div", y, 400.0))
    of_era = b("Sub", y, b("Mul", era, 400.0))
    shifted = b("Where", early, b("Add", month, 9.0), b("Sub", month, 3.0))
    of_year = b("Floor", b("Div", b("Add", b("Mul", shifted, 153.0), 2.0), 5.0))
    of_year = b("Add", of_year, b("Sub", day, 1.0))
    leaps = b("Sub", b("Floor", b("Div", of_era, 4.0)), b("Floor", b("Div", of_era, 100.0)))
    total = b("Add", b("Add", b("Mul", of_era, 365.0), leaps), of_year)
    return b("Sub", b("Add", total, b("Mul", era, 146097.0)), 719468.0)


def _matches(b: Builder, cells: Value, pattern: str) -> Value:
    return b("RegexFullMatch", cells, pattern=pattern)


def _token(b: Builder, cells: Value, delimiter: str, place: int) -> Value:
    """One part of texts that all have it, between spaces for an empty delimiter; also without rows."""
    sentinel = np.array([(delimiter or " ").join("0" * (place + 2))], dtype=object)
    attributes = {"delimiter": delimiter} if delimiter else {}
    parts = b.several("StringSplit", 2, b("Concat", cells, sentinel, axis=0), **attributes)[0]
    column = b("Gather", parts, np.array(place), axis=1)
    return b("Slice", column, np.array([0]), np.array([-1]))


def _padded(b: Builder, flags: Value) -> Value:
    """``flags`` and one that is false, so that there is one without rows."""
    return b("Concat", flags, np.array([False]), axis=0)


def _literal(text: str) -> str:
    """A pattern that matches ``text`` only."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)


def _check_labels(encoder: CategoryEncoder) -> None:
    """Raise ``UnsupportedError`` for categories that a graph cannot recognize."""
    for label in encoder.kept if encoder.effects is None else encoder.effects.labels:
        if re.search(f"{_CUT}[0-9a-f]{{12}}$", label):
            raise UnsupportedError(
                f"the column {quoted(encoder.name)} has categories of more than 100 characters, which are stored by a "
                "digest that ONNX cannot compute: shorten them, or leave the column out"
            )
        if math.isinf(parse_plain(label)):
            raise UnsupportedError(
                f"the column {quoted(encoder.name)} has the category {quoted(label)}, a number that is written in many "
                "ways: rename it"
            )
