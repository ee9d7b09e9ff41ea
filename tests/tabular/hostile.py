"""Tables with typical defects, and the errors or warnings they must cause."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

ROWS = 40
MIXED_ROWS = 60
TARGET = "y"

Outcome = Literal["refused", "noted", "silent"]
Table = Mapping[str, Sequence[object]]


@dataclass(frozen=True)
class Case:
    """One file.

    Attributes:
        name: what is special about it.
        content: its bytes.
        outcome: "refused" with an InputError, accepted and "noted", or accepted in silence.
        words: each occurs in the error, or in one of the notes, whatever the case of its letters.
        task: what the file is given to learn; the column to predict is "y".
    """

    name: str
    content: Callable[[], bytes]
    outcome: Outcome
    words: tuple[str, ...] = ()
    task: Literal["regression", "classification"] = "regression"

    def write(self, folder: Path) -> Path:
        """Write the file into ``folder``."""
        path = folder / f"{self.name.replace(' ', '-')}.csv"
        path.write_bytes(self.content())
        return path


def good_columns(rows: int = ROWS) -> dict[str, list[object]]:
    """A table with nothing wrong: two numbers, a category and a target that depends on all of them."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=rows), rng.uniform(0.0, 10.0, size=rows)
    color = [("red", "green", "blue")[i % 3] for i in range(rows)]
    y = x + 0.3 * z + np.array([0.0, 1.0, 2.0])[np.arange(rows) % 3]
    return {"x": x.tolist(), "z": z.tolist(), "color": color, TARGET: y.tolist()}


def mixed_frame() -> pd.DataFrame:
    """Every kind of column, with gaps, tails, rare words and text among numbers."""
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=MIXED_ROWS)
    return pd.DataFrame(
        {
            "plain": numbers,
            "whole": rng.integers(0, 9, MIXED_ROWS),
            "flag": rng.integers(0, 2, MIXED_ROWS).astype(bool),
            "gaps": np.where(numbers > 1.0, np.nan, numbers),
            "tail": np.exp(3.0 * numbers),
            "dirty": pd.Series([str(v) for v in numbers[:-2]] + ["?", "unknown"], dtype=object),
            "word": rng.choice(["red", "green", "blue", "1"], MIXED_ROWS),
            "rare": [f"town {i}" if i < 8 else "Rome" if i % 2 else None for i in range(MIXED_ROWS)],
            "date": pd.date_range("2019-03-01", periods=MIXED_ROWS, freq="17D").strftime("%Y-%m-%d"),
            "stamp": pd.date_range("2024-01-01", periods=MIXED_ROWS, freq="7h"),
        }
    )


def to_csv(table: Table, delimiter: str = ",") -> bytes:
    """``table`` as CSV in UTF-8."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


def with_columns(**columns: Sequence[object]) -> bytes:
    """The good table with some columns added or replaced."""
    return to_csv(good_columns() | columns)


def first_replaced(values: Sequence[object], *new: object) -> list[object]:
    """``values`` with ``new`` in the place of the first ones."""
    return [*new, *values[len(new) :]]


def _good_lines() -> list[bytes]:
    return to_csv(good_columns()).splitlines(keepends=True)


def _ragged() -> bytes:
    lines = _good_lines()
    lines[6] = b"1.0,2.0,red\n"
    return b"".join(lines)


def _open_quote() -> bytes:
    lines = _good_lines()
    lines[6] = b'1.0,2.0,"red,3.0\n'
    return b"".join(lines)


def _duplicate_names() -> bytes:
    lines = _good_lines()
    return b"".join([b"x,x,color,y\n", *lines[1:]])


def _latin_1() -> bytes:
    return with_columns(color=["gr\u00fcn", "rot"] * (ROWS // 2)).decode().encode("latin-1")


def _utf_16() -> bytes:
    return to_csv(good_columns()).decode().encode("utf-16")


def _ten_thousand_columns() -> bytes:
    rng = np.random.default_rng(1)
    return with_columns(**{f"gene{j}": rng.integers(0, 1000, size=ROWS).tolist() for j in range(10_000)})


def _huge_cell() -> bytes:
    comments = [f"comment {i}" for i in range(ROWS)]
    return with_columns(comment=first_replaced(comments, "long " * 200_000))


def _late_nul() -> bytes:
    comments = [f"comment {i} {'.' * 2_000}" for i in range(ROWS)]
    return with_columns(comment=[*comments[:-1], "NUL \0"])


def _target(*first: object) -> bytes:
    return with_columns(y=first_replaced(good_columns()[TARGET], *first))


def _dates() -> bytes:
    return with_columns(day=[f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(ROWS)])


REFUSED = (
    Case("empty", lambda: b"", "refused", ("is empty",)),
    Case("header only", lambda: _good_lines()[0], "refused", ("header", "no rows")),
    Case("nine rows", lambda: b"".join(_good_lines()[:10]), "refused", ("9 rows", "at least 10")),
    Case("duplicate names", _duplicate_names, "refused", ("same name", "'x'")),
    Case("no such target", lambda: to_csv({"Y ": [1.0, 2.0] * 20}), "refused", ("no column 'y'", "did you mean 'Y '")),
    Case("ragged rows", _ragged, "refused", ("line 7", "3 fields", "header has 4")),
    Case("open quote", _open_quote, "refused", ("line 7", "quote")),
    Case("binary junk", lambda: bytes(range(256)) * 20, "refused", ("binary",)),
    Case("a late NUL", _late_nul, "refused", ("line 41", "NUL character")),
    Case("workbook", lambda: b"PK\x03\x04" + bytes(range(256)), "refused", ("Excel",)),
    Case("half a gzip", lambda: gzip.compress(to_csv(good_columns()))[:-20], "refused", ("damaged gzip",)),
    Case("infinite target", lambda: _target("inf"), "refused", ("infinite", "row 0")),
    Case("missing target", lambda: with_columns(y=["NA"] * ROWS), "refused", ("missing in every row",)),
    Case("text as quantity", lambda: with_columns(y=["low", "high"] * 20), "refused", ("'low'", "classification")),
    Case("one class", lambda: with_columns(y=["a"] * ROWS), "refused", ("one class",), "classification"),
    Case("classes without end", lambda: with_columns(y=range(ROWS)), "refused", ("40 classes",), "classification"),
    Case("quantity as classes", lambda: to_csv(good_columns()), "refused", ("continuous",), "classification"),
    Case("nothing to learn from", lambda: to_csv({"x": [1] * 20, "y": range(20)}), "refused", ("no column",)),
)

NOTED = (
    Case("Latin-1", _latin_1, "noted", ("not text in UTF-8", "cp1252", "--encoding")),
    Case("decimal commas", lambda: with_columns(y=["1,5", "2,25"] * 20), "noted", ("decimal commas", "'1,5' is 1.5")),
    Case(
        "unknown",
        lambda: with_columns(age=first_replaced(list(range(ROWS)), "unknown", "?")),
        "noted",
        ("stand for a missing value", "'age'", "'unknown' in 1 row"),
    ),
    Case("empty column", lambda: with_columns(e=[""] * ROWS), "noted", ("no value is given", "'e'")),
    Case("constant column", lambda: with_columns(c=[7] * ROWS), "noted", ("all values are the same", "'c'")),
    Case("dates", _dates, "noted", ("dates", "'day'", "2024-01-01 to 2024-12-24")),
    Case(
        "text in numbers",
        lambda: with_columns(age=first_replaced(list(range(ROWS)), "old", "young")),
        "noted",
        ("not numbers count as missing", "'age'", "2 values", "'old' in row 0"),
    ),
    Case(
        "infinite feature",
        lambda: with_columns(v=first_replaced(list(range(ROWS)), "-inf")),
        "noted",
        ("infinite values count as missing", "'v'"),
    ),
    Case("gaps", lambda: with_columns(g=first_replaced(list(range(ROWS)), "", "NA")), "noted", ("median", "5.0%")),
    Case("identifiers", lambda: with_columns(i=[f"id-{k}" for k in range(ROWS)]), "noted", ("identifiers", "'i'")),
    Case(
        "American dates",
        lambda: with_columns(d=[f"{m % 12 + 1}/{m % 28 + 1}/2024" for m in range(ROWS)]),
        "noted",
        ("dates", "month before day"),
    ),
    Case("gaps in the target", lambda: _target("", ""), "noted", ("target is missing", "2 of 40")),
    Case("constant target", lambda: with_columns(y=[3.5] * ROWS), "noted", ("3.5 in every row",)),
    Case(
        "lonely class", lambda: with_columns(y=["a", *"bc" * 19, "c"]), "noted", ("single row", "'a'"), "classification"
    ),
    Case("ten thousand columns", _ten_thousand_columns, "noted", ("more features (10,005) than rows (40)",)),
    Case("huge cell", _huge_cell, "noted", ("free text", "'comment'")),
)

SILENT = (
    Case("UTF-16", _utf_16, "silent"),
    Case("plain", lambda: to_csv(good_columns()), "silent"),
    Case("semicolons", lambda: to_csv(good_columns(), ";"), "silent"),
    Case("tabs", lambda: to_csv(good_columns(), "\t"), "silent"),
    Case("bars", lambda: to_csv(good_columns(), "|"), "silent"),
    Case("byte order mark", lambda: b"\xef\xbb\xbf" + to_csv(good_columns()), "silent"),
    Case("Windows line ends", lambda: to_csv(good_columns()).replace(b"\n", b"\r\n"), "silent"),
    Case("blank lines", lambda: to_csv(good_columns()).replace(b"\n", b"\n\n") + b"\n  \n", "silent"),
    Case("gzipped", lambda: gzip.compress(to_csv(good_columns())), "silent"),
    Case("quoted newlines", lambda: with_columns(**{"a\nb": ['one\n"two"', "x, y"] * 20}), "silent"),
    Case("Unicode names", lambda: with_columns(**{"größe µ 数": range(ROWS), " spaced ": range(ROWS)}), "silent"),
    Case("a name left blank", lambda: with_columns(**{"": range(ROWS)}), "silent"),
    Case("classes as numbers", lambda: with_columns(y=[1, 2] * 20), "silent", (), "classification"),
)

CORPUS = (*REFUSED, *NOTED, *SILENT)
