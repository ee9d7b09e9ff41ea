"""Numbers that users give: what they must be, in a sentence."""

from __future__ import annotations

import math
from numbers import Integral, Real

from credo.errors import InputError


def positive(value: object, argument: str) -> float:
    """``value`` as a float, which must be positive and finite."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InputError(f"{argument} must be a positive number, got {value!r}.")
    return float(value)


def not_negative(value: object, argument: str) -> float:
    """``value`` as a float, which must be finite and 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InputError(f"{argument} must be a number of 0 or more, got {value!r}")
    return float(value)


def whole(value: object, argument: str, least: int | None = None) -> int:
    """``value`` as an int, which must be at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise InputError(f"{argument} must be a whole number{bound}, got {value!r}.")
    return int(value)
