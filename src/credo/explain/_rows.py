"""A fitted model and the rows it is explained on, behind one interface for estimators and networks."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_integer
from credo.errors import InputError, unknown_name
from credo.methods.base import Method
from credo.predictive import ClassPredictive, Predictive
from credo.predictive.calibrated import CalibratedPredictive
from credo.seeding import check_seed, derive
from credo.tabular.base import TableEstimator
from credo.tabular.columns import as_frame
from credo.tabular.number_format import PERCENT, NumberFormat
from credo.tabular.parsing import parse_columns, to_labels
from credo.tabular.predictions import true_values
from credo.tabular.targets import ClassTarget, RegressionTarget, known_rows

_DEFAULT_SAMPLES = 100  # draws of a network; an estimator has its own number
_BATCH_ROWS = 2000
_CHOICE, _DRAWS = range(2)  # random streams


class ModelRows:
    """Rows of a table and the model that predicts them, always by the same draws.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`; or, for arrays, a :class:`credo.Method`
            with one output per row, or an estimator with ``predict_dist``.
        X: rows as the model takes them, ``[N, D]``.
        y: their targets ``[N]``; rows without one are left out. ``None``: none are needed.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows, chosen at random; ``None``: all.
        seed: of the choice of rows, and of the draws of a network.

    Attributes:
        frame: the rows, numbered from 0.
        names: the columns that the model uses.

    Raises:
        InputError: if the model cannot be explained, the rows do not match it, or fewer than two are left.
    """

    def __init__(
        self, model: Any, X: Any, y: Any = None, *, samples: int | None, max_rows: int | None, seed: int
    ) -> None:
        self._seed = check_seed(seed)
        samples = None if samples is None else check_integer(samples, "samples", minimum=0)
        max_rows = None if max_rows is None else check_integer(max_rows, "max_rows", minimum=2)
        self._model, self._samples = _with_samples(_check_model(model), samples)
        self.frame = _to_frame(self._model, X)
        targets = None if y is None else _to_series(y)
        if targets is not None:
            written = isinstance(self._model, TableEstimator) and not _are_numbers(targets)
            known = known_rows(targets, self._model.target_ if written else None)
            if len(known) != len(self.frame):
                raise InputError(f"X and y must have the same number of rows, got {len(self.frame)} and {len(known)}")
            self.frame, targets = self.frame[known], targets[known]
        self._complete = self.frame
        if len(self.frame) < 2:
            raise InputError(f"X must have at least 2 rows with a known target, got {len(self.frame)}")
        if max_rows is not None and len(self.frame) > max_rows:
            chosen = np.random.default_rng(derive(self._seed, _CHOICE)).permutation(len(self.frame))[:max_rows]
            self.frame = self.frame.iloc[np.sort(chosen)]
            targets = None if targets is None else targets.iloc[np.sort(chosen)]
        self.frame = self.frame.reset_index(drop=True)
        self._targets = targets
        self.names = self._used_columns()

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def total(self) -> int:
        """The number of rows of ``X``, before some were chosen."""
        return len(self._complete)

    def predict(self, frames: Iterable[pd.DataFrame]) -> Iterator[Predictive]:
        """The predictions for one table after the other, with the same draws for all.

        Warnings about the tables are issued once, after the last of them.
        """
        sizes: deque[list[int]] = deque()

        def tables() -> Iterator[Any]:
            for batch in _batches(frames):
                sizes.append([len(frame) for frame in batch])
                yield self._as_input(pd.concat(batch, ignore_index=True))

        different: dict[str, warnings.WarningMessage] = {}
        predictions = self._predictions(tables())
        while True:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                prediction = next(predictions, None)
            different |= {str(warning.message): warning for warning in caught}
            if prediction is None:
                break
            prediction, start = _one_output(prediction.cpu()), 0
            for size in sizes.popleft():
                yield prediction[start : start + size]
                start += size
        for warning in different.values():
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    @cached_property
    def prediction(self) -> Predictive:
        """The prediction for the rows as they are."""
        (prediction,) = self.predict([self.frame])
        return prediction

    @cached_property
    def y(self) -> Tensor:
        """The targets ``[N]``: numbers, or positions among the classes."""
        assert self._targets is not None
        if isinstance(self._model, TableEstimator):
            if isinstance(self._model.target_, RegressionTarget) and _are_numbers(self._targets):
                return torch.tensor(self._targets.to_numpy(), dtype=torch.float64)
            return true_values(self._model.target_, self._targets)
        values = self._targets.to_numpy()
        if hasattr(self._model, "classes_"):
            values = np.searchsorted(self._model.classes_, values)
        y = torch.tensor(values)
        return y if isinstance(self.prediction, ClassPredictive) else y.to(self.prediction.draws.dtype)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for numbers."""
        if isinstance(self._model, TableEstimator):
            target = self._model.target_
            return tuple(map(str, target.classes)) if isinstance(target, ClassTarget) else ()
        if not isinstance(self.prediction, ClassPredictive):
            return ()
        known = getattr(self._model, "classes_", None)
        draws = self.prediction.draws
        count = draws.shape[2] if draws.ndim == 3 else 2
        return tuple(map(str, range(count) if known is None else known))

    @property
    def target(self) -> str:
        """The name of the target; "target" if it has none."""
        name = self._model.target_.name if isinstance(self._model, TableEstimator) else ""
        return name or "target"

    def kind(self, name: str) -> str:
        """The kind of a column: ``"number"``, ``"date"`` or ``"category"``."""
        if not isinstance(self._model, TableEstimator):
            return "number"
        columns = self._model.columns_
        if name in columns.cycles.dates:
            return "date"
        return "number" if name in columns.scaling.names else "category"

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The values of columns of numbers or dates, in days, ``[N, len(names)]``; NaN where missing or infinite."""
        of_kind = {kind: [n for n in names if self.kind(n) == kind] for kind in ("number", "date")}
        formats = self._model.columns_.formats if isinstance(self._model, TableEstimator) else {}
        parsed = parse_columns(self.frame, of_kind["number"], of_kind["date"], formats)
        values = parsed.values[:, [parsed.names.index(name) for name in names]]
        return np.where(np.isfinite(values), values, np.nan)

    def labels(self, name: str) -> list[str | None]:
        """The labels of a column of categories, ``None`` where missing."""
        return to_labels(self.frame[name])

    def outside(self, frame: pd.DataFrame, name: str) -> NDArray[np.bool]:
        """Whether the value of a column is outside its training range, ``[N]``; all false where that is not known."""
        if not isinstance(self._model, TableEstimator) or self.kind(name) == "category":
            return np.zeros(len(frame), dtype=bool)
        flags = self._model.outside_range(self._as_input(frame))
        return np.asarray(flags[name], dtype=bool)

    def pick(self, positions: Sequence[int]) -> pd.DataFrame:
        """Rows of ``X`` by position, also those that ``max_rows`` left out, with their labels as index."""
        n = len(self._complete)
        for position in positions:
            if not -n <= check_integer(position, "individual") < n:
                raise InputError(f"individual must hold positions of the {n} rows, got {position}")
        return self._complete.iloc[list(positions)]

    def check_names(self, names: Iterable[str]) -> list[str]:
        """The names as a list, if all of them are columns that the model uses."""
        checked = list(names)
        for name in checked:
            if name not in self.frame:
                raise unknown_name("column", name, self.frame.columns)
            if name not in self.names:
                raise InputError(f"column {name!r} is left out by the model, so that it has no effect: choose another")
        return checked

    def _predictions(self, inputs: Iterable[Any]) -> Iterator[Predictive]:
        if isinstance(self._model, TableEstimator):
            return self._model.stream(inputs)
        if isinstance(self._model, Method):
            predictor = self._model._predictor(self._samples, derive(self._seed, _DRAWS))
            return (predictor(x) for x in inputs)
        return (self._model.predict_dist(x) for x in inputs)

    def _as_input(self, frame: pd.DataFrame) -> Any:
        """A table as the model takes it."""
        if isinstance(self._model, Method):
            return torch.tensor(np.array(frame, np.float64), dtype=self._model.dtype)
        if isinstance(self._model, TableEstimator) and self._model.named_columns_:
            return self._as_written(frame, self._model.columns_.formats)
        return np.array(frame)  # a copy that can be written to

    def _as_written(self, frame: pd.DataFrame, formats: Mapping[str, object]) -> pd.DataFrame:
        """The table with numbers of a grid written as the column's own cells, where those are not plain numbers."""
        texts = {
            name: [form.write(cell) if isinstance(cell, float) and np.isfinite(cell) else cell for cell in frame[name]]
            for name, form in formats.items()
            if name in frame and isinstance(form, NumberFormat) and (form.unit == PERCENT or form.decimal != ".")
        }
        return frame.assign(**texts) if texts else frame

    def _used_columns(self) -> tuple[str, ...]:
        if not isinstance(self._model, TableEstimator):
            return tuple(self.frame.columns)
        columns = self._model.columns_
        used = {*columns.scaling.names, *(category.name for category in columns.categories)}
        return tuple(name for name in columns.names if name in used and name in self.frame)


def _batches(frames: Iterable[pd.DataFrame]) -> Iterator[list[pd.DataFrame]]:
    """Lists of tables that are predicted in one call, because a call for few rows costs as much as for many."""
    batch: list[pd.DataFrame] = []
    for frame in frames:
        if batch and sum(map(len, batch)) + len(frame) > _BATCH_ROWS:
            yield batch
            batch = []
        batch.append(frame)
    if batch:
        yield batch


def _check_model(model: Any) -> Any:
    if isinstance(model, type) or not (isinstance(model, Method) or hasattr(model, "predict_dist")):
        raise InputError(
            "model must be a fitted credo.Regressor, credo.Classifier, method of a network or estimator with "
            f"predict_dist, got {model!r}"
        )
    return model


def _with_samples(model: Any, samples: int | None) -> tuple[Any, int]:
    """The model, or a copy that predicts with another number of draws, and this number."""
    if isinstance(model, TableEstimator):
        return (model if samples is None else copy.copy(model).set_params(samples=samples)), samples or model.samples
    return model, _DEFAULT_SAMPLES if samples is None else samples


def _to_frame(model: Any, X: Any) -> pd.DataFrame:
    X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    if not isinstance(model, TableEstimator):
        return as_frame(X)
    if isinstance(X, pd.DataFrame) and not model.named_columns_:
        X = X.to_numpy()
    return as_frame(X, model.columns_.names, type(model).__name__)


def _are_numbers(targets: pd.Series) -> bool:
    """Whether targets are numbers already, in the units of the predictions, and not text as in a file."""
    return bool(pd.api.types.is_numeric_dtype(targets.dtype))


def _to_series(y: Any) -> pd.Series:
    y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    if isinstance(y, pd.DataFrame):
        y = y.squeeze(axis=1)
    values = y if isinstance(y, pd.Series | list) else np.asarray(y)
    if not isinstance(values, pd.Series) and np.ndim(values) == 2 and np.shape(values)[1] == 1:
        values = np.asarray(values)[:, 0]
    return pd.Series(values)


def _one_output(prediction: Predictive) -> Predictive:
    """The prediction with targets ``[N]``, as the mixture over its draws, before conformal or quantile corrections."""
    if isinstance(prediction, CalibratedPredictive):
        prediction = prediction.base
    shape = prediction.components.target_shape
    if shape[1:] == (1,) and prediction.components.parameter.shape[1:] == shape:
        return replace(prediction, components=prediction.components.map(lambda t: t.squeeze(-1)))
    if len(shape) != 1:
        raise InputError(
            f"the model must predict one target per row to be explained, got targets of shape {list(shape)}"
        )
    return prediction
