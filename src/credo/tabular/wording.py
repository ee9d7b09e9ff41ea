"""Names and values of a table, as they appear in sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_LONGEST_QUOTE = 40


def quoted(value: object) -> str:
    """``value`` in quotes, cut where it is long."""
    text = str(value)
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…")


def listed(items: Sequence[str], limit: int = 5) -> str:
    """The first few of ``items`` and how many more there are."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more:,} more" if more > 0 else "")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most like ``name``, whatever the case and the spaces around them; ``None`` if none is."""
    by_folded = {_folded(n): n for n in reversed(list(names))}
    found = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def counted(number: int, what: str) -> str:
    """``number`` and ``what``, in the plural where it must be."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def _folded(name: str) -> str:
    return name.strip().casefold()
