"""Checks of the arguments of metrics: a prediction of the right kind, and targets that match it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from credo.errors import InputError
from credo.predictive import Predictive
from credo.predictive.components import ClassComponents, PredictiveComponents, RealComponents

Values: TypeAlias = Tensor | ArrayLike


def as_tensor(values: Values, name: str) -> Tensor:
    """Return numbers of any kind as a tensor without a graph; arrays are copied."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, Predictive):
        raise InputError(f"{name} must hold one number per row, got a prediction: pass one of its quantities.")
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{name} must hold numbers, got {type(values).__name__} of dtype {array.dtype}; for labels pass "
            "their positions, model.classes_.searchsorted(y)."
        )
    if array.dtype.kind == "u":  # torch supports few operations on unsigned types
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array, order="C"))


def check_real_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """Return ``y`` as float64 on the prediction's device; raise ``InputError`` unless it matches real targets."""
    return _check_targets(y, check_real(p, metric)).double()


def check_class_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """Return ``y`` on the prediction's device; raise ``InputError`` unless it matches class-valued targets."""
    components = _components(p, metric)
    if not isinstance(components, ClassComponents):
        raise InputError(f"{metric} is for class-valued targets, got a prediction of numbers: {p}.")
    return _check_targets(y, components)


def check_targets(p: Predictive, y: Values, metric: str) -> Tensor:
    """Return ``y`` on the prediction's device, real targets as float64; raise ``InputError`` unless it matches."""
    components = _components(p, metric)
    targets = _check_targets(y, components)
    return targets.double() if isinstance(components, RealComponents) else targets


def check_real(p: Predictive, metric: str) -> RealComponents:
    """Return the components of a prediction; raise ``InputError`` unless its targets are real or counts."""
    components = _components(p, metric)
    if not isinstance(components, RealComponents):
        raise InputError(f"{metric} is for real or count-valued targets, got a prediction of classes: {p}.")
    return components


def check_vector(values: Values, name: str) -> Tensor:
    """Return one number per row as float64 on the CPU, ``[N]``; raise ``InputError`` if empty or NaN."""
    vector = as_tensor(values, name).double().cpu()
    if vector.ndim != 1:
        raise InputError(
            f"{name} must hold one number per row, [N], got shape {list(vector.shape)}: flatten() it for pixels."
        )
    if not len(vector):
        raise InputError(f"{name} is empty: at least one row is needed.")
    missing = int(vector.isnan().sum())
    if missing:
        raise InputError(f"{name} holds {missing} value(s) that are NaN, which have no rank: leave those rows out.")
    return vector


def outputs(values: Tensor) -> Tensor:
    """Return ``values [B, ...]`` as one vector per row, ``[B, D]``, float64 on the CPU."""
    return values.detach().double().cpu().reshape(len(values), -1)


def mean_outputs(values: Tensor) -> Tensor:
    """Return ``values [B, ...]`` averaged over the outputs of each row, ``[B]``, float64 on the CPU."""
    return outputs(values).mean(1)


def _components(p: Predictive, metric: str) -> PredictiveComponents:
    if not isinstance(p, Predictive):
        raise InputError(f"{metric} needs a Predictive, as returned by model.predict(x), got {type(p).__name__}.")
    if not len(p):
        raise InputError(f"{metric} is undefined for an empty prediction: predict at least one row.")
    return p.components


def _check_targets(y: Values, components: PredictiveComponents) -> Tensor:
    targets = as_tensor(y, "y").to(components.parameter.device)
    components.check(targets)
    return targets
