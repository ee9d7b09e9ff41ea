"""How the numbers of a column are written: decimal mark, thousands separators, a currency or percent sign, words.

Some texts can be read in two ways: ``1,234`` is 1234 with a thousands separator and 1.234 with a decimal comma. A
:class:`NumberFormat` fixes the reading of a whole column. It is chosen once, from all cells of the training table
(:mod:`credo.tabular.readings`), saved with the model, and applied to every later cell, also to a single one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from credo.errors import LoadError

PERCENT = "%"

CURRENCIES: Mapping[str, tuple[str, ...]] = {
    "USD": ("US$", "$", "USD"),
    "EUR": ("€", "EUR", "Euro"),
    "GBP": ("£", "GBP"),
    "JPY": ("¥", "￥", "JPY", "円"),
    "KRW": ("₩", "￦", "KRW", "원"),
    "CNY": ("CNY", "RMB", "元"),
    "CHF": ("CHF", "Fr.", "SFr."),
    "INR": ("₹", "INR", "Rs."),
    "RUB": ("₽", "RUB"),
    "TRY": ("₺", "TRY"),
    "BRL": ("R$", "BRL"),
    "CAD": ("C$", "CA$", "CAD"),
    "AUD": ("A$", "AU$", "AUD"),
    "PLN": ("zł", "PLN"),
    "SEK": ("SEK",),
    "NOK": ("NOK",),
    "DKK": ("DKK",),
    "CZK": ("Kč", "CZK"),
    "HUF": ("Ft", "HUF"),
    "MXN": ("MXN",),
    "ZAR": ("ZAR",),
    "SGD": ("S$", "SGD"),
    "HKD": ("HK$", "HKD"),
    "NZD": ("NZ$", "NZD"),
    "THB": ("฿", "THB"),
    "ILS": ("₪", "ILS"),
    "VND": ("₫", "VND"),
}
"""Currencies by code, and how they are written beside a number."""

TRUE_WORDS = frozenset(["true", "yes", "y", "t", "1", "on", "ja", "j", "wahr", "oui", "si", "sí", "예", "네"])
FALSE_WORDS = frozenset(["false", "no", "n", "f", "0", "off", "nein", "falsch", "non", "아니오", "아니요"])
"""Words of both truth values, in lower case."""

_UNITS = {sign: code for code, signs in CURRENCIES.items() for sign in signs} | {PERCENT: PERCENT, "％": PERCENT}
_CURRENCY = "|".join(re.escape(sign) for sign in sorted(_UNITS, key=len, reverse=True) if _UNITS[sign] != PERCENT)
_NUMBER = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[+-])?\s*(?P<before>{_CURRENCY})?\s*(?P<inner>[+-])?\s*"
    rf"(?P<body>[\d.,' ]*\d)(?P<exponent>[eE][+-]?\d+)?\s*(?P<after>{_CURRENCY}|%|％)?\s*(?P<last>-)?\s*(?P<close>\))?"
)
_SAME_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"),  # minus, en dash, small and full-width hyphen
        **dict.fromkeys("\u00a0\u202f\u2009\u2007", " "),  # spaces that do not break a line
        **dict.fromkeys("\u2019\u2018\u00b4\u02bc", "'"),
    }
)
_TRUTH = {"true": 1.0, "false": 0.0}


class NumberText(NamedTuple):
    """The parts of a text that may be a number: its sign, digits and separators, exponent and unit."""

    negative: bool
    body: str
    exponent: str
    unit: str


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    The separators of ``1 234`` and ``1'234`` and texts in which both marks occur, such as ``1,234.50``, can be read in
    one way only, and are accepted where they agree with ``decimal``. So are signs, accounting negatives ``(12)`` and
    exponents.

    Attributes:
        decimal: the decimal mark, ``"."`` or ``","``.
        grouped: whether the other mark separates thousands also in a text with no other separator, such as ``1,234``.
        unit: ``"%"``, a key of :data:`CURRENCIES`, or empty. Every cell must have the percent sign, 0 excepted, but
            the currency may be left out. Texts with another unit are not numbers of this column.
        boolean: whether the cells are words for true and false, in any case, which are 1 and 0.
    """

    decimal: str = "."
    grouped: bool = False
    unit: str = ""
    boolean: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all numbers are as Python writes them."""
        return self == NumberFormat()

    @property
    def other_mark(self) -> str:
        """The one of ``"."`` and ``","`` that is not the decimal mark."""
        return "," if self.decimal == "." else "."

    def parse(self, text: str) -> float:
        """The number in ``text``, or NaN if it is none in this format."""
        text = text.strip()
        if self.boolean:
            folded = text.casefold()
            return 1.0 if folded in TRUE_WORDS else 0.0 if folded in FALSE_WORDS else math.nan
        if self.decimal == "." and self.unit != PERCENT and not math.isnan(value := parse_plain(text)):
            return value
        parts = split_number(text)
        if parts is None:  # infinity, true or false
            return math.nan if any(map(str.isdigit, text)) else parse_plain(text)
        return self.value(parts)

    def value(self, parts: NumberText) -> float:
        """The number of a text that is already split into its parts, or NaN."""
        if parts.unit not in ("", self.unit) or not _pattern(self.decimal, self.grouped).fullmatch(parts.body):
            return math.nan
        digits = parts.body.replace(" ", "").replace("'", "").replace(self.other_mark, "").replace(",", ".")
        size = float(digits + parts.exponent)
        if self.unit == PERCENT and not parts.unit and size != 0.0:
            return math.nan
        return (-size if parts.negative else size) + 0.0  # no negative zero

    def write(self, value: float) -> str:
        """A text that :meth:`parse` reads as ``value``, for columns of numbers."""
        return repr(float(value)).replace(".", self.decimal) + (f" {self.unit}" if self.unit == PERCENT else "")

    def describe(self) -> str:
        """The format in words; empty for plain numbers."""
        if self.boolean:
            return "words for true and false as 1 and 0"
        parts = [
            *(["decimal commas"] if self.decimal == "," else []),
            *([f"thousands separated by {self.other_mark!r}"] if self.grouped else []),
            *([f"in {self.unit}"] if self.unit else []),
        ]
        return ", ".join(parts)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> NumberFormat:
        """The inverse of :meth:`get_config`."""
        found = cls(**config)
        if found.decimal not in (".", ",") or found.unit not in ("", PERCENT, *CURRENCIES):
            raise LoadError(f"the saved format of a column of numbers is damaged: {dict(config)!r}")
        return found


def split_number(text: str) -> NumberText | None:
    """The parts of a text that may be a number, or ``None``; the separators are checked by the format."""
    text = text.strip().translate(_SAME_CHARACTERS)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, before, inner, after, last = match.group("sign", "before", "inner", "after", "last")
    in_parentheses = match["open"] is not None
    signs = [s for s in (sign, inner, last) if s is not None]
    if in_parentheses != (match["close"] is not None) or len(signs) + in_parentheses > 1 or (before and after):
        return None
    unit = _UNITS[before or after] if before or after else ""
    return NumberText(in_parentheses or signs == ["-"], match["body"].strip(), match["exponent"] or "", unit)


@functools.cache
def _pattern(decimal: str, grouped: bool) -> re.Pattern[str]:
    d, other = re.escape(decimal), re.escape("," if decimal == "." else ".")
    integers = [
        r"\d+",
        r"[1-9]\d{0,2}(?:[ ']\d{3})+",
        rf"[1-9]\d{{0,2}}(?:{other}\d{{3}})" + ("+" if grouped else "{2,}"),
        rf"[1-9]\d?(?:{other}\d{{2}})+{other}\d{{3}}",  # lakh and crore
    ]
    with_both = rf"[1-9]\d{{0,2}}(?:{other}\d{{3}})+{d}\d+"
    return re.compile(rf"(?:{'|'.join(integers)})(?:{d}\d+)?|{with_both}|{d}\d+")


def parse_plain(text: str) -> float:
    """The number in a text as Python writes it, or NaN; true and false are 1 and 0."""
    if "_" in text:  # Python's own 1_000; in tables, part of an identifier
        return math.nan
    try:
        return float(text) + 0.0
    except ValueError:
        return _TRUTH.get(text.casefold(), math.nan)
