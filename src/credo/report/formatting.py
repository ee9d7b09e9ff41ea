"""Numbers, names and scores as text."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence

from credo._text import counted
from credo.metrics import Score

_MAX_NAME = 40  # characters
_MAX_CELL = 24
_FRACTIONS = ("accuracy", "coverage")  # scores that are shown in percent
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters, which neither HTML nor XML allows
    "\u202a-\u202e\u2066-\u2069"  # changes of writing direction, which would reach beyond their cell
    "\ufffe\uffff]"
)


def format_number(value: float, digits: int = 3, trim: bool = False) -> str:
    """Return ``value`` with ``digits`` significant digits, more before the decimal point; a dash for NaN.

    Args:
        value: any number.
        digits: the number of significant digits.
        trim: remove trailing zeros.
    """
    size = abs(value)
    if size and math.isfinite(value) and not 1e-4 <= size < 1e7:
        return f"{value:.{digits}g}".replace("-", "−")
    text = format_fixed(value, decimals_for(size, digits))
    return text.rstrip("0").rstrip(".") if trim and "." in text else text


def format_fixed(value: float, decimals: int) -> str:
    """Return ``value`` with a fixed number of decimals."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.{decimals}f}".replace("-", "−")


def decimals_for(size: float, digits: int = 3) -> int:
    """Return the number of decimals that shows a number of this ``size`` with ``digits`` significant digits."""
    return max(digits - 1 - math.floor(math.log10(size)), 0) if size and math.isfinite(size) else 0


def format_percent(fraction: float) -> str:
    """Return a fraction as an integer percentage; values near 0 and 1 are never rounded to 0 % or 100 %."""
    if math.isnan(fraction):
        return "–"
    if 0.0 < fraction < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= fraction < 1.0:
        return "over 99.9 %"
    near_an_end = 0.0 < fraction < 0.005 or 0.995 <= fraction < 1.0
    return f"{100 * fraction:.{1 if near_an_end else 0}f} %"


def format_range(lower: float, upper: float, digits: int = 3) -> str:
    """Return both ends of an interval."""
    return f"{format_number(lower, digits)} to {format_number(upper, digits)}"


def format_rows(count: int) -> str:
    """Return the number of held-out rows in words."""
    return counted(count, "held-out row")


def quote(text: object, max_length: int = _MAX_NAME) -> str:
    """Return a name from the data in quotes, on one line, truncated."""
    return f"“{truncate(text, max_length)}”"


def truncate(text: object, max_length: int = _MAX_CELL) -> str:
    """Return a text from the data on one line with at most ``max_length`` characters."""
    line = " ".join(replace_unprintable(str(text)).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1].rstrip()}…"


def replace_unprintable(text: str) -> str:
    """Return ``text`` with every character that HTML does not allow replaced by �."""
    return _UNPRINTABLE.sub("�", text.encode("utf-8", "replace").decode("utf-8"))


def escape_for_figure(text: object, max_length: int = _MAX_CELL) -> str:
    """Return a text from the data for matplotlib: a dollar sign does not start a formula."""
    return truncate(text, max_length).replace("$", r"\$")


def join_words(items: Sequence[str]) -> str:
    """Return the items as a list in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def capitalize(text: str) -> str:
    """Return ``text`` with a capital first letter; the rest is unchanged."""
    return text[0].upper() + text[1:]


def today() -> str:
    """Return the current date."""
    date = datetime.date.today()
    return f"{date:%B} {date.day}, {date.year}"


def format_score(score: Score, others: Sequence[Score] = ()) -> str:
    """Return the value of a score, with the same decimals as the ``others`` beside it."""
    return _format_score_value(score.value, (score, *others))


def format_score_interval(score: Score, others: Sequence[Score] = ()) -> str:
    """Return the 95 % interval of a score, with the same decimals as the ``others`` beside it."""
    if math.isnan(score.lower):
        return "undefined"
    lower, upper = (_format_score_value(end, (score, *others)) for end in (score.lower, score.upper))
    return f"{lower} to {upper}"


def format_better(score: Score) -> str:
    """Return "lower", "higher" or the level that the score should be near."""
    return score.better if score.level is None or score.better != "level" else f"near {format_percent(score.level)}"


def _format_score_value(value: float, scores: Sequence[Score]) -> str:
    """Return a number of one of ``scores``, with the decimals of the largest of them."""
    if scores[0].name in _FRACTIONS:
        return format_percent(value)
    sizes = [abs(v) for score in scores for v in (score.value, score.lower, score.upper) if math.isfinite(v)]
    largest = max(sizes, default=0.0)
    return format_fixed(value, decimals_for(largest)) if 1e-3 <= largest < 1e7 else format_number(value)
