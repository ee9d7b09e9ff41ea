"""What a value read from JSON must be, said once and in one place.

A schema is a function of a value and its place; it raises LoadError with both where the value is not what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from credo._files import shorten
from credo.errors import LoadError

Schema = Callable[[Any, str], None]

LARGEST = 1e101
"""Of a number, where nothing else is said: its square is finite."""


def text(value: Any, where: str) -> None:
    """A string."""
    _require(isinstance(value, str), "text", value, where)


def flag(value: Any, where: str) -> None:
    """True or false."""
    _require(isinstance(value, bool), "true or false", value, where)


def mapping(value: Any, where: str) -> None:
    """An object with any entries."""
    _require(isinstance(value, Mapping), "an object", value, where)


def integer(minimum: int, maximum: int) -> Schema:
    """An integer from ``minimum`` to ``maximum``."""

    def check(value: Any, where: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
        _require(fits, f"an integer from {minimum:,} to {maximum:,}", value, where)

    return check


def number(minimum: float = -LARGEST, maximum: float = LARGEST) -> Schema:
    """A finite number from ``minimum`` to ``maximum``."""

    def check(value: Any, where: str) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= maximum
        _require(fits and math.isfinite(value), f"a number from {minimum:g} to {maximum:g}", value, where)

    return check


def positive(value: Any, where: str) -> None:
    """A number above 0."""
    number()(value, where)
    _require(value > 0, "a number above 0", value, where)


def one_of(*choices: str) -> Schema:
    """One of some words."""

    def check(value: Any, where: str) -> None:
        _require(isinstance(value, str) and value in choices, f"one of {', '.join(choices)}", value, where)

    return check


def either(*schemas: Schema) -> Schema:
    """What one of several schemas accepts; the error is that of the last one."""

    def check(value: Any, where: str) -> None:
        *others, last = schemas
        for schema in others:
            try:
                return schema(value, where)
            except LoadError:
                continue
        return last(value, where)

    return check


def maybe(schema: Schema) -> Schema:
    """Null, or what ``schema`` takes."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            schema(value, where)

    return check


def list_of(schema: Schema, *, minimum: int = 0, maximum: int | None = None, unique: bool = False) -> Schema:
    """A list of what ``schema`` takes.

    Args:
        schema: of every entry.
        minimum: the fewest entries.
        maximum: the maximum entries, or ``None``.
        unique: whether all entries differ.
    """

    def check(value: Any, where: str) -> None:
        _require(isinstance(value, list), "a list", value, where)
        bounds = (
            f"a list of {minimum:,} entries or more"
            if maximum is None
            else f"a list of {minimum:,} to {maximum:,} entries"
        )
        _require(minimum <= len(value) and (maximum is None or len(value) <= maximum), bounds, value, where)
        for i, entry in enumerate(value):
            schema(entry, f"{where}[{i}]")
        _require(not unique or len(set(value)) == len(value), "a list without repetitions", value, where)

    return check


def record(fields: Mapping[str, Schema], *, some: bool = False) -> Schema:
    """An object with exactly these entries, or with ``some`` of them."""

    def check(value: Any, where: str) -> None:
        mapping(value, where)
        unknown = sorted(map(str, value.keys() - fields.keys()))
        if unknown:
            raise LoadError(f"{where} holds {shorten(unknown)}, which is unknown here")
        missing = sorted(fields.keys() - value.keys())
        if missing and not some:
            raise LoadError(f"{where} lacks {shorten(missing)}")
        for name, schema in fields.items():
            if name in value:
                schema(value[name], f"{where}.{name}")

    return check


def _require(fits: bool, expected: str, value: Any, where: str) -> None:
    if not fits:
        raise LoadError(f"{where} must be {expected}, got {shorten(repr(value))}")
