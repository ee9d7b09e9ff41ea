"""The target of a table: checked, encoded for the network, and decoded to its own units or labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo._text import counted, listed, quoted
from credo.errors import InputError, LoadError
from credo.tabular.column_types import format_hint
from credo.tabular.parsing import parse_columns, to_label

TaskType = Literal["regression", "classification"]

MAX_CLASSES = 10
"""Integers with more different values than this are treated as quantities."""

ROWS_PER_CLASS = 5
"""Integers with fewer rows than this per different value are treated as quantities."""

_MAX_VALUE, _MIN_SPREAD = 1e100, 1e-100  # squares of larger numbers overflow, of smaller ones underflow


def known_rows(y: Any) -> NDArray[np.bool]:
    """Whether each row ``[N]`` has a target."""
    return ~np.asarray(_as_series(y).isna())


def guess_task(y: Any) -> TaskType:
    """Guess whether a target calls for regression or classification.

    Text, booleans and pandas categories are classes. Numbers, also if they are stored as text, are classes if they are
    integers with 2 to 10 different values and at least five rows per value on average, such as 0 and 1, digits or
    grades. Everything else is a quantity.

    Args:
        y: the targets ``[N]``; missing ones are ignored.

    Returns:
        ``"regression"`` or ``"classification"``.

    Example:
        >>> from credo.tabular import guess_task
        >>> guess_task(["yes", "no", "yes"])
        'classification'
        >>> guess_task([1.5, 2.5, 3.5])
        'regression'
    """
    column = _as_series(y).dropna()
    if isinstance(column.dtype, pd.CategoricalDtype) or types.is_bool_dtype(column.infer_objects().dtype):
        return "classification"
    parsed = parse_columns(column.to_frame("y"), ["y"], [])
    if parsed.unparsed:
        return "classification"
    values = parsed.values
    few = 2 <= len(np.unique(values)) <= min(MAX_CLASSES, len(values) / ROWS_PER_CLASS)
    return "classification" if few and _are_integers(values) else "regression"


@dataclass(frozen=True)
class RegressionTarget:
    """A quantity y, encoded as z = (y − mean) / scale.

    Attributes:
        name: the name of the target's column, or empty.
        mean: the mean of the training targets.
        scale: their standard deviation; 1 if all are the same.
        notes: sentences about rows left out and a constant target.
        constant: whether all training targets are the same, and so all predictions.

    Example:
        >>> from credo.tabular import RegressionTarget
        >>> target = RegressionTarget.learn([1.0, 3.0])
        >>> target.mean, target.scale
        (2.0, 1.0)
    """

    name: str
    mean: float
    scale: float
    notes: tuple[str, ...] = ()
    constant: bool = False

    @classmethod
    def learn(cls, y: Any) -> RegressionTarget:
        """Compute mean and standard deviation of the training targets.

        Args:
            y: the targets ``[N]``; missing ones are ignored.

        Returns:
            The target.

        Raises:
            InputError: if all targets are missing, or some are not numbers, infinite or beyond 1e100.
        """
        column = _as_series(y)
        notes = _notes_on_missing(column)
        name = _name(column)
        values = np.sort(_quantities(column.dropna(), name))
        mean = float(values.mean())
        if values[0] == values[-1]:
            same = f"The {_called(name)} is {values[0]:.6g} in every row, and so is every prediction."
            return cls(name, float(values[0]), 1.0, (*notes, same), constant=True)
        largest = np.abs(values - mean).max()  # squares of differences in units of it cannot underflow
        scale = largest * np.sqrt(np.mean(np.square((values - mean) / largest)))
        return cls(name, mean, float(scale), notes)

    @property
    def resolution(self) -> float:
        """The spacing of floating-point numbers at the mean, the standard deviation for a constant target."""
        return max(abs(self.mean) * float(np.finfo(np.float64).eps), _MIN_SPREAD)

    def standardize(self, y: Any) -> NDArray[np.float32]:
        """Encode targets.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            z ``[N]``.

        Raises:
            InputError: if some are not numbers, infinite or beyond 1e100.
        """
        return np.asarray((self.quantities(y) - self.mean) / self.scale, dtype=np.float32)

    def quantities(self, y: Any) -> NDArray[np.float64]:
        """Read targets.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            The numbers ``[N]``, in their own units.

        Raises:
            InputError: if some are not numbers, infinite or beyond 1e100.
        """
        return _quantities(_as_series(y), self.name)

    def unstandardize(self, z: Any) -> Any:
        """Decode targets.

        Args:
            z: an array or a tensor of any shape.

        Returns:
            y = z · scale + mean, of the same type and shape.
        """
        return z * self.scale + self.mean

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values.

        Returns:
            A mapping for :meth:`from_config`.
        """
        return vars(self) | {"notes": list(self.notes)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RegressionTarget:
        """Restore a target.

        Args:
            config: what :meth:`get_config` returned.

        Returns:
            The target.

        Raises:
            LoadError: if an entry is missing or has the wrong type.
        """
        try:
            return cls(**{**config, "notes": tuple(config["notes"])})
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """One of K classes, encoded as its position among them.

    Attributes:
        name: the name of the target's column, or empty.
        classes: the labels ``[K]`` in ascending order: integers, text or booleans, as they were given.
        notes: sentences about rows left out and classes with a single row.

    Example:
        >>> from credo.tabular import ClassTarget
        >>> target = ClassTarget.learn(["b", "a", "b", "a"])
        >>> target.encode(["a", "b"])
        array([0, 1])
    """

    name: str
    classes: NDArray[Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def learn(cls, y: Any) -> ClassTarget:
        """Find the classes.

        Args:
            y: the training labels ``[N]``; missing ones are ignored.

        Returns:
            The target.

        Raises:
            InputError: if there is one class only, or one for every two rows, or labels are not of one type.
        """
        column = _as_series(y)
        notes = _notes_on_missing(column)
        name = _name(column)
        labels = _labels(column, name)
        classes, rows = np.unique(labels, return_counts=True)
        if len(classes) == 1:
            raise InputError(f"the {_called(name)} holds one class only, {quoted(classes[0])}: at least two are needed")
        if len(classes) > max(2, len(labels) / 2):
            advice = format_hint([str(label) for label in labels]) or (
                "use regression (credo.Regressor) if it is a quantity, or choose another column"
            )
            raise InputError(
                f"the {_called(name)} holds {len(classes):,} classes in {len(labels):,} rows, too many to learn from: "
                f"{advice}"
            )
        single = [quoted(label) for label in classes[rows == 1]]
        if single:
            notes = (*notes, f"The {_called(name)} has classes with a single row: {listed(single)}.")
        return cls(name, classes, notes)

    def encode(self, y: Any) -> NDArray[np.int64]:
        """Encode labels.

        Args:
            y: the labels ``[N]``, none of them missing; 1, 1.0 and ``"1"`` are the same label.

        Returns:
            Positions among the classes ``[N]``.

        Raises:
            InputError: if a label is not one of the classes.
        """
        cells = _as_series(y).tolist()
        positions = [self._position.get(cell, self._position.get(to_label(cell), -1)) for cell in cells]
        if -1 in positions:
            row = positions.index(-1)
            raise InputError(
                f"the {_called(self.name)} holds {quoted(cells[row])} in row {row}, counted from 0, which is none of "
                f"the {len(self.classes):,} classes of training ({listed([quoted(c) for c in self.classes])})"
            )
        return np.array(positions, dtype=np.int64)

    def decode(self, positions: Any) -> NDArray[Any]:
        """Decode labels.

        Args:
            positions: among the classes, of any shape.

        Returns:
            The labels, with the dtype they had in training.
        """
        return np.asarray(self.classes[np.asarray(positions)])

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values.

        Returns:
            A mapping for :meth:`from_config`.
        """
        labels = {"classes": self.classes.tolist(), "dtype": self.classes.dtype.str}
        return {"name": self.name, **labels, "notes": list(self.notes)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ClassTarget:
        """Restore a target.

        Args:
            config: what :meth:`get_config` returned.

        Returns:
            The target.

        Raises:
            LoadError: if an entry is missing or has the wrong type.
        """
        try:
            labels, dtype = np.array(config["classes"]), np.dtype(config["dtype"])
            if labels.dtype.kind not in "biufU" or dtype.kind not in "biufU":
                raise ValueError("classes must be text, numbers or booleans")
            classes = (
                labels if dtype.kind == "U" else labels.astype(dtype)
            )  # a damaged length could allocate any amount of memory
            if classes.tolist() != config["classes"] or not np.array_equal(classes, np.unique(labels)):
                raise ValueError("classes must be different, of one type and in ascending order")
            return cls(str(config["name"]), classes, tuple(config["notes"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error

    @cached_property
    def _position(self) -> dict[object, int]:
        labels = self.classes.tolist()
        by_text: dict[object, int] = {to_label(label): k for k, label in enumerate(labels)}
        return by_text | {None: -1} | {label: k for k, label in enumerate(labels)}


def _as_series(y: Any) -> pd.Series:
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if isinstance(y, pd.Series):
        return y
    values = y if isinstance(y, list | tuple) else np.asarray(y)
    if np.ndim(values) != 1:
        raise InputError(f"the target must be one value per row, got shape {list(np.shape(values))}: choose one column")
    return pd.Series(values)


def _quantities(column: pd.Series, name: str) -> NDArray[np.float64]:
    """The numbers in a column without missing values."""
    values = parse_columns(column.to_frame("y"), ["y"], []).values[:, 0]
    invalid = np.flatnonzero(np.isnan(values))
    if len(invalid):
        example = column.iloc[invalid[0]]
        advice = format_hint([str(cell) for cell in column]) or "correct them, or use classification (credo.Classifier)"
        raise InputError(
            f"the {_called(name)} must hold numbers for regression, but {len(invalid):,} of its "
            f"{counted(len(values), 'value')} are not, such as {quoted(example)}: {advice}"
        )
    infinite = np.flatnonzero(~(np.abs(values) <= _MAX_VALUE))
    if len(infinite):
        raise InputError(
            f"the {_called(name)} is infinite, or beyond {_MAX_VALUE:g}, in {counted(len(infinite), 'row')}, the first "
            f"in row {infinite[0]}, counted from 0: correct or remove them"
        )
    return values


def _labels(column: pd.Series, name: str) -> NDArray[Any]:
    """The labels that are not missing, as booleans, integers or text."""
    known = column.dropna()
    numeric = isinstance(known.dtype, np.dtype) and known.dtype.kind in "biuf"
    if not numeric and len({type(cell) for cell in known}) > 1:
        raise InputError(f"the {_called(name)} mixes labels of different types: make all of them text or integers")
    labels: NDArray[Any] = known.to_numpy() if numeric else np.array(known.tolist())
    if labels.dtype.kind not in "biufU":
        raise InputError(
            f"Unknown label type: the {_called(name)} holds {quoted(known.iloc[0])}, a {type(known.iloc[0]).__name__}: "
            "make its labels text or integers"
        )
    if labels.dtype.kind == "f" and not _are_integers(labels):
        raise InputError(
            f"Unknown label type: the {_called(name)} is continuous, with values such as {quoted(labels[0])}: use "
            "regression (credo.Regressor), or make its labels text or integers"
        )
    if labels.dtype.kind == "f" and len(known) < len(column):
        labels = labels.astype(np.int64)  # pandas stores integers with missing values as floats
    return labels


def _are_integers(values: NDArray[Any]) -> bool:
    return bool(np.isfinite(values).all() and (values == np.round(values)).all())


def _notes_on_missing(column: pd.Series) -> tuple[str, ...]:
    missing = int(column.isna().sum())
    if missing == len(column):
        raise InputError(f"the {_called(_name(column))} is missing in every row: choose another column")
    return (
        (f"Left out, because the target is missing: {missing:,} of {counted(len(column), 'row')}.",) if missing else ()
    )


def _name(column: pd.Series) -> str:
    return "" if column.name is None else str(column.name)


def _called(name: str) -> str:
    return f"target {quoted(name)}" if name else "target"
