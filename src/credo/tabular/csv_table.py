"""CSV files, validated completely before the first row is returned."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import counted, listed, quoted
from credo.errors import InputError
from credo.tabular.parsing import MISSING_TEXTS, has_fractions
from credo.tabular.table_interface import SAVE_AS_CSV, TableFile, check_names, check_width
from credo.tabular.text_encoding import detect_legacy, detect_unicode

DELIMITERS = (",", ";", "\t", "|")

MAX_ROW_LENGTH = 2**22
"""Maximum number of characters in a row of CSV. A few megabytes of gzip can contain gigabytes of one cell."""

_GZIP = b"\x1f\x8b"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_HEAD = 1 << 16
_SNIFFED_ROWS, _SAMPLED_ROWS, _MAX_PREAMBLE = 20, 1000, 10
_SEPARATOR_LINE = re.compile(r"sep=(.)")  # the first line of some files of Excel
_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*"
_FIELD_SIZE_LOCK = threading.Lock()

# Before 3.1, pandas may round to a neighbor of the nearest float, unlike the conversion of cells that are text.
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
_EXACT_NUMBERS = {} if _PANDAS >= (3, 1) else {"float_precision": "round_trip"}


class CsvTable(TableFile):
    """A CSV file, plain or gzipped."""

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        self._path = path
        with path.open("rb") as stream:
            self._gzipped = stream.read(len(_GZIP)) == _GZIP
        self._encoding = self._check_format(encoding)
        with _long_cells():
            try:
                self._find_rows()
            except UnicodeDecodeError as error:
                self._encoding = self._find_legacy_encoding(encoding, error)
        if self._preamble:
            lines = listed([quoted(line) for line in self._preamble], limit=2)
            warnings.warn(f"{path} begins with lines that are no part of the table: {lines}.", stacklevel=4)

    def _find_rows(self) -> None:
        self._preamble: list[str] = []
        self.delimiter, self._header_line = self._sniff()
        self._check_rows()

    def _find_legacy_encoding(self, given: str | None, error: UnicodeDecodeError) -> str:
        """The encoding of a file that is not UTF-8; warns which one was found."""
        tried = self._encoding
        found = detect_legacy(self._first_other_bytes()) if given is None and tried == "utf-8-sig" else None
        if found is None:
            raise self._not_readable(tried) from error
        self._encoding = found
        try:
            self._find_rows()
        except UnicodeDecodeError as wrong:
            raise self._not_readable(tried) from wrong
        warnings.warn(
            f"{self._path} is not text in UTF-8 and is read as {found}; if its words look wrong, give its encoding "
            "(encoding=, --encoding).",
            stacklevel=5,
        )
        return found

    def read(self, as_text: Sequence[str] = ()) -> pd.DataFrame:
        """All rows."""
        frame = pd.read_csv(self._path, dtype=dict.fromkeys(as_text, str), **self._options(as_text))
        self._check_count(len(frame))
        return self._restore_text(frame)

    def chunks(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time."""
        count = 0
        rows = self._chunk_rows(rows, self._longest_row)
        text = dict.fromkeys(as_text, str)
        with pd.read_csv(self._path, chunksize=rows, dtype=text, **self._options(as_text)) as reader:
            for frame in reader:
                count += len(frame)
                yield frame
        self._check_count(count)

    def _restore_text(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame``, with the text of columns that pandas read as numbers but can be read otherwise.

        The mark in numbers such as ``1.234`` may be one between thousands, and ``01234`` may be a code.
        """
        numbers = [name for name, dtype in frame.dtypes.items() if dtype == np.float64]
        floats = [name for name in numbers if _may_be_thousands(frame[name].to_numpy())]
        integers = [j for j, dtype in enumerate(frame.dtypes) if types.is_integer_dtype(dtype)]
        rows = (fields for line, _, fields in self._rows(self.delimiter, strict=True) if line > self._header_line)
        with _long_cells():
            sample = list(islice(rows, _SAMPLED_ROWS)) if integers else []
        codes = {self.names[j] for fields in sample for j in integers if fields[j][:1] == "0" and len(fields[j]) > 1}
        if not floats and not codes:
            return frame
        options = {**self._options(), "usecols": [*floats, *codes], "na_values": None, "na_filter": False}
        texts = pd.read_csv(self._path, dtype=str, **options).astype(object)
        return frame.assign(
            **{name: texts[name] for name in texts if name in codes or not _shows_decimals(texts[name])}
        )

    def _options(self, as_text: Sequence[str] = ()) -> dict[str, Any]:
        missing, kept = sorted(MISSING_TEXTS), set(as_text)
        by_column = {name: missing for name in self.names if name not in kept} if kept else None  # slow for wide tables
        return {
            "sep": self.delimiter,
            "names": list(self.names),
            "skiprows": self._header_line - 1,
            "header": 0,
            "index_col": False,
            "encoding": self._encoding,
            "compression": "gzip" if self._gzipped else None,
            "keep_default_na": False,
            "na_values": missing if by_column is None else by_column,
            "low_memory": False,  # one dtype per column, not per block
            **_EXACT_NUMBERS,
        }

    def _bytes(self) -> gzip.GzipFile | io.BufferedReader:
        return gzip.open(self._path) if self._gzipped else self._path.open("rb")

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self._bytes(), encoding=self._encoding, newline="")

    def _check_format(self, encoding: str | None) -> str:
        """The encoding of the file, UTF-8 if nothing else shows, after other formats are rejected."""
        with self._bytes() as stream:
            head = stream.read(_HEAD)
        if not head.removeprefix(codecs.BOM_UTF8).strip():
            raise InputError(f"{self._path} is empty: give a file with a header and some rows")
        if head.startswith(_WORKBOOKS):
            raise InputError(f"{self._path} is an Excel workbook or a zip archive: {SAVE_AS_CSV}")
        if encoding is not None:
            try:
                return codecs.lookup(encoding).name
            except LookupError as error:
                raise InputError(f"encoding must be one that Python knows, such as cp949, got {encoding!r}") from error
        found = detect_unicode(head)
        if found is None and b"\0" in head:
            raise InputError(f"{self._path} is a binary file: {SAVE_AS_CSV}")
        return found or "utf-8-sig"

    def _first_other_bytes(self) -> bytes:
        """A part of the file that has bytes above 127."""
        with self._bytes() as stream:
            while (block := stream.read(_HEAD)) and block.isascii():
                pass
            return block + stream.read(_HEAD)

    def _not_readable(self, encoding: str) -> InputError:
        decoder, line, byte = codecs.getincrementaldecoder(encoding)(), 1, ""
        with self._bytes() as stream:
            while block := stream.read(_HEAD):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    byte, line = f"byte 0x{error.object[error.start]:02x} in ", line + block[: error.start].count(b"\n")
                    break
                line += block.count(b"\n")
        name = "UTF-8" if encoding == "utf-8-sig" else encoding
        return InputError(
            f"{self._path} is not text in {name} ({byte}line {line}): give its encoding, or {SAVE_AS_CSV}"
        )

    def _rows(self, delimiter: str, strict: bool) -> Iterator[tuple[int, int, list[str]]]:
        """The first line of each row, its length and its fields; blank lines are skipped."""
        with self._text() as text:
            lines = _Lines(text, self._path)
            reader = csv.reader(lines, delimiter=delimiter, strict=strict)
            line = 1
            try:
                for fields in reader:
                    if fields and not (len(fields) == 1 and lines.is_blank):
                        yield line, lines.length, fields
                    line = reader.line_num + 1
                    lines.length = 0
            except csv.Error as error:
                raise InputError(
                    f"line {line} of {self._path} has a quote that is not closed, or one inside a field that is not "
                    f"doubled: correct it ({error})"
                ) from error

    def _sniff(self) -> tuple[str, int]:
        """Detect the delimiter and the line of the header.

        The delimiter is the one with the most fields per row, preferably the same number in all of them. With the wrong
        delimiter a quote may be inside a field, or stay open over several rows. So a delimiter whose fields agree with
        those outside of quotes is preferred. Lines before the header are left out if they have a single field, or begin
        with ``#``, and all rows after them have the same number of fields.
        """
        bare = self._rows_without_quotes()
        given = _SEPARATOR_LINE.fullmatch(bare[0].strip()) if bare else None
        best, best_score, line = DELIMITERS[0], (False, False, 0, 1), 1
        for delimiter in given.group(1) if given else DELIMITERS:
            try:
                rows = list(islice(self._rows(delimiter, strict=False), _SNIFFED_ROWS))
            except InputError:
                continue
            skipped = 1 if given else _count_preamble([fields for *_, fields in rows])
            widths = [len(fields) for *_, fields in rows]
            agrees = widths == [row.count(delimiter) + 1 for row in bare]
            widths = widths[skipped:]
            is_even = max(widths, default=0) > 1 and len(set(widths)) == 1
            score = (agrees, is_even, -skipped, widths[0] if widths else 0)
            if score > best_score or given:
                best, best_score, line = delimiter, score, rows[skipped][0] if widths else 1
                self._preamble = [delimiter.join(fields) for *_, fields in rows[:skipped]]
        return best, line

    def _rows_without_quotes(self) -> list[str]:
        """The first rows without their quoted parts, independent of the delimiter."""
        rows: list[str] = []
        row: list[str] = []
        quotes = 0
        with self._text() as text:
            lines = _Lines(text, self._path)
            with contextlib.suppress(InputError):
                for line in lines:
                    quotes += line.count('"')
                    row.append(line)
                    if quotes % 2:
                        continue
                    if not lines.is_blank:
                        rows.append("".join("".join(row).split('"')[::2]))
                    row, quotes, lines.length = [], 0, 0
                    if len(rows) == _SNIFFED_ROWS:
                        break
        return rows

    def _check_rows(self) -> None:
        """Check every row, and set the names of the columns and the number and size of the rows."""
        rows = self._rows(self.delimiter, strict=True)
        header = next(fields for line, _, fields in rows if line >= self._header_line)
        check_width(self._path, len(header))
        self.names = tuple(name if name.strip() else f"Unnamed: {j}" for j, name in enumerate(header))
        check_names(self._path, self.names)
        self.n_rows, self.size, self._longest_row = 0, 0, 1
        for line, length, fields in rows:
            if len(fields) != len(header):
                raise InputError(
                    f"line {line} of {self._path} has {counted(len(fields), 'field')} where the header has "
                    f"{len(header)}: correct it, and put text that holds a {self.delimiter!r} in quotes"
                )
            self.n_rows += 1
            self.size += length
            self._longest_row = max(self._longest_row, length)
        if self.n_rows == 0:
            raise InputError(f"{self._path} holds a header but no rows: add some")

    def _check_count(self, n_rows: int) -> None:
        """Raise InputError if pandas and the csv module disagree on stray carriage returns, so that no row is lost."""
        if n_rows != self.n_rows:
            raise InputError(
                f"{self._path} mixes line endings, so that it reads as {n_rows:,} rows or as {self.n_rows:,}: save "
                "it with one kind of line ending"
            )


class _Lines:
    """The lines of a text, with a limit on the length of a row.

    Attributes:
        length: the number of characters since it was last set to 0, at the start of a row.
        is_blank: whether the last line had only white space; a pair of quotes is not blank.
    """

    def __init__(self, text: io.TextIOWrapper, path: Path) -> None:
        self.length, self.is_blank = 0, False
        self._text, self._path, self._number = text, path, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_ROW_LENGTH + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self.length += len(line)
        self.is_blank = not line.strip(" \t\r\n")
        if self.length > MAX_ROW_LENGTH:
            raise InputError(
                f"a row of {self._path} that reaches line {self._number} has more than {MAX_ROW_LENGTH:,} characters, "
                "which is not a table: check the file, and that its quotes are closed"
            )
        if "\0" in line:
            raise InputError(
                f"line {self._number} of {self._path} holds a NUL character, as binary and damaged files do: "
                f"{SAVE_AS_CSV}"
            )
        return line


def _count_preamble(rows: list[list[str]]) -> int:
    """The number of rows before the header: titles with one field, and comments, above rows of equal length."""
    widths = [len(fields) for fields in rows]
    for skipped in range(min(len(rows) - 2, _MAX_PREAMBLE) + 1):
        rest = widths[skipped:]
        if len(set(rest)) == 1 and rest[0] > 1 and not (skipped == 0 and _is_title(rows[0], rows[1:2])):
            return skipped if all(_is_title(row, rows[skipped : skipped + 1]) for row in rows[:skipped]) else 0
    return 0


def _is_title(row: list[str], header: list[list[str]]) -> bool:
    """Whether a row is no header: one field, or a comment of another length than ``header``, or one of many fields."""
    given = [field for field in row if field.strip()]
    width = len(header[0]) if header else 0
    if len(row) == 1 or (row[0].startswith("#") and len(row) != width):
        return True
    return len(given) <= 1 < width - 1 and all(field.strip() for field in header[0])


def _may_be_thousands(values: NDArray[np.float64]) -> bool:
    """Whether all fractions are of numbers such as 1.234, which may be written with a mark between thousands."""
    if not has_fractions(values):
        return False
    fractions = values[np.isfinite(values) & (values != np.floor(values))]
    if not ((np.abs(fractions) >= 1.0) & (np.abs(fractions) < 1000.0)).all():
        return False
    return bool((np.abs(fractions * 1000.0 - np.round(fractions * 1000.0)) < 1e-6).all())


def _shows_decimals(texts: pd.Series) -> bool:
    """Whether a text shows that its mark is a decimal one."""
    return bool((texts.str.contains(".", regex=False) & ~texts.str.fullmatch(_THOUSANDS)).any())


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Allow cells as long as a row in the csv module, whose limit is global."""
    with _FIELD_SIZE_LOCK:
        before = csv.field_size_limit(MAX_ROW_LENGTH)
        try:
            yield
        finally:
            csv.field_size_limit(before)
