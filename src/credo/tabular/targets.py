"""What is to be predicted: checked, as numbers a network can learn, and back in its own units and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo.errors import InputError, LoadError
from credo.tabular.cells import measure, word
from credo.tabular.kinds import hint
from credo.tabular.wording import counted, listed, quoted

Task = Literal["regression", "classification"]

MOST_CLASSES = 10
"""Integers with more different values than this are taken for quantities."""

ROWS_PER_CLASS = 5
"""Integers with fewer rows than this for each different value are taken for quantities."""

_LARGEST, _SMALLEST = 1e100, 1e-100  # squares of larger numbers overflow, of smaller ones vanish


def known_rows(y: Any) -> NDArray[np.bool]:
    """Which rows ``[N]`` have a target; from the others nothing can be learned."""
    return ~np.asarray(_as_series(y).isna())


def guess_task(y: Any) -> Task:
    """What kind of target ``y`` ``[N]`` seems to be.

    Text, truth values and pandas categories are classes. Numbers, also where they are written as text, are classes if
    they are whole, between 2 and 10 of them differ, and there are at least five rows for each on average: 0 and 1,
    digits, grades. Everything else is a quantity.
    """
    column = _as_series(y).dropna()
    if isinstance(column.dtype, pd.CategoricalDtype) or types.is_bool_dtype(column.infer_objects().dtype):
        return "classification"
    measured = measure(column.to_frame("y"), ["y"], [])
    if measured.unread:
        return "classification"
    values = measured.values
    few = 2 <= len(np.unique(values)) <= min(MOST_CLASSES, len(values) / ROWS_PER_CLASS)
    return "classification" if few and _are_whole(values) else "regression"


@dataclass(frozen=True)
class RegressionTarget:
    """A quantity y, learned as z = (y − mean) / scale.

    Attributes:
        name: of the target's column, or empty.
        mean: of the training targets.
        scale: their standard deviation; 1 where all are the same.
        notes: sentences about rows left out and a target that never changes.
        constant: whether all training targets are the same, and so all predictions.
    """

    name: str
    mean: float
    scale: float
    notes: tuple[str, ...] = ()
    constant: bool = False

    @classmethod
    def learn(cls, y: Any) -> RegressionTarget:
        """From all training targets ``[N]``; rows without one are ignored, as :func:`known_rows` tells."""
        column = _as_series(y)
        notes = _notes_on_gaps(column)
        name = _name(column)
        values = np.sort(_quantities(column.dropna(), name))
        mean = float(values.mean())
        if values[0] == values[-1]:
            same = f"{_called(name)} is {values[0]:.6g} in every row: so will every prediction be."
            return cls(name, float(values[0]), 1.0, (*notes, _sentence(same)), constant=True)
        farthest = np.abs(values - mean).max()  # squares of differences in units of it cannot underflow
        scale = farthest * np.sqrt(np.mean(np.square((values - mean) / farthest)))
        return cls(name, mean, float(scale), notes)

    @property
    def resolution(self) -> float:
        """How far apart values like the mean are to a computer: the spread of a target that is constant."""
        return max(abs(self.mean) * float(np.finfo(np.float64).eps), _SMALLEST)

    def standardize(self, y: Any) -> NDArray[np.float32]:
        """z ``[N]`` of targets that are all known."""
        values = _quantities(_as_series(y), self.name)
        return np.asarray((values - self.mean) / self.scale, dtype=np.float32)

    def unstandardize(self, z: Any) -> Any:
        """y of z, an array or a tensor of any shape."""
        return z * self.scale + self.mean

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return vars(self) | {"notes": list(self.notes)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RegressionTarget:
        """The inverse of :meth:`get_config`."""
        try:
            return cls(**{**config, "notes": tuple(config["notes"])})
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """One of K classes, learned as its position among them.

    Attributes:
        name: of the target's column, or empty.
        classes: the labels ``[K]`` in ascending order: integers, text or truth values, as they were given.
        notes: sentences about rows left out and classes that occur once.
    """

    name: str
    classes: NDArray[Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def learn(cls, y: Any) -> ClassTarget:
        """From all training labels ``[N]``; rows without one are ignored, as :func:`known_rows` tells."""
        column = _as_series(y)
        notes = _notes_on_gaps(column)
        name = _name(column)
        labels = _labels(column, name)
        classes, rows = np.unique(labels, return_counts=True)
        if len(classes) == 1:
            raise InputError(f"{_called(name)} holds one class only, {quoted(classes[0])}: at least two are needed")
        if len(classes) > max(2, len(labels) / 2):
            advice = hint([str(label) for label in labels]) or (
                "use regression (credo.Regressor) if it is a quantity, or choose another column"
            )
            raise InputError(
                f"{_called(name)} holds {len(classes):,} classes in {len(labels):,} rows, too many to learn from: "
                f"{advice}"
            )
        lonely = [quoted(label) for label in classes[rows == 1]]
        if lonely:
            notes = (*notes, _sentence(f"{_called(name)} has classes with a single row: {listed(lonely)}."))
        return cls(name, classes, notes)

    def encode(self, y: Any) -> NDArray[np.int64]:
        """Positions ``[N]`` among the classes of labels that are all known; 1, 1.0 and ``"1"`` are the same label."""
        cells = _as_series(y).tolist()
        positions = [self._position.get(cell, self._position.get(word(cell), -1)) for cell in cells]
        if -1 in positions:
            row = positions.index(-1)
            raise InputError(
                f"{_called(self.name)} holds {quoted(cells[row])} in row {row}, counted from 0, which is none of the "
                f"{len(self.classes):,} classes of training ({listed([quoted(c) for c in self.classes])})"
            )
        return np.array(positions, dtype=np.int64)

    def decode(self, positions: Any) -> NDArray[Any]:
        """The labels of positions, of the dtype that the labels had in training."""
        return np.asarray(self.classes[np.asarray(positions)])

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        labels = {"classes": self.classes.tolist(), "dtype": self.classes.dtype.str}
        return {"name": self.name, **labels, "notes": list(self.notes)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ClassTarget:
        """The inverse of :meth:`get_config`."""
        try:
            labels, dtype = np.array(config["classes"]), np.dtype(config["dtype"])
            if labels.dtype.kind not in "biufU" or dtype.kind not in "biufU":
                raise ValueError("classes must be text, numbers or truth values")
            classes = labels if dtype.kind == "U" else labels.astype(dtype)  # a saved length may ask for any memory
            if classes.tolist() != config["classes"] or not np.array_equal(classes, np.unique(labels)):
                raise ValueError("classes must be different, of one type and in ascending order")
            return cls(str(config["name"]), classes, tuple(config["notes"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error

    @cached_property
    def _position(self) -> dict[object, int]:
        labels = self.classes.tolist()
        by_word: dict[object, int] = {word(label): k for k, label in enumerate(labels)}
        return by_word | {None: -1} | {label: k for k, label in enumerate(labels)}


def _as_series(y: Any) -> pd.Series:
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if isinstance(y, pd.Series):
        return y
    values = y if isinstance(y, list | tuple) else np.asarray(y)
    if np.ndim(values) != 1:
        raise InputError(f"the target must be one value a row, got shape {list(np.shape(values))}: choose one column")
    return pd.Series(values)


def _quantities(column: pd.Series, name: str) -> NDArray[np.float64]:
    """The numbers of a column that has no gaps."""
    measured = measure(column.to_frame("y"), ["y"], [])
    values = measured.values[:, 0]
    unreadable = np.flatnonzero(np.isnan(values))
    if len(unreadable):
        example = column.iloc[unreadable[0]]
        advice = hint([str(cell) for cell in column]) or "correct them, or use classification (credo.Classifier)"
        raise InputError(
            f"{_called(name)} must hold numbers for regression, but {len(unreadable):,} of its "
            f"{counted(len(values), 'value')} are none, such as {quoted(example)}: {advice}"
        )
    infinite = np.flatnonzero(~(np.abs(values) <= _LARGEST))
    if len(infinite):
        raise InputError(
            f"{_called(name)} is infinite, or beyond {_LARGEST:g}, in {counted(len(infinite), 'row')}, the first of "
            f"them row {infinite[0]}, counted from 0: correct or remove them"
        )
    return values


def _labels(column: pd.Series, name: str) -> NDArray[Any]:
    """The labels of the rows that have one, as truth values, integers or text."""
    known = column.dropna()
    numeric = isinstance(known.dtype, np.dtype) and known.dtype.kind in "biuf"
    if not numeric and len({type(cell) for cell in known}) > 1:
        raise InputError(f"{_called(name)} mixes labels of different types: make all of them text or integers")
    labels: NDArray[Any] = known.to_numpy() if numeric else np.array(known.tolist())
    if labels.dtype.kind not in "biufU":
        raise InputError(
            f"Unknown label type: {_called(name)} holds {quoted(known.iloc[0])}, a {type(known.iloc[0]).__name__}: "
            "make its labels text or integers"
        )
    if labels.dtype.kind == "f" and not _are_whole(labels):
        raise InputError(
            f"Unknown label type: {_called(name)} is continuous, with values such as {quoted(labels[0])}: use "
            "regression (credo.Regressor), or make its labels text or integers"
        )
    if labels.dtype.kind == "f" and len(known) < len(column):
        labels = labels.astype(np.int64)  # pandas stores integers with gaps as floats
    return labels


def _are_whole(values: NDArray[Any]) -> bool:
    return bool(np.isfinite(values).all() and (values == np.round(values)).all())


def _notes_on_gaps(column: pd.Series) -> tuple[str, ...]:
    gaps = int(column.isna().sum())
    if gaps == len(column):
        raise InputError(f"{_called(_name(column))} is missing in every row: choose a column that holds something")
    return (f"Left out, because the target is missing: {gaps:,} of {counted(len(column), 'row')}.",) if gaps else ()


def _name(column: pd.Series) -> str:
    return "" if column.name is None else str(column.name)


def _called(name: str) -> str:
    return f"the target {quoted(name)}" if name else "the target"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
