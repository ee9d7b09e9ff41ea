"""What is known about the writing of a whole table: its decimal mark, the order of its dates, types of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from credo._arguments import check_bool, check_option

ColumnType = Literal["number", "date", "category"]

TYPES = ("number", "date", "category")

_ATTRIBUTE = "credo"  # of data frames


@dataclass(frozen=True)
class Dialect:
    """What is known about the writing of a whole table.

    Attributes:
        decimal: the decimal mark, ``"."`` or ``","``, or ``None``.
        dayfirst: whether the day is before the month in ``03/04/2024``, or ``None``.
        given: which of the two were given by the user; the others were found in the columns of the table.
        types: the types of columns that were given by the user.
        delimiter: the delimiter of the file, or empty.
    """

    decimal: str | None = None
    dayfirst: bool | None = None
    given: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ""

    @classmethod
    def make(
        cls,
        decimal: str | None = None,
        dayfirst: bool | None = None,
        types: Mapping[str, str] | None = None,
        delimiter: str = "",
    ) -> Dialect:
        """A dialect with the choices of a user; ``None``: not chosen."""
        if decimal is not None:
            check_option(decimal, "decimal", (".", ","))
        if dayfirst is not None:
            check_bool(dayfirst, "dayfirst")
        for kind in (types or {}).values():
            check_option(kind, "column type", TYPES)
        choices = {"decimal": decimal, "dayfirst": dayfirst}
        given = tuple(name for name, value in choices.items() if value is not None)
        return cls(decimal, dayfirst, given, dict(types or {}), delimiter)

    @classmethod
    def attached(cls, *tables: pd.DataFrame | pd.Series) -> Dialect | None:
        """The dialect that :meth:`attach` attached to one of ``tables``, or ``None``."""
        found = next((table.attrs[_ATTRIBUTE] for table in tables if _ATTRIBUTE in table.attrs), None)
        return None if found is None else cls(**{**found, "given": tuple(found["given"])})

    def attach(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Attach the dialect to ``frame``, whose parts inherit it, and return ``frame``."""
        frame.attrs[_ATTRIBUTE] = {**vars(self), "given": list(self.given), "types": dict(self.types)}
        return frame

    @property
    def usual_decimal(self) -> str:
        """The decimal mark where a column does not show it: files with semicolons have decimal commas."""
        return self.decimal or ("," if self.delimiter == ";" else ".")

    @property
    def usual_dayfirst(self) -> bool:
        """The order of dates where a column does not show it: decimal commas go with day before month."""
        return self.usual_decimal == "," if self.dayfirst is None else self.dayfirst
