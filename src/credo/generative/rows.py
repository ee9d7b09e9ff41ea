"""What models of data ask of rows: weights that fit, values that make sense, and pictures beside pictures."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from credo.errors import InputError

_PAIRS_IN_A_GRID = 32


def row_weights(x: Tensor, sample_weight: Tensor | None) -> Tensor:
    """``sample_weight``, or ones, one number a datum, ``[B]``."""
    if sample_weight is None:
        return torch.ones(len(x), dtype=x.dtype, device=x.device)
    if sample_weight.shape != (len(x),):
        raise InputError(f"sample_weight must have shape [{len(x)}], got {list(sample_weight.shape)}")
    return sample_weight


def check_finite(x: Tensor) -> None:
    """Raise ``InputError`` for data that hold NaN or infinite values."""
    if not math.isfinite(float(x.min())) or not math.isfinite(float(x.max())):
        raise InputError("data hold NaN or infinite values; remove or impute them")


def check_shares(x: Tensor, what: str, instead: str) -> None:
    """Raise ``InputError`` for data outside of 0 to 1, which ``what`` needs; ``instead`` is the other way out."""
    low, high = float(x.min()), float(x.max())
    if not 0.0 <= low <= high <= 1.0:
        raise InputError(
            f"{what} needs data between 0 and 1, got values from {low:.4g} to {high:.4g}: divide 8-bit images by 255, "
            f"or choose {instead}"
        )


def side_by_side(x: Tensor, reconstruct: Callable[[Tensor], Tensor]) -> Tensor:
    """Every datum followed by its reconstruction, ``[2n, ...]``, for the first few that fill a grid."""
    shown = x[:_PAIRS_IN_A_GRID]
    return torch.stack([shown, reconstruct(shown)], 1).flatten(0, 1)
