"""Hyperparameters and data as float64 tensors, or a sentence that says why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from credo.errors import InputError

Numbers: TypeAlias = Tensor | ArrayLike


def numbers(**values: Numbers) -> tuple[Tensor, ...]:
    """The values as finite float64 tensors on one device, that of the first tensor among them."""
    device = next((value.device for value in values.values() if isinstance(value, Tensor)), None)
    tensors = {name: _float64(name, value, device) for name, value in values.items()}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise InputError(f"{name} must be finite, got {tensor.tolist()}")
    return tuple(tensors.values())


def together(**values: Tensor) -> tuple[Tensor, ...]:
    """The values in one shape."""
    try:
        return tuple(torch.broadcast_tensors(*values.values()))
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in values.items())
        raise InputError(f"the hyperparameters must have shapes that go together, got {shapes}") from error


def require_positive(**values: Tensor) -> None:
    """Raise ``InputError`` for hyperparameters that are not above 0."""
    for name, value in values.items():
        if not bool((value > 0.0).all()):
            raise InputError(f"{name} must be positive, got {value.tolist()}")


def require_whole(**values: int) -> None:
    """Raise ``InputError`` for what is not a integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(f"{name} must be a integer of at least 1, got {value!r}")


def require_vector(name: str, vector: Tensor) -> None:
    """Raise ``InputError`` for a mean that is not ``[D]``."""
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{name} must be a vector [D], got shape {list(vector.shape)}")


def require_scalar(**values: Tensor) -> None:
    """Raise ``InputError`` for hyperparameters that are more than one number."""
    for name, value in values.items():
        if value.ndim:
            raise InputError(f"{name} must be one number, got shape {list(value.shape)}")


def require_concentration(concentration: Tensor) -> None:
    """Raise ``InputError`` for what is not a Dirichlet's α, positive and ``[..., K]``."""
    if concentration.ndim == 0 or concentration.shape[-1] == 0:
        raise InputError(f"concentration must have one number a class, shape [..., K], got {concentration.tolist()}")
    require_positive(concentration=concentration)


def require_covariance(size: int, **values: Tensor) -> None:
    """Raise ``InputError`` for matrices that are not ``[size, size]``, symmetric and positive definite."""
    for name, value in values.items():
        if value.shape != (size, size):
            raise InputError(f"{name} must have shape [{size}, {size}], got {list(value.shape)}")
        if not torch.allclose(value, value.mT) or bool(torch.linalg.cholesky_ex(value).info):
            raise InputError(f"{name} must be symmetric and positive definite, got {value.tolist()}")


def observations(data: Numbers, row: Sequence[int] | None = None, device: torch.device | None = None) -> Tensor:
    """Data as a finite float64 tensor ``[N, *row]``, or with rows of any shape; N may be 0."""
    values = _float64("data", data, device)
    if values.ndim == 0:
        raise InputError(f"data must hold one observation a row, got {values.item():g}: put it in a list")
    if row is not None and len(values) == 0:
        return values.new_empty((0, *row))
    if row is not None and list(values.shape[1:]) != list(row):
        expected = ", ".join(["N", *map(str, row)])
        raise InputError(f"data must hold one observation a row, shape [{expected}], got {list(values.shape)}")
    if not bool(values.isfinite().all()):
        raise InputError("data must be finite, got NaN or infinity: drop those rows, or fill them in")
    return values


def whole_observations(
    data: Numbers,
    row: Sequence[int] | None = None,
    device: torch.device | None = None,
    highest: int | None = None,
) -> Tensor:
    """Data as above, of integers from 0 to ``highest``."""
    values = observations(data, row, device)
    wrong = (values < 0) | (values != values.round())
    if highest is not None:
        wrong |= values > highest
    if bool(wrong.any()):
        bounds = "of at least 0" if highest is None else f"from 0 to {highest}"
        raise InputError(f"data must be integers {bounds}, got {values[wrong][0].item():g}")
    return values


def require_rows(data: Tensor) -> Tensor:
    """Raise ``InputError`` for data without rows, from which nothing can be estimated."""
    if len(data) == 0:
        raise InputError("data must have at least one row for an estimate by maximum likelihood, got none")
    return data


def _float64(name: str, value: Numbers, device: torch.device | None) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, torch.float64)
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers in the form of a tensor, an array or a list: {error}") from error
    return torch.tensor(array, device=device)
