"""The mean and scatter of a table, which is all that principal components want to know of it, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from credo._rows import Rows
from credo._threads import one_thread
from credo.errors import InputError

LEAST_NOISE = 1e-12
"""The least noise, as a share of the mean variance, that a scatter of float64 numbers tells from rounding."""


@dataclass(frozen=True, eq=False)
class Moments:
    """How many rows, their mean, and their scatter about it.

    Attributes:
        count: N.
        mean: x̄, ``[D]``; NaN where a value is missing.
        scatter: Σ (x − x̄)(x − x̄)ᵀ, ``[D, D]``.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, rows: Rows, width: int | None = None) -> Moments:
        """The moments of all rows of X, read once.

        Every block is centered at its own mean, so that neither a large offset nor a drift costs digits.

        Args:
            rows: to be read.
            width: D, where it is known before they are: then blocks of twice the usual size spread their own cost.
        """
        counts: list[int] = []
        means: list[Tensor] = []
        within: Tensor | float = 0.0
        # the blocks stay in cache, where threads of torch have nothing to gain
        with one_thread(rows.device.type == "cpu"):
            for block in rows.blocks(None if width is None else max(width // 2, 1)):
                counts.append(len(block[0]))
                means.append(block[0].mean(0))
                within = within + _gram(block[0] - means[-1])
        return cls._pooled(counts, torch.stack(means), torch.as_tensor(within))

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows together."""
        counts, means = [self.count, other.count], torch.stack([self.mean, other.mean])
        return Moments._pooled(counts, means, self.scatter + other.scatter)

    @classmethod
    def _pooled(cls, counts: Sequence[int], means: Tensor, within: Tensor) -> Moments:
        """Of groups of rows by their counts, their means ``[G, D]`` and their summed scatters: within plus between."""
        count = sum(counts)
        weights = torch.tensor(counts, dtype=means.dtype, device=means.device)
        mean = weights @ means / count
        apart = means - mean
        return cls(count, mean, within + (apart.mT * weights) @ apart)

    @property
    def size(self) -> int:
        """D."""
        return len(self.mean)

    @property
    def finite(self) -> bool:
        """Whether no value is missing or infinite."""
        return bool(self.mean.isfinite().all())

    @property
    def incomplete(self) -> bool:
        """Whether a value is missing."""
        return bool(self.mean.isnan().any())

    @cached_property
    def root(self) -> Tensor:
        """R with RᵀR the scatter, ``[D, D]``."""
        values, vectors = torch.linalg.eigh(self.scatter)
        root: Tensor = values.clamp(min=0.0).sqrt()[:, None] * vectors.mT
        return root

    @property
    def mean_variance(self) -> float:
        """The variance of a column (over N), averaged over the columns."""
        return float(self.scatter.trace()) / (self.count * self.size)

    def to(self, device: torch.device) -> Moments:
        """The same on ``device``."""
        return Moments(self.count, self.mean.to(device), self.scatter.to(device))

    def check_spread(self) -> None:
        """Raise ``InputError`` for a table without any spread, or with one too large for a number."""
        if self.count < 2:
            raise InputError(f"X must have 2 rows or more to vary at all, got n_samples = {self.count}")
        if not bool(torch.isfinite(self.scatter).all()):
            raise InputError("the values of X are too large to be squared: rescale its columns")
        # a constant leaves no more than the rounding of its own mean
        rounding = self.count * torch.finfo(self.mean.dtype).eps * self.mean
        if bool((self.scatter.diagonal() <= self.count * rounding.square()).all()):
            raise InputError("X has no variance: all its rows are the same, and there are no directions to find")


def check_noise(noise: float, variance: float, n_components: int) -> None:
    """Raise ``InputError`` for noise that is nothing but rounding beside the mean ``variance`` of the columns."""
    if not noise > LEAST_NOISE * variance:
        raise InputError(
            f"with n_components={n_components} no variance is left for the noise, so that x has no density: choose "
            "fewer components; columns or rows that repeat others leave a table with fewer dimensions than it seems to"
        )


def principal_axes(moments: Moments, divisor: int) -> tuple[Tensor, Tensor]:
    """The eigenvalues of scatter / divisor ``[D]``, largest first, and its eigenvectors as rows ``[D, D]``."""
    moments.check_spread()
    values, vectors = torch.linalg.eigh(moments.scatter / divisor)
    return values.flip(0).clamp(min=0.0), with_signs(vectors.mT.flip(0))


def with_signs(axes: Tensor) -> Tensor:
    """``axes [K, D]`` with the largest entry of each row positive, which is scikit-learn's choice too."""
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0.0, -axes, axes)


def _gram(columns: Tensor) -> Tensor:
    """AᵀA; numpy sees that it is symmetric and computes one half, in half the time of torch."""
    if columns.device.type != "cpu":
        return columns.mT @ columns
    array = columns.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # judged by check_spread, in a sentence
        return torch.from_numpy(array.T @ array)
