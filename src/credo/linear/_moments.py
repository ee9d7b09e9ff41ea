"""What a linear model keeps of a table: moments of features and target, summed over rows in any order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo._rows import Rows, rows_per_block
from credo._threads import one_thread
from credo.errors import InputError
from credo.linear.bases import Basis, checked_features

ROUNDING = torch.finfo(torch.float64).eps
_WIDE = 128


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """All that a Gaussian likelihood N(y | Φw, β⁻¹I) needs to know of a table.

    Attributes:
        count: N.
        gram: ΦᵀΦ, ``[M, M]``.
        cross: Φᵀy, ``[M]``.
        total: yᵀy.
    """

    count: int
    gram: Tensor
    cross: Tensor
    total: float

    def under(self, mean: Tensor, factor: Tensor | None) -> NormalEquations:
        """The same of u where w = m + Lu: features ΦL and targets y − Φm; L = I for ``None``."""
        cross = self.cross - self.gram @ mean
        total = max(self.total - float(mean @ (self.cross + cross)), 0.0)
        if factor is None:
            return NormalEquations(self.count, self.gram, cross, total)
        return NormalEquations(self.count, factor.mT @ self.gram @ factor, factor.mT @ cross, total)


@dataclass(frozen=True, eq=False)
class Moments:
    """N, the mean and the scatter of (φ, y), the scatter about the mean so that large offsets cost no digits.

    Attributes:
        count: N.
        mean: of each feature and, last, of the target, ``[M + 1]``.
        scatter: Σ_n (z_n − z̄)(z_n − z̄)ᵀ for z = (φ, y), ``[M + 1, M + 1]``.

    References:
        T. F. Chan, G. H. Golub, R. J. LeVeque. Algorithms for computing the sample variance. The American
        Statistician, 1983.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, rows: Rows, basis: Basis) -> Moments:
        """Of the features and targets of rows (X, y), in one pass."""
        moments: Moments | None = None
        for x, y in rows.blocks():
            width = basis.features(x[:1]).shape[1]
            size = rows_per_block(width, rows.device)
            # For narrow blocks, meeting after every operation costs the threads more than they gain.
            with one_thread(width < _WIDE):
                for part in zip(x.split(size), y.split(size), strict=True):
                    found = cls._of_block(basis, *part)
                    moments = found if moments is None else moments + found
        assert moments is not None
        return moments

    @classmethod
    def _of_block(cls, basis: Basis, x: Tensor, y: Tensor) -> Moments:
        joint = torch.cat((checked_features(basis, x), y[:, None]), dim=1)
        mean = joint.mean(0)
        joint -= mean
        return cls(len(joint), mean, joint.mT @ joint)

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows together."""
        if len(self.mean) != len(other.mean):
            raise InputError(
                f"the basis must give the same features for all rows, got {len(self.mean) - 1} for some and "
                f"{len(other.mean) - 1} for others"
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        between = (self.count * other.count / count) * torch.outer(apart, apart)
        return Moments(count, self.mean + (other.count / count) * apart, self.scatter + other.scatter + between)

    def to(self, device: torch.device) -> Moments:
        """The same on another device."""
        return Moments(self.count, self.mean.to(device), self.scatter.to(device))

    def equations(self, centred: bool) -> NormalEquations:
        """The sums of products about the mean (``centred``) or about 0."""
        scatter = self.scatter.clone()
        # A constant column leaves rounding in its scatter, which would pass for a feature of its own.
        constant = scatter.diagonal() <= self.count * (4.0 * ROUNDING * self.mean).square()
        scatter[constant] = 0.0
        scatter[:, constant] = 0.0
        if not centred:
            scatter += self.count * torch.outer(self.mean, self.mean)
        return NormalEquations(self.count, scatter[:-1, :-1], scatter[:-1, -1], float(scatter[-1, -1]))
