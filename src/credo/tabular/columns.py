"""A table of anything as a matrix of features, and what was decided on the way."""

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

from credo.errors import InputError, LoadError
from credo.tabular.categories import Category, Words
from credo.tabular.cells import Measured, measure, words
from credo.tabular.cycles import Cycles
from credo.tabular.learning import learn
from credo.tabular.scaling import Scaling
from credo.tabular.summary import ColumnSummary, Diary
from credo.tabular.wording import counted, listed, nearest, quoted

MOSTLY = 0.5
"""A column of numbers that holds more than this share of something else is not the column that was learned."""

_FEW_CELLS = 10  # fewer say nothing about a column


class TableRows(NamedTuple):
    """Rows of a table as they were read.

    Attributes:
        values: numbers and dates ``[N, C]``, in the order of the scaling; NaN where missing.
        others: the features of cycles and categories ``[N, R]``.
    """

    values: NDArray[np.float64]
    others: NDArray[np.float32]

    def take(self, which: NDArray[Any]) -> TableRows:
        """Some of the rows, by position or by a mask."""
        return TableRows(self.values[which], self.others[which])


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a table become features: learned once, then the same for every row.

    * Numbers are centered and scaled by :class:`~credo.tabular.scaling.Scaling`, and long-tailed ones come with their
      asinh; where training had gaps, a 0/1 feature says which values were imputed.
    * Dates are numbers, in days, with the time of day, week and year by :class:`~credo.tabular.cycles.Cycles`.
    * Words are one-hot by :class:`~credo.tabular.categories.Category`.
    * Columns that say nothing are left out: empty, constant, or with a different word in nearly every row.

    What a column holds is decided by :func:`~credo.tabular.kinds.kind_of`, what a cell means by the rules of
    :mod:`credo.tabular.cells`, one cell at a time: the features of a row depend neither on the other rows nor on the
    dtypes of the frame nor on the order of its columns.

    Attributes:
        names: the columns of the training table.
        scaling: of the columns of numbers, then of dates.
        cycles: of the columns of dates.
        unclean: the columns of numbers and dates in which training met something else, or infinities.
        categories: the columns of words.
        notes: sentences about what was left out, converted and imputed.
        summaries: of every column of the training table.
    """

    names: tuple[str, ...]
    scaling: Scaling
    cycles: Cycles
    unclean: tuple[str, ...]
    categories: tuple[Category, ...]
    notes: tuple[str, ...]
    summaries: tuple[ColumnSummary, ...]

    @classmethod
    def learn(cls, frame: Any) -> Columns:
        """Decide on the training table: a data frame, or an array, whose columns are then called x0, x1 and so on."""
        table = as_frame(frame)
        if table.size == 0:
            raise InputError(
                f"a table to learn from needs rows and columns, got {counted(len(table), 'row')} and "
                f"{counted(table.shape[1], 'column')}"
            )
        columns = cls(tuple(table.columns), *learn(table))
        width = len(columns.feature_names)
        if width == 0:
            raise InputError(f"no column of the table can be used: {' '.join(columns.notes)}")
        if width <= len(table):
            return columns
        wide = f"There are more features ({width:,}) than rows ({len(table):,}): expect wide error bars."
        return replace(columns, notes=(*columns.notes, wide))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What each of the D features means: numbers and dates, gaps in them, cycles, categories."""
        of_categories = (name for category in self.categories for name in category.feature_names)
        return (*self.scaling.feature_names, *self.cycles.feature_names, *of_categories)

    def summary(self) -> list[ColumnSummary]:
        """What each column of the training table held and what became of it, in their order."""
        return list(self.summaries)

    def encode(self, frame: Any) -> NDArray[np.float32]:
        """The features ``[N, D]`` of any rows, always finite; warns of what training did not have.

        Columns may come in another order; those that training left out or did not have are not needed. A column of
        numbers or dates in which more than half of ten or more cells are something else is refused.
        """
        return self.features(self.read(frame))

    def read(self, frame: Any) -> TableRows:
        """What the rows of ``frame`` hold, as :meth:`features` takes it; warns as :meth:`encode` does."""
        table = as_frame(frame, self.names)
        diary = Diary()
        self._check_names(table.columns, diary)
        dates = self.cycles.dates
        measured = measure(table, self.scaling.names[: len(self.scaling.names) - len(dates)], dates)
        cells = [words(table[category.name]) for category in self.categories]
        self._check_cells(measured, diary)
        self._check_words(cells, diary)
        for sentence in diary.sentences():
            warnings.warn(sentence, UserWarning, stacklevel=2)
        days = measured.values[:, len(measured.names) - len(dates) :]
        one_hot = [category.encode(w) for category, w in zip(self.categories, cells, strict=True)]
        return TableRows(measured.values, np.hstack([self.cycles.encode(days), *one_hot]))

    def features(self, rows: TableRows) -> NDArray[np.float32]:
        """The features ``[N, D]`` of rows that were read."""
        return np.hstack([self.scaling.encode(rows.values), rows.others])

    def nearest(self, rows: TableRows) -> TableRows:
        """``rows`` with every number and date moved to the nearest end of its training range where it lies outside."""
        return rows._replace(values=self.scaling.nearest(rows.values))

    def get_config(self) -> dict[str, object]:
        """All of it as JSON holds it."""
        return {
            "names": list(self.names),
            "scaling": self.scaling.get_config(),
            "cycles": self.cycles.get_config(),
            "unclean": list(self.unclean),
            "categories": [category.get_config() for category in self.categories],
            "notes": list(self.notes),
            "summaries": [summary.get_config() for summary in self.summaries],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Columns:
        """The inverse of :meth:`get_config`: encodes identically."""
        try:
            return cls(
                names=tuple(config["names"]),
                scaling=Scaling.from_config(config["scaling"]),
                cycles=Cycles.from_config(config["cycles"]),
                unclean=tuple(config["unclean"]),
                categories=tuple(Category.from_config(c) for c in config["categories"]),
                notes=tuple(config["notes"]),
                summaries=tuple(ColumnSummary(**s) for s in config["summaries"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"the saved description of the table's columns is damaged: {error!r}") from error

    def _check_names(self, names: Sequence[str], diary: Diary) -> None:
        needed = (*self.scaling.names, *(category.name for category in self.categories))
        given, learned = set(names), set(self.names)
        new = [name for name in names if name not in learned]
        absent = [name for name in needed if name not in given]
        if absent:
            near = nearest(absent[0], new)
            advice = f"did you mean {quoted(near)}?" if near else "add what is missing, or train without it"
            which = (
                f"column {quoted(absent[0])} is"
                if len(absent) == 1
                else f"columns {listed([quoted(name) for name in absent])} are"
            )
            raise InputError(f"the {which} missing, which training had: {advice}")
        for name in new:
            diary.add("Ignored, because training had no such column", name)

    def _check_cells(self, measured: Measured, diary: Diary) -> None:
        kinds = dict.fromkeys(measured.names, "number") | dict.fromkeys(self.cycles.dates, "date")
        missing, infinite = np.isnan(measured.values).sum(axis=0), np.isinf(measured.values).sum(axis=0)
        position = {name: j for j, name in enumerate(measured.names)}
        for name, failed in measured.unread.items():
            given = len(failed) + len(measured.values) - int(missing[position[name]])
            if given >= _FEW_CELLS and len(failed) > MOSTLY * given:
                raise InputError(
                    f"the column {quoted(name)} held {kinds[name]}s in training, but {len(failed):,} of its {given:,} "
                    f"cells hold something else, such as {quoted(failed[0])}: check that it is the same column"
                )
            missing[position[name]] -= len(failed)
            if name not in self.unclean:
                diary.add(f"Values that are no {kinds[name]}s count as missing", name, _rows(failed))
        for j in (j for j in np.flatnonzero(infinite) if measured.names[j] not in self.unclean):
            diary.add("Infinite values count as missing", measured.names[j], counted(int(infinite[j]), "row"))
        for j in np.flatnonzero((missing > 0) & ~self.scaling.has_gaps):
            diary.add(
                "Missing values, of which training had none, become the median",
                measured.names[j],
                counted(int(missing[j]), "row"),
            )

    def _check_words(self, cells: Sequence[Words], diary: Diary) -> None:
        for category, of_column in zip(self.categories, cells, strict=True):
            if unseen := category.unseen(of_column):
                diary.add("Categories that training did not have count as other", category.name, _rows(unseen))


def as_frame(x: Any, names: Sequence[str] | None = None, owner: str = "Columns") -> pd.DataFrame:
    """``x`` as a data frame whose column names are different strings.

    Args:
        x: a data frame, or anything two-dimensional that scikit-learn takes for an array.
        names: what to call the columns of an array, by position; x0, x1 and so on where ``None``.
        owner: who expects that many columns, for the error sentence.
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
        raise InputError(f"column names must differ, but some occur twice: {listed([quoted(n) for n in repeated])}")
    return x.set_axis(labels, axis=1)


def _rows(cells: Sequence[object]) -> str:
    examples = list(dict.fromkeys(quoted(cell) for cell in cells))
    return f"{counted(len(cells), 'row')}, such as {listed(examples, limit=2)}"
