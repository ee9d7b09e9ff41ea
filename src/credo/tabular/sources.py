"""Files that hold a table, checked from the first byte to the last before a row is taken from them."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import importlib
import io
import threading
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from credo.errors import InputError
from credo.tabular.cells import MISSING_WORDS
from credo.tabular.wording import counted, listed, quoted

DELIMITERS = (",", ";", "\t", "|")

MOST_COLUMNS = 100_000
"""Columns of a table; a model of more could not be saved."""

LONGEST_ROW = 2**22
"""Characters in a row of CSV. A few megabytes of gzip can hold gigabytes of one cell."""

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_HEAD = 1 << 16
_SNIFFED_ROWS = 20
_CELLS_AT_ONCE = 2**24  # in a piece: 128 MiB of numbers
_CHARACTERS_AT_ONCE = 2**28  # in a piece, at most
_LIMIT = threading.Lock()
_SAVE_AS_CSV = "save the table as CSV in UTF-8"

# Before 3.1, pandas may miss the nearest float by one unit, while a cell that is read as text and converted does not.
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
_EXACT_NUMBERS = {} if _PANDAS >= (3, 1) else {"float_precision": "round_trip"}


class Source(ABC):
    """A file that holds a table.

    Attributes:
        names: of its columns, all different.
        n_rows: without the header, at least one.
        size: of its content in characters or bytes, uncompressed.
    """

    names: tuple[str, ...]
    n_rows: int
    size: int

    @abstractmethod
    def read(self) -> pd.DataFrame:
        """All rows."""

    @abstractmethod
    def pieces(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time, and fewer where they are long.

        Args:
            rows: the most rows of one piece.
            as_text: columns whose cells, where the file holds text, stay as they are: ``007`` is not 7, and ``NA`` is
                not missing.
        """

    def _rows_at_once(self, rows: int, longest: int) -> int:
        """``rows``, or as many as fit into memory whatever they hold."""
        return max(1, min(rows, _CELLS_AT_ONCE // len(self.names), _CHARACTERS_AT_ONCE // longest))


def open_source(path: Path) -> Source:
    """The table in the file ``path``, whose content says whether it is CSV or Parquet."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: give one CSV or Parquet file")
        if not path.exists():
            raise InputError(f"{path} does not exist: check the spelling and the folder you are in")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device, which can be read only once: save it to a file first")
        with path.open("rb") as stream:
            start = stream.read(len(_PARQUET))
        return ParquetSource(path) if start == _PARQUET else CsvSource(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): make or fetch it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


class CsvSource(Source):
    """A CSV file, plain or gzipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as stream:
            self._gzipped = stream.read(len(_GZIP)) == _GZIP
        self._refuse_other_formats()
        try:
            with _long_cells():
                self._delimiter = self._sniff()
                self._check_rows()
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error

    def read(self) -> pd.DataFrame:
        """All rows."""
        frame = pd.read_csv(self._path, **self._options())
        self._check_count(len(frame))
        return frame

    def pieces(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time."""
        count = 0
        rows = self._rows_at_once(rows, self._longest_row)
        text = dict.fromkeys(as_text, str)
        with pd.read_csv(self._path, chunksize=rows, dtype=text, **self._options(as_text)) as reader:
            for frame in reader:
                count += len(frame)
                yield frame
        self._check_count(count)

    def _options(self, as_text: Sequence[str] = ()) -> dict[str, Any]:
        missing, kept = sorted(MISSING_WORDS), set(as_text)
        by_column = {name: missing for name in self.names if name not in kept} if kept else None  # slow where wide
        return {
            "sep": self._delimiter,
            "names": list(self.names),
            "header": 0,
            "index_col": False,
            "encoding": "utf-8-sig",
            "compression": "gzip" if self._gzipped else None,
            "keep_default_na": False,
            "na_values": missing if by_column is None else by_column,
            "low_memory": False,  # one dtype for a column, not one for each block of it
            **_EXACT_NUMBERS,
        }

    def _bytes(self) -> gzip.GzipFile | io.BufferedReader:
        return gzip.open(self._path) if self._gzipped else self._path.open("rb")

    def _refuse_other_formats(self) -> None:
        with self._bytes() as stream:
            head = stream.read(_HEAD)
        if not head.removeprefix(codecs.BOM_UTF8).strip():
            raise InputError(f"{self._path} is empty: give a file with a header and some rows")
        if head.startswith(_WORKBOOKS):
            raise InputError(f"{self._path} is an Excel workbook or a zip archive: {_SAVE_AS_CSV}")
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{self._path} is text in UTF-16: {_SAVE_AS_CSV}")
        if b"\0" in head:
            raise InputError(f"{self._path} is a binary file, or text in UTF-16: {_SAVE_AS_CSV}")

    def _not_utf8(self) -> InputError:
        decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
        with self._bytes() as stream:
            while block := stream.read(_HEAD):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    byte, line = error.object[error.start], line + error.object[: error.start].count(b"\n")
                    break
                line += block.count(b"\n")
        return InputError(
            f"{self._path} is not text in UTF-8 (byte 0x{byte:02x} in line {line}), perhaps in Latin-1 or binary: "
            f"{_SAVE_AS_CSV}"
        )

    def _rows(self, delimiter: str, strict: bool) -> Iterator[tuple[int, int, list[str]]]:
        """The line on which each row starts, its length and its fields; lines of nothing but spaces are no rows."""
        with io.TextIOWrapper(self._bytes(), encoding="utf-8-sig", newline="") as text:
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

    def _sniff(self) -> str:
        """The delimiter that cuts the first rows into the most fields, and all alike if one of them does.

        To the wrong delimiter a quote may stand inside a field, or be open over several rows. So one that finds other
        fields than there are between the quotes does not count where another one finds the same.
        """
        bare = self._rows_without_quotes()
        best, best_score = DELIMITERS[0], (False, False, 1)
        for delimiter in DELIMITERS:
            try:
                widths = [len(fields) for *_, fields in islice(self._rows(delimiter, strict=False), _SNIFFED_ROWS)]
            except InputError:
                continue
            agrees = widths == [row.count(delimiter) + 1 for row in bare]
            score = (agrees, max(widths) > 1 and len(set(widths)) == 1, widths[0])
            if score > best_score:
                best, best_score = delimiter, score
        return best

    def _rows_without_quotes(self) -> list[str]:
        """The first rows, whatever the delimiter, without what is quoted in them."""
        rows: list[str] = []
        row: list[str] = []
        quotes = 0
        with io.TextIOWrapper(self._bytes(), encoding="utf-8-sig", newline="") as text:
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
        """Note the names of the columns and the number and size of the rows, after a look at every row."""
        rows = self._rows(self._delimiter, strict=True)
        _, _, header = next(rows)
        _check_width(self._path, len(header))
        self.names = tuple(name if name.strip() else f"Unnamed: {j}" for j, name in enumerate(header))
        _check_names(self._path, self.names)
        self.n_rows, self.size, self._longest_row = 0, 0, 1
        for line, length, fields in rows:
            if len(fields) != len(header):
                raise InputError(
                    f"line {line} of {self._path} has {counted(len(fields), 'field')} where the header has "
                    f"{len(header)}: correct it, and put text that holds a {self._delimiter!r} in quotes"
                )
            self.n_rows += 1
            self.size += length
            self._longest_row = max(self._longest_row, length)
        if self.n_rows == 0:
            raise InputError(f"{self._path} holds a header but no rows: add some")

    def _check_count(self, n_rows: int) -> None:
        """pandas takes stray carriage returns for less than the csv module does; a row must not get lost by that."""
        if n_rows != self.n_rows:
            raise InputError(
                f"{self._path} mixes line endings, so that it reads as {n_rows:,} rows or as {self.n_rows:,}: save "
                "it with one kind of line ending"
            )


class ParquetSource(Source):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        try:
            self._open = importlib.import_module("pyarrow.parquet").ParquetFile
        except ImportError as error:
            raise InputError(
                f"{path} is a Parquet file, which needs pyarrow: pip install pyarrow, or {_SAVE_AS_CSV}"
            ) from error
        self._path = path
        try:
            with self._open(path) as file:
                _check_width(path, len(file.schema_arrow))
                self.names = tuple(str(name) for name in file.schema_arrow.empty_table().to_pandas().columns)
                metadata = file.metadata
                self.n_rows = metadata.num_rows
                self.size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
        except ValueError as error:
            raise InputError(f"{path} is a damaged Parquet file ({error}): make or fetch it again") from error
        _check_names(path, self.names)
        if self.n_rows == 0:
            raise InputError(f"{path} holds no rows: add some")

    def read(self) -> pd.DataFrame:
        """All rows."""
        with self._open(self._path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
        return frame.reset_index(drop=True)

    def pieces(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time."""
        with self._open(self._path) as file:
            for batch in file.iter_batches(batch_size=self._rows_at_once(rows, longest=1)):
                yield batch.to_pandas().reset_index(drop=True)


class _Lines:
    """The lines of a text, none of which, and no row of which, is longer than memory.

    Attributes:
        length: the characters read since it was last set to 0, at the start of a row.
        is_blank: whether the last line held nothing but spaces; a pair of quotes is something.
    """

    def __init__(self, text: io.TextIOWrapper, path: Path) -> None:
        self.length, self.is_blank = 0, False
        self._text, self._path, self._number = text, path, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self.length += len(line)
        self.is_blank = not line.strip(" \t\r\n")
        if self.length > LONGEST_ROW:
            raise InputError(
                f"a row of {self._path} that reaches line {self._number} has more than {LONGEST_ROW:,} characters, "
                "which is no table: check the file, and that its quotes are closed"
            )
        if "\0" in line:
            raise InputError(
                f"line {self._number} of {self._path} holds a NUL character, as binary and damaged files do: "
                f"{_SAVE_AS_CSV}"
            )
        return line


def _check_width(path: Path, width: int) -> None:
    if width > MOST_COLUMNS:
        raise InputError(
            f"{path} has {width:,} columns, but a table may have {MOST_COLUMNS:,} at most: leave some out, or combine "
            "them"
        )


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = [quoted(name) for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(f"{path} has columns of the same name, {listed(repeated)}: rename or remove them")


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Let the csv module take cells as long as a row; its limit is one for the whole process."""
    with _LIMIT:
        before = csv.field_size_limit(LONGEST_ROW)
        try:
            yield
        finally:
            csv.field_size_limit(before)
