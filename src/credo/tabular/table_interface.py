"""What all files with a table have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from credo._text import listed, quoted
from credo.errors import InputError

MAX_COLUMNS = 100_000
"""Maximum number of columns; a model of more could not be saved."""

SAVE_AS_CSV = "save the table as CSV in UTF-8"
"""Advice for files that cannot be read."""

_MAX_CHUNK_CELLS = 2**24  # 128 MiB of numbers
_MAX_CHUNK_CHARACTERS = 2**28


class TableFile(ABC):
    """A file with a table.

    Attributes:
        names: the names of the columns, all different.
        n_rows: the number of rows without the header, at least one.
        size: the uncompressed size in characters or bytes.
        delimiter: the delimiter of a CSV file; empty for others.
    """

    names: tuple[str, ...]
    n_rows: int
    size: int
    delimiter: str = ""

    @abstractmethod
    def read(self, as_text: Sequence[str] = ()) -> pd.DataFrame:
        """All rows.

        Args:
            as_text: columns of a CSV file that are not converted, as in :meth:`chunks`.
        """

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


def check_width(path: Path, width: int) -> None:
    """Raise InputError if a table has too many columns."""
    if width > MAX_COLUMNS:
        raise InputError(
            f"{path} has {width:,} columns, but a table may have {MAX_COLUMNS:,} at most: leave some out, or combine "
            "them"
        )


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if columns have the same name."""
    repeated = [quoted(name) for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(f"{path} has columns of the same name, {listed(repeated)}: rename or remove them")
