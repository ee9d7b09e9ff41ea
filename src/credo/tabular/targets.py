"""The target of a table: its task, and quantities checked, encoded for the network and decoded to their own units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from credo.errors import InputError, LoadError
from credo.tabular.class_target import ClassTarget
from credo.tabular.dialects import Dialect
from credo.tabular.number_format import NumberFormat
from credo.tabular.outliers import regular_range, robust_scale
from credo.tabular.parsing import Cells
from credo.tabular.readings import FEW_NUMBERS, MIXED_UNITS
from credo.tabular.target_cells import (
    are_integers,
    as_series,
    called,
    check_quantities,
    is_unknown,
    notes_on_missing,
    notes_on_quantities,
    notes_on_rows,
    number_format,
    parse_quantities,
    read_target,
    target_name,
)

if TYPE_CHECKING:
    from credo.tabular.several_targets import RegressionTargets

__all__ = ["ClassTarget", "RegressionTarget", "TaskType", "guess_task", "known_rows", "notes_on_unknown"]

TaskType = Literal["regression", "classification"]

MAX_CLASSES = 10
"""Integers with more different values than this are treated as quantities."""

ROWS_PER_CLASS = 5
"""Integers with fewer rows than this per different value are treated as quantities."""

_MIN_SPREAD = 1e-100  # squares of smaller numbers underflow


def known_rows(y: Any, target: RegressionTarget | RegressionTargets | ClassTarget | None = None) -> NDArray[np.bool]:
    """Find the rows with a target: one that is not missing and, given ``target``, can be read as in training.

    Args:
        y: the targets ``[N]``.
        target: the fitted target; ``None``: only cells that pandas takes for missing are.

    Returns:
        Booleans ``[N]``.
    """
    if target is not None and not isinstance(target, ClassTarget):
        return target.known(y)
    return ~is_unknown(as_series(y), numeric=target is not None and target.numeric)


def notes_on_unknown(y: Any, target: RegressionTarget | ClassTarget) -> list[str]:
    """Describe the rows without a target, by :func:`known_rows`.

    Args:
        y: the targets ``[N]``.
        target: the fitted target.

    Returns:
        Sentences; none if all rows have a target.
    """
    column = as_series(y)
    if isinstance(target, RegressionTarget):
        return notes_on_rows(parse_quantities(column, target.form), column)
    return notes_on_missing(column, int((~known_rows(column, target)).sum()))


def guess_task(y: Any, dialect: Dialect | None = None) -> TaskType:
    """Guess whether a target calls for regression or classification.

    Text, booleans and pandas categories are classes. Numbers, also if they are stored as text in any format, are
    classes if they are integers with 2 to 10 different values and at least five rows per value on average, such as 0
    and 1, digits or grades. Everything else is a quantity.

    Args:
        y: the targets ``[N]``; missing ones are ignored.
        dialect: what is known about the writing of the table; ``None``: what the target shows.

    Returns:
        ``"regression"`` or ``"classification"``.

    Raises:
        InputError: if most of the values are numbers, but too many are not.

    Example:
        >>> from credo.tabular import guess_task
        >>> guess_task(["yes", "no", "yes"])
        'classification'
        >>> guess_task([1.5, 2.5, 3.5])
        'regression'
    """
    column = as_series(y).dropna()
    if isinstance(column.dtype, pd.CategoricalDtype) or types.is_bool_dtype(column.infer_objects().dtype):
        return "classification"
    reading = read_target(column, dialect)
    if reading.doubt in (FEW_NUMBERS, MIXED_UNITS):
        raise InputError(
            f"the {called(target_name(column))} holds numbers and other texts: "
            f"{reading.doubt[0].lower()}{reading.doubt[1:]} ({reading.example}); correct them, or say what it is "
            "(task='regression' or 'classification', --task)"
        )
    if reading.kind != "number" or getattr(reading.form, "boolean", False):
        return "classification"
    values = parse_quantities(column, number_format(reading)).values
    values = values[~np.isnan(values)]
    few = 2 <= len(np.unique(values)) <= min(MAX_CLASSES, len(values) / ROWS_PER_CLASS)
    return "classification" if few and are_integers(values) else "regression"


@dataclass(frozen=True)
class RegressionTarget:
    """A quantity y, encoded as z = (y − mean) / scale.

    Values far from all others (:mod:`credo.tabular.outliers`), such as one that is mistyped, are clipped to the range
    of the others in training, so that they determine neither the scale nor the loss.

    Attributes:
        name: the name of the target's column, or empty.
        mean: the mean of the training targets.
        scale: their standard deviation; 1 if all are the same.
        notes: sentences about how it is read, rows left out, outlying values and a constant target.
        constant: whether all training targets are the same, and so all predictions.
        form: how its numbers are written.
        limits: the range of the training targets without those that are outlying; ``None`` if none are.

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
    form: NumberFormat = field(default_factory=NumberFormat)
    limits: tuple[float, float] | None = None

    @classmethod
    def learn(cls, y: Any, dialect: Dialect | None = None) -> RegressionTarget:
        """Compute mean and standard deviation of the training targets.

        Args:
            y: the targets ``[N]``; missing ones are ignored, and so are a few that are not numbers.
            dialect: what is known about the writing of the table; ``None``: what the target shows.

        Returns:
            The target.

        Raises:
            InputError: if all targets are missing, more than 10 % are not numbers, or some are infinite or beyond
                1e100.
        """
        column = as_series(y)
        name, reading = target_name(column), read_target(column, dialect)
        form = number_format(reading)
        found = parse_quantities(column, form)
        check_quantities(found, column, name, reading)
        notes = notes_on_quantities(found, column, reading)
        values = np.sort(found.values[~np.isnan(found.values)])
        low, high = (float(bound[0]) for bound in regular_range(values[:, None], robust_scale(values[:, None])))
        limits = (low, high) if low > values[0] or high < values[-1] else None
        if limits is not None:
            notes.append(_note_on_outliers(found.values, limits, column))
            values = np.clip(values, low, high)
        if values[0] == values[-1]:
            same = f"The {called(name)} is {values[0]:.6g} in every row, and so is every prediction."
            return cls(name, float(values[0]), 1.0, (*notes, same), constant=True, form=form)
        mean = float(values.mean())
        largest = np.abs(values - mean).max()  # squares of differences in units of it cannot underflow
        scale = largest * np.sqrt(np.mean(np.square((values - mean) / largest)))
        return cls(name, mean, float(scale), tuple(notes), form=form, limits=limits)

    @property
    def resolution(self) -> float:
        """The spacing of floating-point numbers at the mean, the standard deviation for a constant target."""
        return max(abs(self.mean) * float(np.finfo(np.float64).eps), _MIN_SPREAD)

    def known(self, y: Any) -> NDArray[np.bool]:
        """Which targets can be read as numbers.

        Args:
            y: the targets ``[N]``.

        Returns:
            Booleans ``[N]``.
        """
        return ~np.isnan(parse_quantities(as_series(y), self.form).values)

    @property
    def names(self) -> tuple[str, ...]:
        """The name, as the only one."""
        return (self.name,)

    def standardize(self, y: Any) -> NDArray[np.float32]:
        """Encode targets.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            z ``[N]``.

        Raises:
            InputError: if some are not numbers, infinite or beyond 1e100.
        """
        return np.asarray((self.parse(y) - self.mean) / self.scale, dtype=np.float32)

    def encode(self, y: Any) -> NDArray[np.float32]:
        """Encode targets to train on: as :meth:`standardize`, but clipped to the range without outlying ones.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            z ``[N]``.

        Raises:
            InputError: as :meth:`standardize` does.
        """
        low, high = self.limits or (-np.inf, np.inf)
        return np.asarray((np.clip(self.parse(y), low, high) - self.mean) / self.scale, dtype=np.float32)

    def parse(self, y: Any) -> NDArray[np.float64]:
        """The targets as numbers.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            The numbers ``[N]``.

        Raises:
            InputError: if some are not numbers, infinite or beyond 1e100.
        """
        column = as_series(y)
        found = parse_quantities(column, self.form)
        missing = np.flatnonzero(np.isnan(found.values))
        if len(missing) and not len(found.unparsed):
            found = replace(found, unparsed=Cells(column.index[missing].tolist(), column.iloc[missing].tolist()))
        check_quantities(found, column, self.name, None)
        return found.values

    def outlying(self, y: Any) -> str:
        """Describe targets outside the range of training, if that range was cut at outlying values.

        Args:
            y: the targets ``[N]``, none of them missing.

        Returns:
            Their number, rows and values; empty if there are none.
        """
        return "" if self.limits is None else _describe_outliers(self.parse(y), self.limits, as_series(y))

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values.

        Returns:
            A mapping for :meth:`from_config`.
        """
        limits = None if self.limits is None else list(self.limits)
        return vars(self) | {"notes": list(self.notes), "form": self.form.get_config(), "limits": limits}

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
            form, limits = NumberFormat.from_config(config["form"]), config["limits"]
            limits = None if limits is None else (float(limits[0]), float(limits[1]))
            return cls(**{**config, "notes": tuple(config["notes"]), "form": form, "limits": limits})
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error


def _note_on_outliers(values: NDArray[np.float64], limits: tuple[float, float], column: pd.Series) -> str:
    return (
        f"The {called(target_name(column))} is far from all others in {_describe_outliers(values, limits, column)}: "
        f"check; in training it is clipped to the range of the others, {limits[0]:.6g} to {limits[1]:.6g}."
    )


def _describe_outliers(values: NDArray[np.float64], limits: tuple[float, float], column: pd.Series) -> str:
    rows = np.flatnonzero((values < limits[0]) | (values > limits[1]))
    cells = Cells(column.index[rows].tolist(), [f"{value:.6g}" for value in values[rows]])
    return cells.describe() if len(cells) else ""
