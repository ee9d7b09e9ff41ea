"""A table with columns of any type as a matrix of features."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import check_array

from credo._text import closest_name, counted, listed, quoted
from credo.errors import InputError, LoadError
from credo.tabular.column_types import ColumnNotes, ColumnSummary, learn_columns
from credo.tabular.date_format import DateFormat
from credo.tabular.dialects import Dialect
from credo.tabular.encoders import CategoryEncoder, CyclicEncoder, Labels, NumericScaler
from credo.tabular.number_format import NumberFormat
from credo.tabular.parsing import ColumnFormat, ParsedColumns, has_fractions, parse_columns, to_labels
from credo.tabular.readings import find_dialect

MAX_UNPARSED_SHARE = 0.5
"""A column of numbers or dates with more than this share of other values is rejected at prediction."""

_MIN_CELLS_TO_REJECT = 10


class TableRows(NamedTuple):
    """Rows of a table after parsing.

    Attributes:
        values: numbers and dates ``[N, C]``, in the order of the scaling; NaN where missing.
        other_features: the features of cycles and categories ``[N, R]``.
    """

    values: NDArray[np.float64]
    other_features: NDArray[np.float32]

    def take(self, which: NDArray[Any] | slice) -> TableRows:
        """Some of the rows, by position, by a mask or by a slice, which does not copy them."""
        return TableRows(self.values[which], self.other_features[which])


@dataclass(frozen=True, eq=False)
class Columns:
    """Encodes the columns of a table as features: fitted once, then the same for every row.

    * Numbers are scaled by :class:`~credo.tabular.encoders.NumericScaler`; long-tailed ones have a second feature,
      their asinh. Missing values are imputed by the median and marked by a 0/1 feature.
    * Dates are numbers, in days, with the time of day, week and year by
      :class:`~credo.tabular.encoders.CyclicEncoder`.
    * Labels are one-hot by :class:`~credo.tabular.encoders.CategoryEncoder`; estimators add effects if there are many.
    * Columns without information are left out: empty, constant, or with a different label in nearly every row.

    How a column is read is decided once, by :func:`~credo.tabular.readings.read_column`. Then each cell is parsed on
    its own (:mod:`credo.tabular.parsing`): the features of a row depend neither on the other rows nor on the dtypes of
    the frame nor on the order of its columns.

    Attributes:
        names: the columns of the training table.
        formats: how the numbers and dates of a column are written, where they can be written in several ways.
        scaling: the scaler of the columns of numbers, then of dates.
        cycles: the encoder of the columns of dates.
        categories: one encoder per column of labels.
        notes: sentences about what was left out, converted and imputed.
        summaries: one per column of the training table.

    Example:
        >>> import pandas as pd
        >>> from credo.tabular import Columns
        >>> table = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "color": ["red", "blue", "red", "blue"]})
        >>> columns = Columns.learn(table)
        >>> columns.feature_names
        ('size', 'color=blue', 'color=red')
        >>> columns.encode(table).shape
        (4, 3)
    """

    names: tuple[str, ...]
    formats: Mapping[str, ColumnFormat]
    scaling: NumericScaler
    cycles: CyclicEncoder
    categories: tuple[CategoryEncoder, ...]
    notes: tuple[str, ...]
    summaries: tuple[ColumnSummary, ...]

    @classmethod
    def learn(cls, frame: Any, dialect: Dialect | None = None) -> Columns:
        """Fit to a training table.

        Args:
            frame: a data frame, or an array ``[N, D]`` whose columns are then called x0, x1 and so on.
            dialect: what is known about the writing of the table; ``None``: what :func:`credo.tabular.read_table`
                attached to it, or its cells show.

        Returns:
            The fitted columns.

        Raises:
            InputError: if the table has no rows or columns, or none of its columns can be used.
        """
        return cls.learn_and_read(frame, dialect)[0]

    @classmethod
    def learn_and_read(cls, frame: Any, dialect: Dialect | None = None) -> tuple[Columns, TableRows]:
        """Fit to a training table and parse its rows, as :meth:`learn` and :meth:`read` do, but in one pass.

        Args:
            frame: as in :meth:`learn`.
            dialect: as in :meth:`learn`.

        Returns:
            The fitted columns and the rows of ``frame``.

        Raises:
            InputError: as :meth:`learn` does.
        """
        table = as_frame(frame)
        if table.size == 0:
            raise InputError(
                f"a training table needs rows and columns, got {counted(len(table), 'row')} and "
                f"{counted(table.shape[1], 'column')}"
            )
        learned = learn_columns(table, find_dialect(table) if dialect is None else dialect)
        columns = cls(
            names=tuple(table.columns),
            formats=learned.formats,
            scaling=learned.scaling,
            cycles=learned.cycles,
            categories=learned.categories,
            notes=learned.notes,
            summaries=learned.summaries,
        )
        width = len(columns.feature_names)
        if width == 0:
            raise InputError(f"no column of the table can be used: {' '.join(columns.notes)}")
        if width > len(table):
            wide = f"There are more features ({width:,}) than rows ({len(table):,}): expect wide error bars."
            columns = replace(columns, notes=(*columns.notes, wide))
        return columns, columns._to_rows(learned.values, learned.labels)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the D features: numbers and dates, marks of missing values, cycles, categories."""
        of_categories = (name for category in self.categories for name in category.feature_names)
        return (*self.scaling.feature_names, *self.cycles.feature_names, *of_categories)

    def summary(self) -> list[ColumnSummary]:
        """What each column of the training table contained and how it is used.

        Returns:
            One summary per column, in the order of the table.
        """
        return list(self.summaries)

    def encode(self, frame: Any) -> NDArray[np.float32]:
        """The features of new rows. Warns about values that were not in training.

        Args:
            frame: rows with the columns of the training table, in any order; columns that are not used may be absent.

        Returns:
            The features ``[N, D]``, all finite.

        Raises:
            InputError: if a column is absent, or more than half of its cells, of 10 or more, have another type.
        """
        return self.features(self.read(frame))

    def read(self, frame: Any) -> TableRows:
        """Parse new rows. Warns about values that were not in training.

        Args:
            frame: as in :meth:`encode`.

        Returns:
            The rows, from which :meth:`features` computes the features.

        Raises:
            InputError: as :meth:`encode` does.
        """
        rows, sentences = self.read_with_notes(frame)
        for sentence in sentences:
            warnings.warn(sentence, UserWarning, stacklevel=2)
        return rows

    def read_with_notes(self, frame: Any) -> tuple[TableRows, list[str]]:
        """:meth:`read` without warnings, which are global and so not for several threads.

        Args:
            frame: as in :meth:`encode`.

        Returns:
            The rows, and a sentence for each warning of :meth:`read`.

        Raises:
            InputError: as :meth:`encode` does.
        """
        table = as_frame(frame, self.names)
        notes = ColumnNotes()
        self._check_names(table.columns, notes)
        parsed = self.parse(table)
        labels = [to_labels(table[category.name]) for category in self.categories]
        self._check_numbers(parsed, table, notes)
        self._check_labels(labels, notes)
        return self._to_rows(parsed.values, labels), notes.sentences()

    def parse(self, table: pd.DataFrame) -> ParsedColumns:
        """The numbers and dates of a table in the formats of training.

        Args:
            table: rows with these columns.

        Returns:
            The values, in the order of ``scaling``, and the cells that have none.
        """
        dates = self.cycles.dates
        numbers = self.scaling.names[: len(self.scaling.names) - len(dates)]
        return parse_columns(table, numbers, dates, self.formats)

    def features(self, rows: TableRows) -> NDArray[np.float32]:
        """The features of parsed rows.

        Args:
            rows: N rows from :meth:`read`.

        Returns:
            The features ``[N, D]``, all finite.
        """
        return np.hstack([self.scaling.encode(rows.values), rows.other_features])

    def clip(self, rows: TableRows) -> TableRows:
        """Clip every number and date to its training range.

        Args:
            rows: rows from :meth:`read`.

        Returns:
            The same rows, with values outside the range moved to its nearest end.
        """
        return rows._replace(values=self.scaling.clip(rows.values))

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values.

        Returns:
            A mapping for :meth:`from_config`.
        """
        return {
            "names": list(self.names),
            "scaling": self.scaling.get_config(),
            "cycles": self.cycles.get_config(),
            "formats": {name: form.get_config() for name, form in self.formats.items()},
            "categories": [category.get_config() for category in self.categories],
            "notes": list(self.notes),
            "summaries": [summary.get_config() for summary in self.summaries],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Columns:
        """Restore columns that encode identically.

        Args:
            config: what :meth:`get_config` returned.

        Returns:
            The columns.

        Raises:
            LoadError: if an entry is missing or has the wrong type.
        """
        try:
            cycles = CyclicEncoder.from_config(config["cycles"])
            return cls(
                names=tuple(config["names"]),
                formats={
                    name: (DateFormat if name in cycles.dates else NumberFormat).from_config(form)
                    for name, form in config["formats"].items()
                },
                scaling=NumericScaler.from_config(config["scaling"]),
                cycles=cycles,
                categories=tuple(CategoryEncoder.from_config(c) for c in config["categories"]),
                notes=tuple(config["notes"]),
                summaries=tuple(ColumnSummary(**s) for s in config["summaries"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"the saved description of the table's columns is damaged: {error!r}") from error

    def _to_rows(self, values: NDArray[np.float64], labels: Sequence[Labels]) -> TableRows:
        days = values[:, values.shape[1] - len(self.cycles.dates) :]
        one_hot = [category.encode(column) for category, column in zip(self.categories, labels, strict=True)]
        return TableRows(values, np.hstack([self.cycles.encode(days), *one_hot]))

    def _check_names(self, names: Sequence[str], notes: ColumnNotes) -> None:
        needed = (*self.scaling.names, *(category.name for category in self.categories))
        given, known = set(names), set(self.names)
        new = [name for name in names if name not in known]
        absent = [name for name in needed if name not in given]
        if absent:
            closest = closest_name(absent[0], new)
            advice = f"did you mean {quoted(closest)}?" if closest else "add what is missing, or train without it"
            which = (
                f"column {quoted(absent[0])} is"
                if len(absent) == 1
                else f"columns {listed([quoted(name) for name in absent])} are"
            )
            raise InputError(f"the {which} missing, which training had: {advice}")
        for name in new:
            notes.add("Ignored, because training had no such column", name)

    def _check_numbers(self, parsed: ParsedColumns, table: pd.DataFrame, notes: ColumnNotes) -> None:
        kinds = dict.fromkeys(parsed.names, "number") | dict.fromkeys(self.cycles.dates, "date")
        missing, infinite = np.isnan(parsed.values).sum(axis=0), np.isinf(parsed.values).sum(axis=0)
        position = {name: j for j, name in enumerate(parsed.names)}
        for name, failed in parsed.unparsed.items():
            given = len(failed) + len(parsed.values) - int(missing[position[name]])
            if given >= _MIN_CELLS_TO_REJECT and len(failed) > MAX_UNPARSED_SHARE * given:
                written = f" ({self.formats[name].describe()})" if name in self.formats else ""
                raise InputError(
                    f"the column {quoted(name)} held {kinds[name]}s{written} in training, but {len(failed):,} of its "
                    f"{given:,} cells hold something else, such as {quoted(failed.values[0])}: check that it is the "
                    "same column, written in the same way"
                )
            missing[position[name]] -= len(failed)
            notes.add(f"Values that are not {kinds[name]}s as in training count as missing", name, failed.describe())
        for name in self._misread_numbers(parsed, table):
            written = self.formats[name].describe()
            notes.add(f"Numbers that were text in training ({written}) are used as they are", name)
        for j in np.flatnonzero(infinite):
            notes.add("Infinite values count as missing", parsed.names[j], counted(int(infinite[j]), "row"))
        for j in np.flatnonzero((missing > 0) & ~self.scaling.has_missing):
            notes.add(
                "Missing values, of which training had none, are replaced by the median",
                parsed.names[j],
                counted(int(missing[j]), "row"),
            )

    def _misread_numbers(self, parsed: ParsedColumns, table: pd.DataFrame) -> list[str]:
        """The columns whose text ``1.234`` is 1234, but which were read as numbers such as 1.234 by someone else."""
        return [
            name
            for name, form in self.formats.items()
            if isinstance(form, NumberFormat)
            and form.decimal == ","
            and table[name].dtype == np.float64
            and has_fractions(parsed.values[:, parsed.names.index(name)])
        ]

    def _check_labels(self, labels: Sequence[Labels], notes: ColumnNotes) -> None:
        for category, of_column in zip(self.categories, labels, strict=True):
            if unseen := category.unseen(of_column):
                detail = _describe_cells(unseen)
                notes.add("Categories that training did not have count as other", category.name, detail)


def as_frame(x: Any, names: Sequence[str] | None = None, owner: str = "Columns") -> pd.DataFrame:
    """``x`` as a data frame with unique strings as column names.

    Args:
        x: a data frame, or anything two-dimensional that scikit-learn converts to an array.
        names: the names of the columns of an array, by position; ``None``: x0, x1 and so on.
        owner: the class that expects this number of columns, for the error message.

    Returns:
        The data frame.

    Raises:
        InputError: if names are repeated, or an array has another number of columns.
    """
    if not isinstance(x, pd.DataFrame):
        array = check_array(x, dtype=None, ensure_all_finite=False, ensure_min_samples=0, ensure_min_features=0)
        names = [f"x{j}" for j in range(array.shape[1])] if names is None else list(names)
        if array.shape[1] != len(names):
            raise InputError(
                f"X has {array.shape[1]} features, but {owner} is expecting {len(names)} features as input"
            )
        return pd.DataFrame(array, columns=names)
    labels = [str(name) for name in x.columns]
    repeated = [name for name, times in Counter(labels).items() if times > 1]
    if repeated:
        raise InputError(f"column names must be unique, but some are repeated: {listed([quoted(n) for n in repeated])}")
    return x.set_axis(labels, axis=1)


def _describe_cells(cells: Sequence[object]) -> str:
    examples = list(dict.fromkeys(quoted(cell) for cell in cells))
    return f"{counted(len(cells), 'row')}, such as {listed(examples, limit=2)}"
