"""All that a Gaussian wants to know of data: how many, their mean, and their spread about it."""

from __future__ import annotations

from torch import Tensor


def mean_and_squares(data: Tensor) -> tuple[Tensor, Tensor]:
    """x̄ and Σ (x − x̄)², ``[...]`` each, of ``data [N, ...]``; both 0 without rows."""
    mean = data.sum(0) / max(len(data), 1)
    return mean, (data - mean).square().sum(0)


def mean_and_scatter(data: Tensor) -> tuple[Tensor, Tensor]:
    """x̄ ``[D]`` and Σ (x − x̄)(x − x̄)ᵀ ``[D, D]`` of ``data [N, D]``; both 0 without rows."""
    mean = data.sum(0) / max(len(data), 1)
    centered = data - mean
    return mean, centered.mT @ centered
