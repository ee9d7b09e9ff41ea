"""Names, values and counts, formatted for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_MAX_QUOTE_LENGTH = 40


def quoted(value: object) -> str:
    """``value`` as text in quotes, shorten to 40 characters."""
    text = str(value)
    return repr(text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}…")


def listed(items: Sequence[str], limit: int = 5) -> str:
    """The first ``limit`` of ``items``, separated by commas, and the number of others."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    """``number`` and ``what``, in the plural unless the number is 1: ``counted(2, "category")`` is "2 categories"."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def closest_names(name: str, names: Iterable[str], limit: int = 3, cutoff: float = 0.5) -> list[str]:
    """Up to ``limit`` of ``names`` that are similar to ``name``, nearest first, ignoring case and outer spaces.

    Args:
        name: the name that was given.
        names: the names that exist.
        limit: maximum number of names.
        cutoff: minimum similarity, from 0 to 1 for equal names (``difflib``).
    """
    by_folded = {_folded(n): n for n in reversed(list(names))}
    return [by_folded[found] for found in difflib.get_close_matches(_folded(name), by_folded, limit, cutoff)]


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most similar to ``name``; ``None`` if none is."""
    return next(iter(closest_names(name, names, limit=1, cutoff=0.6)), None)


def _folded(name: str) -> str:
    return name.strip().casefold()
