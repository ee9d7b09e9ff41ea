"""Checks of arguments: each returns the value, or raises ``InputError`` with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from credo.errors import InputError, unknown_name


def check_number(value: object, name: str) -> float:
    """Return ``value`` as a float if it is a finite number.

    Args:
        value: what was passed.
        name: the argument's name, for the error.

    Raises:
        InputError: for anything else; truth values are no numbers.
    """
    if not _is_real(value) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def check_positive(value: object, name: str) -> float:
    """Return ``value`` as a float if it is a finite number above 0."""
    if not _is_real(value) or not 0 < value < math.inf:
        raise InputError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def check_non_negative(value: object, name: str) -> float:
    """Return ``value`` as a float if it is a finite number of at least 0."""
    if not _is_real(value) or not 0 <= value < math.inf:
        raise InputError(f"{name} must be a number of at least 0, got {value!r}")
    return float(value)


def check_fraction(value: object, name: str) -> float:
    """Return ``value`` as a float if it lies strictly between 0 and 1."""
    if not _is_real(value) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1, got {value!r}")
    return float(value)


def check_integer(value: object, name: str, minimum: int | None = None) -> int:
    """Return ``value`` as an int if it is an integer of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (minimum is not None and value < minimum):
        bound = "" if minimum is None else f" of at least {minimum}"
        raise InputError(f"{name} must be an integer{bound}, got {value!r}")
    return int(value)


def check_bool(value: object, name: str) -> bool:
    """Return ``value`` if it is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return value


def check_option(value: object, name: str, options: Collection[str]) -> str:
    """Return ``value`` if it is one of ``options``; the error suggests the nearest one."""
    if not isinstance(value, str) or value not in options:
        raise unknown_name(name, value, options)
    return value


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_finite_array(value: object, name: str) -> NDArray[np.float64]:
    """Return ``value``, a number or a nested sequence of numbers, as a float64 array if all of them are finite."""
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must contain finite numbers, got {value!r}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} must contain finite numbers, got {value!r}")
    return array


def check_minimum(value: object, name: str, minimum: float) -> float:
    """Return ``value`` as a float if it is a finite number of at least ``minimum``."""
    if not _is_real(value) or not minimum <= value < math.inf:
        raise InputError(f"{name} must be a number of at least {minimum:g}, got {value!r}")
    return float(value)
