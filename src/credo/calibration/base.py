"""The interface of a calibrator, which learns from held-out rows and corrects new predictions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from credo._registry import Registry
from credo.errors import InputError
from credo.metrics._targets import Values, as_tensor
from credo.predictive import ClassPredictive, Predictive, RealPredictive

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


class Calibrator(ABC):
    """A correction of predictions, learned from held-out rows.

    ``fit`` compares predictions with their targets, ``calibrator(predictive)`` corrects new ones. What ``fit`` learns
    are the constructor's arguments: ``get_config()`` returns them in a form JSON can hold, ``from_config`` reads them.

    A calibrator must be fitted to rows that the model has *not* been trained on: errors on training rows are smaller
    than on new ones, so a calibrator fitted to them makes an overconfident model more so. Nor should the rows be
    those on which results are reported.

    Attributes:
        registry: the calibrators by name; every finished subclass is registered.
        min_rows: the minimum number of held-out rows.

    Example:
        >>> calibrator = credo.calibration.VarianceScaling().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator(model.predict(x_new)).interval(0.9)
    """

    registry: ClassVar[Registry[Calibrator]] = Registry("calibrator")
    min_rows: ClassVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.isabstract(cls):
            Calibrator.registry.register(cls)

    def fit(self, predictive: Predictive, y: Values) -> Self:
        """Learn from the predictions for held-out rows and their targets.

        Args:
            predictive: the predictions for at least ``min_rows`` rows that were not used in training.
            y: the targets of these rows, a tensor or an array, in the shape that ``predictive.log_prob`` takes.

        Raises:
            InputError: if the kind of prediction, the targets or the number of rows does not match.
        """
        self._check(predictive)
        y = as_tensor(y, "y")
        predictive.components.check(y)
        self._check_rows(len(y))
        if not bool(predictive.draws.isfinite().all()):
            raise InputError("the predictive holds NaN or infinite values, which no calibration can correct.")
        with torch.no_grad():
            self._learn(predictive, y.to(predictive.draws.device))
        return self

    def __call__(self, predictive: Predictive) -> Predictive:
        """Correct predictions.

        Args:
            predictive: predictions of any rows, of the kind that ``fit`` was given.

        Returns:
            The corrected predictions.

        Raises:
            InputError: if the calibrator is not fitted, or the kind of prediction does not match.
        """
        self._check(predictive)
        return self._apply(predictive)

    @abstractmethod
    def get_config(self) -> dict[str, object]:
        """Return the constructor's arguments and ``"name"``, which JSON can hold.

        Returns:
            The configuration; an argument that has not been learned is ``None``.
        """

    @staticmethod
    def from_config(config: Mapping[str, object]) -> Calibrator:
        """Build a calibrator from its configuration.

        Args:
            config: what :meth:`get_config` returned.

        Returns:
            The calibrator, fitted if the other was.

        Raises:
            LoadError: if the name is unknown or the arguments are not valid.
        """
        return Calibrator.registry.build(config)

    @abstractmethod
    def _check(self, predictive: Predictive) -> None:
        """Raise ``InputError`` for predictions of the wrong kind, with the calibrator to use for them."""

    @abstractmethod
    def _learn(self, predictive: Any, y: Tensor) -> None:
        """Set the learned arguments from checked predictions and targets."""

    @abstractmethod
    def _apply(self, predictive: Any) -> Predictive:
        """Return the corrected predictions."""

    def _check_rows(self, rows: int) -> None:
        if rows < self.min_rows:
            raise InputError(f"{self._name} needs at least {self.min_rows} held-out rows, got {rows}.")

    def _learned(self, value: T | None) -> T:
        """Return ``value``; raise ``InputError`` if ``fit`` has not set it."""
        if value is None:
            raise InputError(f"this {self._name} is not fitted: call fit(predictive, y) with held-out rows first.")
        return value

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.get_config().items() if name != "name"}
        return f"{self._name}({', '.join(f'{name}={_short(value)}' for name, value in shown.items())})"


def check_classes(predictive: Predictive, calibrator: str) -> None:
    """Raise ``InputError`` unless the predictions are of classes."""
    if not isinstance(predictive, ClassPredictive):
        raise InputError(
            f"{calibrator} is for classes, got {_describe(predictive)}: "
            "use VarianceScaling, QuantileRecalibration or SplitConformal."
        )


def check_real(predictive: Predictive, calibrator: str) -> RealPredictive:
    """Raise ``InputError`` unless the predictions are of real or count-valued targets and not yet calibrated."""
    if isinstance(predictive, Predictive) and predictive.adjustment is not None:
        raise InputError(
            f"{calibrator} is for uncalibrated predictions, got {_describe(predictive)}: "
            "calibrate the uncorrected prediction (its .base)."
        )
    if not isinstance(predictive, RealPredictive):
        hint = ": use TemperatureScaling" if isinstance(predictive, ClassPredictive) else ""
        raise InputError(f"{calibrator} is for real targets, got {_describe(predictive)}{hint}.")
    return predictive


def check_continuous(predictive: Predictive, calibrator: str) -> RealPredictive:
    """Raise ``InputError`` unless the predictions are of real targets."""
    real = check_real(predictive, calibrator)
    if real.components.discrete:
        raise InputError(f"{calibrator} is for real targets, got counts ({real.components.name}): use SplitConformal.")
    return real


def check_one_output(predictive: RealPredictive, calibrator: str) -> None:
    """Raise ``InputError`` unless there is one output per row."""
    shape = predictive.components.target_shape
    if shape.numel() != shape[0]:
        raise InputError(
            f"{calibrator} is for one output per row, [B] or [B, 1], got {list(shape)}: calibrate each alone."
        )


def _describe(predictive: object) -> str:
    if isinstance(predictive, Predictive):
        return f"a {type(predictive).__name__} of {predictive.components.name} targets"
    return f"a {type(predictive).__name__}, not a Predictive (as returned by model.predict)"


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{len(value)} numbers]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
