"""Files with a table: opened by their content, and validated completely before the first row is returned."""

from __future__ import annotations

import gzip
import importlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from credo.errors import InputError
from credo.tabular.csv_table import CsvTable
from credo.tabular.table_interface import SAVE_AS_CSV, TableFile, check_names, check_width

_PARQUET = b"PAR1"


def open_table(path: Path, encoding: str | None = None) -> TableFile:
    """Open a CSV or Parquet file; the format, and the encoding unless it is given, are detected from the content."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: give one CSV or Parquet file")
        if not path.exists():
            raise InputError(f"{path} does not exist: check the spelling and the folder you are in")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device, which can only be read once: save it to a file first")
        with path.open("rb") as stream:
            start = stream.read(len(_PARQUET))
        return ParquetTable(path) if start == _PARQUET else CsvTable(path, encoding)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): create or download it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


class ParquetTable(TableFile):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        try:
            self._open = importlib.import_module("pyarrow.parquet").ParquetFile
        except ImportError as error:
            raise InputError(
                f"{path} is a Parquet file, which needs pyarrow: pip install pyarrow, or {SAVE_AS_CSV}"
            ) from error
        self._path = path
        try:
            with self._open(path) as file:
                check_width(path, len(file.schema_arrow))
                self.names = tuple(str(name) for name in file.schema_arrow.empty_table().to_pandas().columns)
                metadata = file.metadata
                self.n_rows = metadata.num_rows
                self.size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
        except ValueError as error:
            raise InputError(f"{path} is a damaged Parquet file ({error}): create or download it again") from error
        check_names(path, self.names)
        if self.n_rows == 0:
            raise InputError(f"{path} holds no rows: add some")

    def read(self, as_text: Sequence[str] = ()) -> pd.DataFrame:
        """All rows."""
        with self._open(self._path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
        return frame.reset_index(drop=True)

    def chunks(self, rows: int, as_text: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """All rows, at most ``rows`` at a time."""
        with self._open(self._path) as file:
            for batch in file.iter_batches(batch_size=self._chunk_rows(rows, longest=1)):
                yield batch.to_pandas().reset_index(drop=True)
