"""How the dates of a column are written: the order of day, month and year, and dates without separators.

``2024-03-31``, ``31 March 2024`` and ``2024년 3월 31일`` can be read in one way only. ``03/04/2024`` is the third of
April or the fourth of March, and ``20240331`` a date or a number. A :class:`DateFormat` fixes the reading of a whole
column, as :class:`~credo.tabular.number_format.NumberFormat` does for numbers.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from credo.errors import LoadError

ORDERS = ("dmy", "mdy", "ymd")

_MAX_LENGTH = 60
_PIVOT = 69  # of years with two digits, as in POSIX: 69 is 1969 and 68 is 2068

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january januar jan",
            "february februar feb",
            "march märz maerz mar mär mrz",
            "april apr",
            "may mai",
            "june juni jun",
            "july juli jul",
            "august aug",
            "september sept sep",
            "october oktober oct okt",
            "november nov",
            "december dezember dec dez",
        ),
        start=1,
    )
    for name in names.split()
}
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun|mo|di|mi|do|fr|sa|so)[a-zü]*\.?,?\s+)?"
_TIME = (
    r"(?:(?:\s*[T,]\s*|\s+)(?:(?P<korean>오전|오후)\s*)?(?P<hour>\d{1,2}):(?P<minute>\d{2})"
    r"(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?\s*(?P<half>[ap]\.?m\.?)?"
    r"\s*(?P<zone>z|utc|gmt|[+-]\d{2}:?\d{2})?)?"
)
_NAME = r"(?P<name>[^\W\d_]{3,9})\.?"
_UNAMBIGUOUS = tuple(
    re.compile(_WEEKDAY + pattern + _TIME, re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})\s*(?P<mark>[-/.])\s*(?P<month>\d{1,2})\s*(?P=mark)\s*(?P<day>\d{1,2})\.?",
        r"(?P<year>\d{4})\s*년\s*(?P<month>\d{1,2})\s*월(?:\s*(?P<day>\d{1,2})\s*일)?",
        rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[\s-]*{_NAME}[\s,-]*(?P<year>\d{{4}}|\d{{2}})",
        rf"{_NAME}\s*(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})",
        rf"{_NAME}[\s-]+(?P<year>\d{{4}})",
    )
)
_ORDERED = re.compile(
    rf"{_WEEKDAY}(?P<first>\d{{1,2}})\s*(?P<mark>[-/.])\s*(?P<second_part>\d{{1,2}})\s*(?P=mark)\s*"
    rf"(?P<third>\d{{4}}|\d{{2}}){_TIME}",
    re.IGNORECASE,
)
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?")


class DateText(NamedTuple):
    """The three numbers of a date, the last one as text, and the mark between them."""

    first: int
    second: int
    third: str
    mark: str

    @property
    def has_short_year(self) -> bool:
        """Whether all numbers have at most two digits, so that each may be the year."""
        return len(self.third) == 2


@dataclass(frozen=True)
class DateFormat:
    """How the dates of a column are written.

    Attributes:
        order: the order of day, month and year in dates such as ``03/04/2024``: ``"dmy"``, ``"mdy"``, for years with
            two digits also ``"ymd"``; empty: such dates are not accepted. Others have an order of their own.
        compact: whether ``20240331`` and ``20240331120000`` are dates.
    """

    order: str = ""
    compact: bool = False

    def parse(self, text: str) -> datetime.datetime | None:
        """The date in ``text``, or ``None`` if it is none in this format; without a time zone if it has none."""
        text = text.strip()
        if not 6 <= len(text) <= _MAX_LENGTH:
            return None
        if self.compact and (match := _COMPACT.fullmatch(text)):
            return _date(*(int(part or 0) for part in match.groups()))
        iso = _parse_iso(text)
        if iso is not None:
            return iso
        for pattern in _UNAMBIGUOUS:
            if match := pattern.fullmatch(text):
                return _from_match(match)
        if self.order and (match := _ORDERED.fullmatch(text)):
            parts = dict(zip(self.order, match.group("first", "second_part", "third"), strict=True))
            if self.order == "ymd" and len(match["third"]) == 4:
                return None
            return _with_time(match, _full_year(parts["y"]), int(parts["m"]), int(parts["d"]))
        return None

    def describe(self) -> str:
        """The format in words; empty if there is only one reading."""
        words = {"dmy": "day before month", "mdy": "month before day", "ymd": "year, month, day", "": ""}
        return "dates without separators" if self.compact else words[self.order]

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DateFormat:
        """The inverse of :meth:`get_config`."""
        found = cls(**config)
        if found.order not in ("", *ORDERS):
            raise LoadError(f"the saved format of a column of dates is damaged: {dict(config)!r}")
        return found


def split_date(text: str) -> DateText | None:
    """The parts of a date such as ``03/04/2024``, whose order is open; ``None`` for other texts."""
    match = _ORDERED.fullmatch(text.strip()) if len(text) <= _MAX_LENGTH else None
    if match is None:
        return None
    return DateText(int(match["first"]), int(match["second_part"]), match["third"], match["mark"])


def _parse_iso(text: str) -> datetime.datetime | None:
    if not (len(text) >= 7 and text[:4].isdigit() and not text.isdigit()):
        return None
    iso = text.replace("/", "-")
    try:
        return datetime.datetime.fromisoformat(f"{iso}-01" if len(iso) == 7 else iso)
    except ValueError:
        return None


def _from_match(match: re.Match[str]) -> datetime.datetime | None:
    parts = match.groupdict()
    month = _MONTHS.get(parts["name"].casefold(), 0) if "name" in parts else int(parts["month"])
    return _with_time(match, _full_year(parts["year"]), month, int(parts.get("day") or 1))


def _with_time(match: re.Match[str], year: int, month: int, day: int) -> datetime.datetime | None:
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    half = (match["half"] or match["korean"] or "").casefold()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half[0] in "p" or half == "오후" else 0)
    date = _date(year, month, day, hour, minute, second)
    if date is None:
        return None
    date += datetime.timedelta(microseconds=int((match["fraction"] or "0").ljust(6, "0")[:6]))
    return date.replace(tzinfo=_time_zone(match["zone"]))


def _time_zone(text: str | None) -> datetime.timezone | None:
    if text is None:
        return None
    if text.casefold() in ("z", "utc", "gmt"):
        return datetime.UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return datetime.timezone(datetime.timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _full_year(digits: str) -> int:
    year = int(digits)
    return year if len(digits) == 4 else year + (1900 if year >= _PIVOT else 2000)


def _date(*parts: int) -> datetime.datetime | None:
    try:
        return datetime.datetime(*parts)  # type: ignore[arg-type]
    except ValueError:
        return None
