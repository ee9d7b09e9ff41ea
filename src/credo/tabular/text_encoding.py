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

_HANGUL = re.compile(r"[가-힣ㄱ-ㆎ]")
_WESTERN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿŒœŠšŽžŸƒ€£¥¢©®™°±²³¹¼½¾µ·×÷§¶«»‹›„“”‚‘’–—…•¿¡ªº\u00a0]")
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
        The name of the encoding, if at least 90 % of the characters above 127 are Korean, or Western letters and signs.
    """
    for name, expected in (("cp949", _HANGUL), ("cp1252", _WESTERN)):
        text = sample.decode(name, errors="replace")
        others = [character for character in text if character > "\x7f"]
        if others and sum(bool(expected.match(c)) for c in others) >= _MIN_SHARE * len(others):
            return name
    return None
