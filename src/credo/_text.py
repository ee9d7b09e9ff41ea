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


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most similar to ``name``, without regard to case and outer spaces; ``None`` if none is."""
    by_folded = {_folded(n): n for n in reversed(list(names))}
    found = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def _folded(name: str) -> str:
    return name.strip().casefold()
