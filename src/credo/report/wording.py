"""Numbers, names and cells as a page shows them."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence

from credo._text import counted

_LONGEST_NAME = 40
_LONGEST_CELL = 24
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters, which neither HTML nor XML allows
    "\u202a-\u202e\u2066-\u2069"  # changes of writing direction, which would reach beyond their cell
    "\ufffe\uffff]"
)


def number(value: float, digits: int = 3, trim: bool = False) -> str:
    """``value`` with so many significant digits, or all before the point; a dash where it is undefined.

    Args:
        value: any.
        digits: the significant ones.
        trim: leave out zeros at the end.
    """
    size = abs(value)
    if size and math.isfinite(value) and not 1e-4 <= size < 1e7:
        return f"{value:.{digits}g}".replace("-", "−")
    text = fixed(value, decimals_of(size, digits))
    return text.rstrip("0").rstrip(".") if trim and "." in text else text


def fixed(value: float, decimals: int) -> str:
    """``value`` with so many decimals."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.{decimals}f}".replace("-", "−")


def decimals_of(size: float, digits: int = 3) -> int:
    """The decimals with which a number of this ``size`` has so many significant digits."""
    return max(digits - 1 - math.floor(math.log10(size)), 0) if size and math.isfinite(size) else 0


def percent(share: float) -> str:
    """A share in per cent, in whole ones, but never rounded to none or to all."""
    if math.isnan(share):
        return "–"
    if 0.0 < share < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= share < 1.0:
        return "over 99.9 %"
    near_an_end = 0.0 < share < 0.005 or 0.995 <= share < 1.0
    return f"{100 * share:.{1 if near_an_end else 0}f} %"


def interval(lower: float, upper: float, digits: int = 3) -> str:
    """Both ends."""
    return f"{number(lower, digits)} to {number(upper, digits)}"


def rows(count: int) -> str:
    """So many held-out rows."""
    return counted(count, "held-out row")


def name(text: object, longest: int = _LONGEST_NAME) -> str:
    """A name from the data, in quotes, on one line, cut where it is long."""
    return f"“{cut(text, longest)}”"


def cut(text: object, longest: int = _LONGEST_CELL) -> str:
    """A text from the data on one line, cut where it is long."""
    line = " ".join(printable(str(text)).split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip()}…"


def printable(text: str) -> str:
    """``text`` without what a page cannot hold, each such character replaced by �."""
    return _UNPRINTABLE.sub("�", text.encode("utf-8", "replace").decode("utf-8"))


def for_figure(text: object, longest: int = _LONGEST_CELL) -> str:
    """A text from the data as matplotlib takes it: a dollar sign is one, and opens no formula."""
    return cut(text, longest).replace("$", r"\$")


def joined(items: Sequence[str]) -> str:
    """Items as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def today() -> str:
    """The date, as a page bears it."""
    date = datetime.date.today()
    return f"{date.day} {date:%B %Y}"
