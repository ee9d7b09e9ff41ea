"""CSV and Parquet files with a table, validated completely before the first row is returned."""

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

from credo._text import counted, listed, quoted
from credo.errors import InputError
from credo.tabular.parsing import MISSING_TEXTS

DELIMITERS = (",", ";", "\t", "|")

MAX_COLUMNS = 100_000
"""Maximum number of columns; a model of more could not be saved."""

MAX_ROW_LENGTH = 2**22
"""Maximum number of characters in a row of CSV. A few megabytes of gzip can contain gigabytes of one cell."""

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_HEAD = 1 << 16
_SNIFFED_ROWS = 20
_MAX_CHUNK_CELLS = 2**24  # 128 MiB of numbers
_MAX_CHUNK_CHARACTERS = 2**28
_FIELD_SIZE_LOCK = threading.Lock()
_SAVE_AS_CSV = "save the table as CSV in UTF-8"

# Before 3.1, pandas may round to a neighbor of the nearest float, unlike the conversion of cells that are text.
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
_EXACT_NUMBERS = {} if _PANDAS >= (3, 1) else {"float_precision": "round_trip"}


class TableFile(ABC):
    """A file with a table.

    Attributes:
        names: the names of the columns, all different.
        n_rows: the number of rows without the header, at least one.
        size: the uncompressed size in characters or bytes.
    """

    names: tuple[str, ...]
    n_rows: int
    size: int

    @abstractmethod
    def read(self) -> pd.DataFrame:
        """All rows."""

    @abstractmethod
    def chunks(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time, and fewer if they are long.

        Args:
            rows: the maximum number of rows per chunk.
            as_text: columns of a CSV file that are not converted: ``007`` is not 7, and ``NA`` is not missing.
        """

    def _chunk_rows(self, rows: int, longest: int) -> int:
        """``rows``, or fewer if rows of length ``longest`` would take too much memory."""
        return max(1, min(rows, _MAX_CHUNK_CELLS // len(self.names), _MAX_CHUNK_CHARACTERS // longest))


def open_table(path: Path) -> TableFile:
    """Open a CSV or Parquet file; the format is detected from the content."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: give one CSV or Parquet file")
        if not path.exists():
            raise InputError(f"{path} does not exist: check the spelling and the folder you are in")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device, which can only be read once: save it to a file first")
        with path.open("rb") as stream:
            start = stream.read(len(_PARQUET))
        return ParquetTable(path) if start == _PARQUET else CsvTable(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): create or download it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


class CsvTable(TableFile):
    """A CSV file, plain or gzipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as stream:
            self._gzipped = stream.read(len(_GZIP)) == _GZIP
        self._reject_other_formats()
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

    def _options(self, as_text: Sequence[str] = ()) -> dict[str, Any]:
        missing, kept = sorted(MISSING_TEXTS), set(as_text)
        by_column = {name: missing for name in self.names if name not in kept} if kept else None  # slow for wide tables
        return {
            "sep": self._delimiter,
            "names": list(self.names),
            "header": 0,
            "index_col": False,
            "encoding": "utf-8-sig",
            "compression": "gzip" if self._gzipped else None,
            "keep_default_na": False,
            "na_values": missing if by_column is None else by_column,
            "low_memory": False,  # one dtype per column, not per block
            **_EXACT_NUMBERS,
        }

    def _bytes(self) -> gzip.GzipFile | io.BufferedReader:
        return gzip.open(self._path) if self._gzipped else self._path.open("rb")

    def _reject_other_formats(self) -> None:
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
        """The first line of each row, its length and its fields; blank lines are skipped."""
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
        """Detect the delimiter: the one with the most fields per row, preferably the same number in all of them.

        With the wrong delimiter a quote may be inside a field, or stay open over several rows. So a delimiter whose
        fields agree with those outside of quotes is preferred.
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
        """The first rows without their quoted parts, independent of the delimiter."""
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
        """Check every row, and set the names of the columns and the number and size of the rows."""
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
        """Raise InputError if pandas and the csv module disagree on stray carriage returns, so that no row is lost."""
        if n_rows != self.n_rows:
            raise InputError(
                f"{self._path} mixes line endings, so that it reads as {n_rows:,} rows or as {self.n_rows:,}: save "
                "it with one kind of line ending"
            )


class ParquetTable(TableFile):
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
            raise InputError(f"{path} is a damaged Parquet file ({error}): create or download it again") from error
        _check_names(path, self.names)
        if self.n_rows == 0:
            raise InputError(f"{path} holds no rows: add some")

    def read(self) -> pd.DataFrame:
        """All rows."""
        with self._open(self._path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
        return frame.reset_index(drop=True)

    def chunks(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time."""
        with self._open(self._path) as file:
            for batch in file.iter_batches(batch_size=self._chunk_rows(rows, longest=1)):
                yield batch.to_pandas().reset_index(drop=True)


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
                f"{_SAVE_AS_CSV}"
            )
        return line


def _check_width(path: Path, width: int) -> None:
    if width > MAX_COLUMNS:
        raise InputError(
            f"{path} has {width:,} columns, but a table may have {MAX_COLUMNS:,} at most: leave some out, or combine "
            "them"
        )


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = [quoted(name) for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(f"{path} has columns of the same name, {listed(repeated)}: rename or remove them")


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Allow cells as long as a row in the csv module, whose limit is global."""
    with _FIELD_SIZE_LOCK:
        before = csv.field_size_limit(MAX_ROW_LENGTH)
        try:
            yield
        finally:
            csv.field_size_limit(before)
