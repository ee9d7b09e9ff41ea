"""A loaded model, ready to predict: rows are parsed, flagged and predicted by the same draws every time."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo._tensors import TENSORS
from credo._text import quoted
from credo._threads import one_thread
from credo.errors import InputError
from credo.io import CARD
from credo.predictive import Predictive
from credo.serving.options import Refusal
from credo.tabular import predictions, runs
from credo.tabular.columns import TableRows
from credo.tabular.date_format import DateFormat
from credo.tabular.encoders import Labels
from credo.tabular.number_format import PERCENT, NumberFormat
from credo.tabular.parsing import parse_date, parse_number, to_label, to_labels
from credo.tabular.several_targets import check_one_target
from credo.tabular.targets import ClassTarget

FLAGS = "flags"
"""The column of an answer that says in what a row is unlike the training rows; empty if in nothing."""

WARNINGS_LOCK = threading.Lock()
"""Held where warnings are collected, because that is global."""

_EPOCH = datetime.datetime(1970, 1, 1)
_EFFECT_ROWS = 200  # averaged over for the effect of a column
_CACHED_EFFECTS = 64
_WARM_UP_ROWS = 32
_FEW_ROWS = 2048  # that one thread predicts as fast as several, which the server needs for other things


@dataclass(frozen=True)
class Request:
    """What is asked for: the level of intervals, and quantiles."""

    level: float = 0.95
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class ParsedRows:
    """Rows that can be predicted.

    Attributes:
        rows: the N rows.
        flags: in what each row is unlike the training rows ``[N]``: ``("area outside range", "district unseen")``.
        notes: sentences about the rows, as ``credo predict`` prints them.
    """

    rows: TableRows
    flags: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.flags)

    def part(self, start: int, stop: int) -> ParsedRows:
        """The rows from ``start`` to before ``stop``."""
        return ParsedRows(self.rows.take(slice(start, stop)), self.flags[start:stop], self.notes)

    @classmethod
    def concatenate(cls, parts: Sequence[ParsedRows]) -> ParsedRows:
        """The rows of several tables, one after the other, without their notes."""
        if len(parts) == 1:
            return parts[0]
        values, others = (np.concatenate(arrays) for arrays in zip(*(part.rows for part in parts), strict=True))
        return cls(TableRows(values, others), [flags for part in parts for flags in part.flags])


class ServedModel:
    """A model from a folder that ``credo fit`` or ``save`` wrote, with its draws made.

    Args:
        path: the folder.
        device: the device to predict on; ``None``: the CPU.

    Attributes:
        estimator: the fitted estimator.
        record: what is known of the run; empty for a folder that ``save`` wrote.
        version: the beginning of a digest of the card and the tensors.

    Raises:
        CredoError: if the folder cannot be loaded, or the model cannot predict its own median row.
    """

    def __init__(self, path: str | Path, device: str | None = None) -> None:
        folder = Path(path)
        self.version = _digest(folder)
        self._background = pd.DataFrame()
        self.record: dict[str, Any] = {}
        if (folder / runs.RECORD).exists():
            run = runs.open_run(folder)
            self.estimator, self.record = run.model, run.record
            self._background = run.holdout.drop(columns=run.model.target_.name, errors="ignore").head(_EFFECT_ROWS)
        else:
            self.estimator = runs.load_model(folder)
        check_one_target(self.estimator.target_, "serving")
        if self.version != _digest(folder):
            raise InputError(f"{folder} was replaced while it was read: try again")
        if device is not None:
            self.estimator.model_.to(device)
        self._predictor = self.estimator._predictor()
        self.effect = lru_cache(_CACHED_EFFECTS)(self._effect)
        self._warm_up()

    @cached_property
    def used_columns(self) -> list[str]:
        """The columns that the model uses, in the order of training."""
        columns = self.estimator.columns_
        used = {*columns.scaling.names, *(category.name for category in columns.categories)}
        return [name for name in columns.names if name in used]

    @cached_property
    def ignored_columns(self) -> set[str]:
        """The columns that rows may have and that are not used: the target, and those that training left out."""
        return {*self.estimator.columns_.names, self.estimator.target_.name} - set(self.used_columns)

    @property
    def classes(self) -> list[Any]:
        """The classes as JSON values; empty if the target is a quantity."""
        target = self.estimator.target_
        return target.classes.tolist() if isinstance(target, ClassTarget) else []

    def parse_cells(self, cells: Sequence[Mapping[str, Any]]) -> ParsedRows:
        """:meth:`parse` for rows of JSON whose cells were checked, without a data frame, which takes longer to make.

        Args:
            cells: the cells of each row by column.

        Returns:
            The rows.
        """
        columns = self.estimator.columns_
        dates = set(columns.cycles.dates)
        values = np.empty((len(cells), len(columns.scaling.names)))
        for j, name in enumerate(columns.scaling.names):
            column, form = [row[name] for row in cells], columns.formats.get(name)
            if name in dates:
                written = form if isinstance(form, DateFormat) else DateFormat()
                column = [parse_date(cell, written) for cell in column]
            elif isinstance(form, NumberFormat):
                column = [parse_number(cell, form) for cell in column]
            values[:, j] = column  # None is NaN
        labels = [[to_label(row[category.name]) for row in cells] for category in columns.categories]
        rows = columns._to_rows(values, labels)
        return ParsedRows(rows, self._find_unlike(rows, labels))

    def parse(self, frame: pd.DataFrame) -> ParsedRows:
        """Parse rows and find in what they are unlike those of training.

        Args:
            frame: rows with the columns of training; others are ignored.

        Returns:
            The rows.

        Raises:
            InputError: if a column is absent or of another type.
        """
        ignored = [name for name in self.ignored_columns if name in frame]
        if ignored:
            frame = frame.drop(columns=ignored)
        columns = self.estimator.columns_
        rows, notes = columns.read_with_notes(frame)
        labels = [to_labels(frame[category.name]) for category in columns.categories]
        return ParsedRows(rows, self._find_unlike(rows, labels), tuple(notes))

    def predict(self, rows: ParsedRows, requests: Sequence[tuple[Request, int]]) -> list[dict[str, NDArray[Any]]]:
        """Predict the rows of several requests in one pass of the network.

        Args:
            rows: the rows of all requests, one after the other.
            requests: what each asks for, and its number of rows.

        Returns:
            For each request its columns: those of ``credo predict``, quantiles, and :data:`FLAGS`, tuples.

        Raises:
            InputError: if a model cannot return what is asked for.
        """
        with one_thread(len(rows) <= _FEW_ROWS):
            return self._predict_together(rows, requests)

    def _predict_together(
        self, rows: ParsedRows, requests: Sequence[tuple[Request, int]]
    ) -> list[dict[str, NDArray[Any]]]:
        predictive = self.estimator._predict(rows.rows, self._predictor)
        flags = np.empty(len(rows), dtype=object)
        flags[:] = rows.flags
        ends = list(itertools.accumulate(count for _, count in requests))
        results: list[dict[str, NDArray[Any]]] = [{} for _ in requests]
        for wanted in dict.fromkeys(request for request, _ in requests):
            same = [j for j, (request, _) in enumerate(requests) if request == wanted]
            if len(same) == len(requests):
                table, own = self._columns(predictive, wanted), flags
            else:
                where = [row for j in same for row in range(ends[j] - requests[j][1], ends[j])]
                table, own = self._columns(predictive[where], wanted), flags[where]
            table[FLAGS], start = own, 0
            for j in same:
                stop = start + requests[j][1]
                results[j] = {name: column[start:stop] for name, column in table.items()}
                start = stop
        return results

    def seconds(self, requests: Sequence[tuple[Request, int]]) -> float:
        """About how long :meth:`predict` takes for ``requests``, from what it took when the model was loaded."""
        distinct = {request for request, _ in requests}
        passes = len(distinct) + sum(len(request.quantiles) for request in distinct)
        return passes * self._seconds_once + sum(count for _, count in requests) * self._seconds_per_row

    def column_names(self, request: Request) -> list[str]:
        """The columns of an answer, without those that are kept."""
        names = predictions.column_names(self.estimator.target_)
        return [*names, *(f"q{q:g}" for q in request.quantiles), FLAGS]

    def describe(self) -> dict[str, Any]:
        """What the page needs to know: the target, the columns with their ranges and words, and the scores."""
        scores = self.record.get("scores", [])
        return {
            "version": self.version,
            "target": self.estimator.target_.name or "target",
            "task": "classification" if self.classes else "regression",
            "classes": [str(label) for label in self.classes],
            "method": self.estimator.method_,
            "source": self.record.get("source", ""),
            "trained_rows": self.record.get("trained_rows"),
            "scores": [{key: score[key] for key in ("label", "value", "lower", "upper")} for score in scores],
            "has_effects": len(self._background) > 1,
            "columns": [self.describe_column(name) for name in self.used_columns],
        }

    def describe_column(self, name: str) -> dict[str, Any]:
        """The kind of a column, and its range or its words.

        Args:
            name: a column that the model uses.

        Returns:
            JSON values: ``name``, ``kind`` ("number", "date" or "category"), ``default``; of numbers and dates
            ``lowest`` and ``highest``, of categories ``words``; whether values may be ``missing`` as in training.
            ``default`` is a valid cell of a JSON row.
        """
        columns = self.estimator.columns_
        if name not in columns.scaling.names:
            category = next(category for category in columns.categories if category.name == name)
            words = [*category.kept, *category.rare]
            return {
                "name": name,
                "kind": "category",
                "words": words,
                "default": words[0],
                "missing": category.has_missing,
            }
        j, scaling = columns.scaling.names.index(name), columns.scaling
        lowest, highest, median = (float(values[j]) for values in (scaling.lowest, scaling.highest, scaling.median))
        form = columns.formats.get(name)
        shown: dict[str, Any] = {"name": name, "kind": "number", "missing": bool(scaling.has_missing[j])}
        if name in columns.cycles.dates:
            ends = [_to_date(days) for days in (lowest, highest, round(median))]
            return shown | {"kind": "date", "lowest": ends[0], "highest": ends[1], "default": ends[2]}
        form = form if isinstance(form, NumberFormat) else NumberFormat()
        is_percent = form.unit == PERCENT  # a cell is text then, because the number 5 could be 5 % or 500 %
        whole = all(value.is_integer() for value in (lowest, highest, median)) and highest - lowest < 1e6
        few = next(s.distinct for s in columns.summaries if s.name == name) <= highest - lowest + 1
        return shown | {
            "lowest": lowest,
            "highest": highest,
            "default": f"{median:.6g} {PERCENT}".replace(".", form.decimal) if is_percent else median,
            "integer": whole and few,
            "boolean": form.boolean,
            "unit": PERCENT if is_percent else "",
            "decimal": form.decimal if is_percent else ".",
        }

    def _effect(self, column: str, level: float) -> dict[str, Any]:
        """The partial dependence on a column over held-out rows, as JSON values; computed once per column and level."""
        from credo.explain import partial_dependence

        if column not in self.used_columns:
            raise Refusal(404, f"there is no column {quoted(column)} that the model uses")
        if len(self._background) < 2:
            raise Refusal(404, "no rows were held out of this run, over which an effect could be averaged")
        with WARNINGS_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = partial_dependence(self.estimator, self._background, column, level=level)
        grid = [_cell(value) for value in found.grid[0]]
        shown = {"mean": found.mean, "lower": found.lower, "upper": found.upper}
        return {
            "column": column,
            "kind": found.kinds[0],
            "classes": list(found.classes),
            "grid": grid,
            **{name: np.nan_to_num(values).tolist() for name, values in shown.items()},
        }

    def _find_unlike(self, rows: TableRows, labels: Sequence[Labels]) -> list[tuple[str, ...]]:
        """In what each row is unlike those of training."""
        columns = self.estimator.columns_
        scaling = columns.scaling
        found: list[list[str]] = [[] for _ in range(len(rows.values))]
        outside = scaling.outside(rows.values)
        missing = ~np.isfinite(rows.values) & ~scaling.has_missing
        for what, which in (("outside range", outside), ("missing", missing)):
            for row, column in zip(*np.nonzero(which), strict=True):
                found[row].append(f"{scaling.names[column]} {what}")
        for category, of_column in zip(columns.categories, labels, strict=True):
            unseen = {label for label in set(of_column) if category.unseen([label])}
            for row in (j for j, label in enumerate(of_column) if label in unseen) if unseen else ():
                found[row].append(f"{category.name} {'missing' if of_column[row] is None else 'unseen'}")
        return list(map(tuple, found))

    def _columns(self, predictive: Predictive, request: Request) -> dict[str, NDArray[Any]]:
        target = self.estimator.target_
        table = predictions.to_columns(predictive, target, request.level)
        if request.quantiles:
            quantiles = predictive.quantile(list(request.quantiles)).numpy()
            if isinstance(target, ClassTarget):
                quantiles = target.decode(quantiles)
            table |= {f"q{q:g}": values for q, values in zip(request.quantiles, quantiles, strict=True)}
        return table

    def _warm_up(self) -> None:
        """Predict some rows, so that the first request does not wait for what is done once, and measure the time."""
        row = {name: self.describe_column(name)["default"] for name in self.used_columns}

        def seconds(count: int) -> float:
            times = []
            for _ in range(3):
                start = time.thread_time()  # of this thread alone: the machine may be busy
                self.predict(self.parse_cells([row] * count), [(Request(), count)])
                times.append(time.thread_time() - start)
            return min(times)

        self._seconds_once = seconds(1)
        self._seconds_per_row = max(seconds(_WARM_UP_ROWS) - self._seconds_once, 0.0) / (_WARM_UP_ROWS - 1)


def _digest(folder: Path) -> str:
    try:
        parts = [hashlib.sha256((folder / name).read_bytes()).digest() for name in (CARD, TENSORS)]
    except OSError as error:
        raise InputError(f"{folder} cannot be read as a folder that credo fit wrote: {error.strerror}") from error
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _to_date(days: float) -> str:
    return (_EPOCH + datetime.timedelta(days=days)).isoformat(sep=" ", timespec="seconds").removesuffix(" 00:00:00")


def _cell(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return _to_date(float(value.astype("datetime64[s]").astype(np.int64)) / 86_400)
    return value.item() if isinstance(value, np.generic) else value
