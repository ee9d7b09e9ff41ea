"""What every metric asks of its arguments: a prediction of the right kind, and targets that fit it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from credo.errors import InputError
from credo.predictive import Predictive
from credo.predictive.components import ClassComponents, Components, RealComponents, listed

Values: TypeAlias = Tensor | ArrayLike


def as_tensor(values: Values, name: str) -> Tensor:
    """Numbers of any kind as a tensor without a graph; arrays are copied."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold numbers, got {type(values).__name__} of dtype {array.dtype}.")
    if array.dtype.kind == "u":  # torch compares and subtracts few of the unsigned types
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array, order="C"))


def real_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """``y`` as float64 on the prediction's device, once it is sure that it holds numbers that fit."""
    return _fitting(p, y, require_real(p, metric))


def class_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """``y`` on the prediction's device, once it is sure that it holds classes that fit."""
    return _fitting(p, y, require_classes(p, metric))


def any_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """``y`` on the prediction's device, once it is sure that it fits."""
    return _fitting(p, y, _components(p, metric))


def require_real(p: Predictive, metric: str) -> RealComponents:
    """The components of a prediction of real or count-valued targets."""
    components = _components(p, metric)
    if not isinstance(components, RealComponents):
        raise InputError(f"{metric} is for real or count-valued targets, got a prediction of classes: {p}.")
    return components


def require_classes(p: Predictive, metric: str) -> ClassComponents:
    """The components of a prediction of class-valued targets."""
    components = _components(p, metric)
    if not isinstance(components, ClassComponents):
        raise InputError(f"{metric} is for class-valued targets, got a prediction of numbers: {p}.")
    return components


def score_vector(values: Values, name: str) -> Tensor:
    """One number a row as float64 on the CPU, ``[N]``: not empty, none missing."""
    vector = as_tensor(values, name).double().cpu()
    if vector.ndim != 1:
        raise InputError(f"{name} must hold one number a row, [N], got shape {listed(vector.shape)}.")
    if not len(vector):
        raise InputError(f"{name} is empty: at least one row is needed.")
    missing = int(vector.isnan().sum())
    if missing:
        raise InputError(f"{name} holds {missing} value(s) that are NaN, which have no rank: leave those rows out.")
    return vector


def outputs(values: Tensor) -> Tensor:
    """``values [B, ...]`` as one vector a row, ``[B, D]``, float64 on the CPU."""
    return values.detach().double().cpu().reshape(len(values), -1)


def by_row(values: Tensor) -> Tensor:
    """``values [B, ...]`` averaged over the outputs of each row, ``[B]``, float64 on the CPU."""
    return outputs(values).mean(1)


def _components(p: Predictive, metric: str) -> Components:
    if not isinstance(p, Predictive):
        raise InputError(f"{metric} needs a Predictive, as model.predict(x) gives it, got {type(p).__name__}.")
    if not len(p):
        raise InputError(f"{metric} of no rows is undefined, and the prediction is empty: predict at least one row.")
    return p.components


def _fitting(p: Predictive, y: Values, components: Components) -> Tensor:
    targets = as_tensor(y, "y").to(components.parameter.device)
    components.check(targets)
    return targets.double() if isinstance(components, RealComponents) else targets
