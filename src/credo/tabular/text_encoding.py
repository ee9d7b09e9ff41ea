"""The encoding of a text file, from its byte order mark or from its bytes.

UTF-8 is recognized with certainty: text in another encoding is hardly ever valid UTF-8. The older encodings of a byte
or two per character are not: the same bytes are valid in most of them. They are told apart by whether the characters
they give are those of words, and what was found is said in a note.
"""

from __future__ import annotations

import codecs
import re

UNICODE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks and their encodings."""

_KOREAN = re.compile(r"[가-힣ㄱ-ㆎ一-龥\uff00-\uffef\u2000-\u33ff]")  # with Chinese and full-width signs
_HANGUL = re.compile(r"[가-힣]")
_IN_WORD = re.compile(rb"[A-Za-z][\x80-\xff]|[\x80-\xff][a-z]")
_HIGH_PAIR = re.compile(rb"[\x81-\xfe][\xa1-\xfe]")  # a Korean character; Western letters rarely come in pairs
_WESTERN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ€£¥¢©®™°±²³¹¼½¾µ·×÷§¶«»„“”‘’–—…•¿¡ªº\u00a0]")
_MIN_SHARE = 0.9


def detect_unicode(head: bytes) -> str | None:
    """The encoding that a byte order mark, or NUL bytes in every other place, show; ``None`` for all others."""
    for mark, name in UNICODE_MARKS:
        if head.startswith(mark):
            return name
    even, odd = head[0:1000:2], head[1:1000:2]
    if len(odd) >= 4 and odd.count(0) > _MIN_SHARE * len(odd) and not even.count(0):
        return "utf-16-le"
    if len(odd) >= 4 and even.count(0) > _MIN_SHARE * len(even) and not odd.count(0):
        return "utf-16-be"
    return None


def detect_legacy(sample: bytes) -> str | None:
    """``"cp949"`` (Korean, also EUC-KR), ``"cp1252"`` (Western European, also Latin-1), or ``None``.

    Args:
        sample: bytes of a file that is not UTF-8, some of them above 127.

    Returns:
        The name of the encoding, if at least 90 % of the characters above 127 are those of Korean texts and take two
        bytes, or are Western letters and signs.
    """
    pairs = 2 * len(_HIGH_PAIR.findall(sample)) / max(sum(byte > 127 for byte in sample), 1)
    if pairs > _MIN_SHARE and _share(_KOREAN, sample, "cp949") > _MIN_SHARE and _share(_HANGUL, sample, "cp949") > 0.5:
        return "cp949"
    is_western = pairs <= _MIN_SHARE or _IN_WORD.search(sample)
    return "cp1252" if is_western and _share(_WESTERN, sample, "cp1252") > _MIN_SHARE else None


def _share(expected: re.Pattern[str], sample: bytes, encoding: str) -> float:
    """The share of the characters above 127 that match."""
    others = [character for character in sample.decode(encoding, errors="replace") if character > "\x7f"]
    return sum(bool(expected.match(character)) for character in others) / max(len(others), 1)
