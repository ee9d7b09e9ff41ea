"""The statistics that principal components are computed from: mean and scatter, in one pass over a table."""

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

MIN_NOISE = 1e-12
"""The smallest noise, relative to the mean variance, that is distinguishable from rounding in a float64 scatter."""


@dataclass(frozen=True, eq=False)
class ScatterStatistics:
    """The number of rows, their mean, and their scatter about it.

    Attributes:
        count: N.
        mean: x̄, ``[D]``; NaN where a value is missing.
        scatter: Σ (x − x̄)(x − x̄)ᵀ, ``[D, D]``.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def from_rows(cls, rows: Rows, n_columns: int | None = None) -> ScatterStatistics:
        """Read all rows of X once.

        Every block is centered at its own mean, so that neither a large offset nor a drift reduces the precision.

        Args:
            rows: the rows to read.
            n_columns: D, if known: then blocks of twice the usual size reduce the overhead per block.
        """
        return rows.reduce(lambda part: cls._from_part(part, n_columns))

    @classmethod
    def _from_part(cls, rows: Rows, n_columns: int | None) -> ScatterStatistics:
        counts: list[int] = []
        means: list[Tensor] = []
        within: Tensor | float = 0.0
        # the blocks stay in cache, where more threads of torch do not help
        with one_thread(rows.device.type == "cpu"):
            for block in rows.blocks(None if n_columns is None else max(n_columns // 2, 1)):
                counts.append(len(block[0]))
                means.append(block[0].mean(0))
                within = within + _gram(block[0] - means[-1])
        return cls._pool(counts, torch.stack(means), torch.as_tensor(within))

    def __add__(self, other: ScatterStatistics) -> ScatterStatistics:
        """The statistics of both sets of rows together."""
        counts, means = [self.count, other.count], torch.stack([self.mean, other.mean])
        return self._pool(counts, means, self.scatter + other.scatter)

    @classmethod
    def _pool(cls, counts: Sequence[int], means: Tensor, within: Tensor) -> ScatterStatistics:
        """From the counts, means ``[G, D]`` and summed scatters of groups of rows: within plus between groups."""
        count = sum(counts)
        weights = torch.tensor(counts, dtype=means.dtype, device=means.device)
        mean = weights @ means / count
        deviations = means - mean
        return cls(count, mean, within + (deviations.mT * weights) @ deviations)

    @property
    def n_columns(self) -> int:
        """D."""
        return len(self.mean)

    @property
    def is_finite(self) -> bool:
        """Whether no value is missing or infinite."""
        return bool(self.mean.isfinite().all())

    @property
    def has_missing(self) -> bool:
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
        return float(self.scatter.trace()) / (self.count * self.n_columns)

    def to(self, device: torch.device) -> ScatterStatistics:
        """The same on ``device``."""
        return ScatterStatistics(self.count, self.mean.to(device), self.scatter.to(device))

    def check_variance(self) -> None:
        """Raise InputError if the table has no variance, or one that overflows."""
        if self.count < 2:
            raise InputError(f"X must have at least 2 rows, got n_samples = {self.count}")
        if not bool(torch.isfinite(self.scatter).all()):
            raise InputError("the values of X are too large to be squared: rescale its columns")
        # a constant column leaves no more than the rounding of its own mean
        rounding = self.count * torch.finfo(self.mean.dtype).eps * self.mean
        if bool((self.scatter.diagonal() <= self.count * rounding.square()).all()):
            raise InputError("X has no variance: all rows are equal, so there are no principal directions")

    def principal_axes(self, divisor: int) -> tuple[Tensor, Tensor]:
        """The eigenvalues of scatter / divisor ``[D]``, largest first, and its eigenvectors as rows ``[D, D]``."""
        self.check_variance()
        values, vectors = torch.linalg.eigh(self.scatter / divisor)
        return values.flip(0).clamp(min=0.0), fix_signs(vectors.mT.flip(0))


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """The number of values that are not missing in each column, their mean and their variance, ``[D]`` each."""

    counts: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def from_rows(cls, rows: Rows) -> ColumnStatistics:
        """One pass; raises InputError if a column has no value or nothing varies."""
        total: ColumnStatistics | None = None
        for block in rows.blocks():
            part = cls._from_block(block[0])
            total = part if total is None else total + part
        assert total is not None
        empty = torch.nonzero(total.counts == 0).flatten().tolist()
        if empty:
            raise InputError(f"X has no value in column {empty[0]}, counted from 0: drop columns that are all missing")
        if not bool(total.variance.any()):
            raise InputError("X has no variance: every column is constant, so there are no principal directions")
        return total

    @classmethod
    def _from_block(cls, block: Tensor) -> ColumnStatistics:
        """Of ``block [B, D]``; the mean and the variance of a column without a value are 0."""
        counts = (~block.isnan()).sum(0)
        mean = block.nanmean(0).nan_to_num(nan=0.0)
        squares = (block - mean).square().nansum(0)
        return cls(counts, mean, squares / counts.clamp(min=1))

    def __add__(self, other: ColumnStatistics) -> ColumnStatistics:
        """The statistics of both sets of rows together."""
        counts = self.counts + other.counts
        weight = other.counts / counts.clamp(min=1)
        difference = other.mean - self.mean
        between = weight * (1.0 - weight) * difference.square()
        variance = self.variance + weight * (other.variance - self.variance) + between
        return ColumnStatistics(counts, self.mean + weight * difference, variance)


def check_noise(noise: float, variance: float, n_components: int) -> None:
    """Raise InputError if ``noise`` is not larger than rounding, relative to the mean ``variance`` of the columns."""
    if not noise > MIN_NOISE * variance:
        raise InputError(
            f"with n_components={n_components} no variance is left for the noise, so that x has no density: choose "
            "fewer components; columns or rows that repeat others reduce the number of dimensions of a table"
        )


def fix_signs(axes: Tensor) -> Tensor:
    """``axes [K, D]`` with the largest entry of each row positive, as in scikit-learn."""
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0.0, -axes, axes)


def _gram(columns: Tensor) -> Tensor:
    """AᵀA; numpy uses its symmetry and takes half the time of torch."""
    if columns.device.type != "cpu":
        return columns.mT @ columns
    array = columns.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # check_variance raises instead
        return torch.from_numpy(array.T @ array)
