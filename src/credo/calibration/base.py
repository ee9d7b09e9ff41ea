"""The contract of a calibrator: it learns from held-out rows, and corrects new predictions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from credo.errors import InputError, LoadError, unknown_name
from credo.predictive import Predictive
from credo.predictive.classes import ClassPredictive
from credo.predictive.components import listed
from credo.predictive.real import RealPredictive

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


class Calibrator(ABC):
    """What makes predictions say no more than they can keep.

    ``fit`` compares predictions with what came true, ``calibrator(predictive)`` corrects new ones. What ``fit`` learns
    are the constructor's arguments: ``get_config()`` holds them in a form JSON can hold, ``from_config`` reads it.

    A calibrator must be fitted to rows the model has *not* been trained on. The model has moved towards its training
    targets, so that its errors there are smaller than they will be, and a calibrator that sees these makes an
    overconfident model more so. Nor may the rows be those a result is reported on.
    """

    registry: ClassVar[dict[str, type[Calibrator]]] = {}
    least_rows: ClassVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.isabstract(cls):
            Calibrator.registry[cls.__name__] = cls

    def fit(self, predictive: Predictive, y: Tensor) -> Self:
        """Learn from the predictions for held-out rows and their targets.

        Args:
            predictive: the predictions for B rows that were not used in training, at least ``least_rows``.
            y: the targets of these rows, of the shape and dtype that ``predictive.log_prob`` takes.
        """
        self._check(predictive)
        predictive.components.check(y)
        self._check_rows(len(y))
        if not bool(predictive.draws.isfinite().all()):
            raise InputError("the predictive holds values that are NaN or infinite: no calibration can mend those.")
        with torch.no_grad():
            self._learn(predictive, y.to(predictive.draws.device))
        return self

    def __call__(self, predictive: Predictive) -> Predictive:
        """The predictions, corrected; the rows may be any."""
        self._check(predictive)
        return self._apply(predictive)

    @abstractmethod
    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``, JSON-able; an argument that is not learned yet is ``None``."""

    @staticmethod
    def from_config(config: Mapping[str, object]) -> Calibrator:
        """The calibrator that ``get_config()`` describes, fitted if that one was."""
        if not isinstance(config, Mapping) or "name" not in config:
            raise LoadError(f"a calibrator's config is a mapping with a 'name', got {config!r:.200}.")
        name = str(config["name"])
        if name not in Calibrator.registry:
            raise LoadError(str(unknown_name("calibrator", name, Calibrator.registry)))
        try:
            return Calibrator.registry[name](**{key: value for key, value in config.items() if key != "name"})
        except (TypeError, ValueError) as error:
            raise LoadError(f"the config of calibrator {name!r} does not fit: {error}") from error

    @abstractmethod
    def _check(self, predictive: Predictive) -> None:
        """Raise ``InputError`` for predictions of the wrong kind, and say which calibrator is for them."""

    @abstractmethod
    def _learn(self, predictive: Any, y: Tensor) -> None:
        """Set the learned arguments from predictions and targets that fit."""

    @abstractmethod
    def _apply(self, predictive: Any) -> Predictive:
        """The corrected predictions."""

    def _check_rows(self, rows: int) -> None:
        if rows < self.least_rows:
            raise InputError(f"{self._name} needs {self.least_rows} held-out rows or more to learn from, got {rows}.")

    def _learned(self, value: T | None) -> T:
        """``value``, which ``fit`` must have set."""
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
    """Raise ``InputError`` for predictions that are not of classes."""
    if not isinstance(predictive, ClassPredictive):
        raise InputError(
            f"{calibrator} is for classes, got {_described(predictive)}: "
            "use VarianceScaling, QuantileRecalibration or SplitConformal."
        )


def check_real(predictive: Predictive, calibrator: str) -> RealPredictive:
    """Raise ``InputError`` for predictions that are calibrated already, or not of real or count-valued targets."""
    if isinstance(predictive, Predictive) and predictive.adjustment is not None:
        raise InputError(
            f"{calibrator} is for the model's own predictions, got {_described(predictive)}: "
            "calibrate the predictive it was made from (its .base)."
        )
    if not isinstance(predictive, RealPredictive):
        hint = ": use TemperatureScaling" if isinstance(predictive, ClassPredictive) else ""
        raise InputError(f"{calibrator} is for real targets, got {_described(predictive)}{hint}.")
    return predictive


def check_continuous(predictive: Predictive, calibrator: str) -> RealPredictive:
    """Raise ``InputError`` for predictions that are not of real targets."""
    real = check_real(predictive, calibrator)
    if real.components.discrete:
        raise InputError(f"{calibrator} is for real targets, got counts ({real.components.name}): use SplitConformal.")
    return real


def check_one_output(predictive: RealPredictive, calibrator: str) -> None:
    """Raise ``InputError`` for predictions of several outputs per row."""
    shape = predictive.components.target_shape
    if shape.numel() != shape[0]:
        raise InputError(
            f"{calibrator} is for one output per row, [B] or [B, 1], got {listed(shape)}: calibrate each output alone."
        )


def _described(predictive: object) -> str:
    if isinstance(predictive, Predictive):
        return f"a {type(predictive).__name__} of {predictive.components.name} targets"
    return f"a {type(predictive).__name__}, no Predictive (what model.predict returns)"


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{len(value)} numbers]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
