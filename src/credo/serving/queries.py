"""The parameters in the query of a request, read here because FastAPI takes longer to than a small prediction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from credo._text import listed, quoted
from credo.serving.options import LEVELS, MAX_KEPT, MAX_QUANTILES, QUANTILES, Refusal
from credo.serving.served_model import Request

MAX_LENGTH = 10_000
"""The maximum number of characters in the value of a parameter."""

DEFAULT_LEVEL = Request().level

_LEVEL: Final[dict[str, Any]] = {
    "name": "level",
    "in": "query",
    "description": "The probability of the intervals.",
    "schema": {"type": "number", "minimum": LEVELS[0], "maximum": LEVELS[1], "default": DEFAULT_LEVEL},
}

PREDICT_PARAMETERS: Final[list[dict[str, Any]]] = [
    _LEVEL,
    {
        "name": "quantiles",
        "in": "query",
        "description": "Quantiles of the prediction, separated by commas, such as 0.1,0.5,0.9.",
        "schema": {"type": "string"},
    },
    {
        "name": "keep",
        "in": "query",
        "description": "Columns of a table to copy to the answer.",
        "schema": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_KEPT},
    },
    {
        "name": "keep_all",
        "in": "query",
        "description": "Copy all columns of a table to the answer.",
        "schema": {"type": "boolean", "default": False},
    },
]
"""The parameters of ``/predict``, for OpenAPI."""

EFFECT_PARAMETERS: Final[list[dict[str, Any]]] = [
    {"name": "column", "in": "query", "required": True, "description": "The column.", "schema": {"type": "string"}},
    _LEVEL,
]
"""The parameters of ``/effect``."""


def read_query(query: Any) -> tuple[Request, list[str]]:
    """The parameters of ``/predict``.

    Args:
        query: Starlette's ``QueryParams``.

    Returns:
        What is asked for, and the columns to keep; ``*`` is all.

    Raises:
        Refusal: with status 422, if a parameter is unknown or its value is not valid.
    """
    if not query:
        return Request(), []
    _check_names(query, [parameter["name"] for parameter in PREDICT_PARAMETERS])
    keep = query.getlist("keep")
    if len(keep) > MAX_KEPT:
        raise Refusal(422, f"keep may be given {MAX_KEPT:,} times at most: use keep_all=true")
    keep_all = query.get("keep_all", "false").lower()
    if keep_all not in ("true", "false", "1", "0"):
        raise Refusal(422, f"keep_all must be true or false, got {quoted(keep_all)}")
    request = Request(_read_level(query), _read_quantiles(query.get("quantiles", "")))
    return request, ["*"] if keep_all in ("true", "1") else keep


def read_effect_query(query: Any) -> tuple[str, float]:
    """The parameters of ``/effect``.

    Args:
        query: Starlette's ``QueryParams``.

    Returns:
        The column and the level.

    Raises:
        Refusal: with status 422, if a parameter is missing, unknown or not valid.
    """
    _check_names(query, [parameter["name"] for parameter in EFFECT_PARAMETERS])
    if "column" not in query:
        raise Refusal(422, "the parameter column is missing: /effect?column=NAME")
    return query["column"], _read_level(query)


def _check_names(query: Any, known: Collection[str]) -> None:
    unknown = [quoted(name) for name in query if name not in known]
    if unknown:
        raise Refusal(422, f"unknown parameters: {listed(unknown)}; there are {', '.join(known)}")
    if any(len(value) > MAX_LENGTH for value in query.values()):
        raise Refusal(422, f"a parameter may have {MAX_LENGTH:,} characters at most")


def _read_level(query: Any) -> float:
    text = query.get("level")
    if text is None:
        return DEFAULT_LEVEL
    (level,) = _numbers(text, "level", LEVELS, 1)
    return level


def _read_quantiles(text: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(_numbers(text, "quantiles", QUANTILES, MAX_QUANTILES))) if text else ()


def _numbers(text: str, name: str, ends: tuple[float, float], maximum: int) -> list[float]:
    """Numbers separated by commas."""
    lowest, highest = ends
    many = f"{maximum} numbers at most, separated by commas, each" if maximum > 1 else "a number"
    expected = f"{name} must be {many} from {lowest:g} to {highest:g}, got {quoted(text)}"
    try:
        values = [float(part) for part in text.split(",", maximum)]
    except ValueError as error:
        raise Refusal(422, expected) from error
    if len(values) > maximum or not all(lowest <= value <= highest for value in values):
        raise Refusal(422, expected)
    return values
