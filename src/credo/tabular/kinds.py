"""What a column holds: numbers, dates or categories."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal

import pandas as pd
from pandas.api import types

from credo.tabular.cells import day, number, present
from credo.tabular.wording import quoted

Kind = Literal["number", "date", "category"]

READABLE_SHARE = 0.9
"""Text is a column of numbers, or of dates, if this share of what is not missing reads so."""

_COMMAS = re.compile(r"[-+]?[\d.]*\d,\d[\d.,]*")
_OTHER_DATES = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})\b.*", re.DOTALL)


def kind_of(column: pd.Series) -> Kind:
    """The kind of a training column.

    A dtype that says what it holds is believed: numbers, truth values and durations are numbers, dates are dates, and
    ``category`` is a category even where its values are numbers. Text and mixed columns are what at least 90 % of
    their cells read as, first numbers, then dates, and categories otherwise.
    """
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if types.is_numeric_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return "date"
    cells = present(column)
    if _mostly(number, cells):
        return "number"
    return "date" if _mostly(day, cells) else "category"


def hint(words: Sequence[str]) -> str:
    """What to do about words that look like numbers or dates in a notation that is not read; else nothing."""
    for pattern, advice in (
        (_COMMAS, "numbers with commas: write them with a decimal point and without thousands separators"),
        (_OTHER_DATES, "dates: write them as year-month-day, such as 2024-03-31"),
    ):
        if words and sum(bool(pattern.fullmatch(w)) for w in words) >= READABLE_SHARE * len(words):
            return f"values such as {quoted(words[0])} look like {advice}"
    return ""


def _mostly(rule: Callable[[object], float], cells: Sequence[object]) -> bool:
    """Whether 90 % of the cells can be read; a column with too many others is given up early."""
    allowed = (1.0 - READABLE_SHARE) * len(cells) + 1e-9
    failures = 0
    for cell in cells:
        failures += math.isnan(rule(cell))
        if failures > allowed:
            return False
    return True
