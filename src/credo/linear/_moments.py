"""What a linear model keeps of a table: a few rows that say the same of its weights, from any number in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from credo._rows import Rows, rows_per_block
from credo._threads import one_thread
from credo.errors import InputError
from credo.linear.bases import Basis, checked_features

ROUNDING = torch.finfo(torch.float64).eps
_WIDE = 128


@dataclass(frozen=True, eq=False)
class ReducedTable:
    """r rows that say all that a table does of w under N(y | Φw, β⁻¹I): ‖y − Φw‖² = ‖z − Rw‖² + residual.

    Unlike ΦᵀΦ and Φᵀy, which say the same, R has the condition number of Φ and not its square.

    Attributes:
        count: N.
        rows: R, ``[r, M]``, r at most M.
        targets: z, ``[r]``.
        residual: the sum of squares that no weights explain.
    """

    count: int
    rows: Tensor
    targets: Tensor
    residual: float

    @property
    def size(self) -> int:
        """M."""
        return self.rows.shape[1]

    @property
    def total(self) -> float:
        """yᵀy."""
        return float(self.targets.square().sum()) + self.residual

    def under(self, mean: Tensor, factor: Tensor | None) -> ReducedTable:
        """The same of u where w = m + Lu: features ΦL and targets y − Φm; L = I for ``None``."""
        rows = self.rows if factor is None else self.rows @ factor
        return replace(self, rows=rows, targets=self.targets - self.rows @ mean)

    def rounding_of_evidence(self, weights: Tensor, variances: Tensor, noise_precision: float) -> float:
        """By how much log p(y) may change, to first order, where rounding moves every column a by εa, ε = 2⁻⁵².

            ∂ log p(y) / ∂Φ = β ((y − Φm)mᵀ − ΦS),    ‖Φs_j‖ ≤ √(S_jj/β) for a column s_j of S

        The second term is large where columns are nearly combinations of others, and the prior does not decide between
        them.

        Args:
            weights: m, ``[M]``.
            variances: the diagonal of S, ``[M]``.
            noise_precision: β.
        """
        lengths = torch.linalg.vector_norm(self.rows, dim=0)
        errors = math.sqrt(float((self.targets - self.rows @ weights).square().sum()) + self.residual)
        slopes = noise_precision * errors * weights.abs() + (noise_precision * variances).sqrt()
        return ROUNDING * float(lengths @ slopes)


@dataclass(frozen=True, eq=False)
class Moments:
    """N, the mean and a root of the scatter of (φ, y), about the mean so that large offsets cost no digits.

    Attributes:
        count: N.
        mean: of each feature and, last, of the target, ``[M + 1]``.
        root: R with RᵀR = Σ_n (z_n − z̄)(z_n − z̄)ᵀ for z = (φ, y), upper triangular, ``[min(N, M + 1), M + 1]``.

    References:
        G. H. Golub, C. F. Van Loan. Matrix Computations. 4th edition, 2013, sections 5.3 and 6.5.
        T. F. Chan, G. H. Golub, R. J. LeVeque. Algorithms for computing the sample variance. The American
        Statistician, 1983.
    """

    count: int
    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, rows: Rows, basis: Basis) -> Moments:
        """Of the features and targets of rows (X, y), in one pass."""
        moments: Moments | None = None
        for x, y in rows.blocks():
            width = basis.features(x[:1]).shape[1]
            # with as many rows as columns, half of the work of reducing a block is on new rows
            size = max(rows_per_block(width, rows.device), width)
            # For narrow blocks, meeting after every operation costs the threads more than they gain.
            with one_thread(width < _WIDE):
                for part in zip(x.split(size), y.split(size), strict=True):
                    found = cls._of_block(basis, *part)
                    moments = found._reduced() if moments is None else moments + found
        assert moments is not None
        return moments

    @classmethod
    def _of_block(cls, basis: Basis, x: Tensor, y: Tensor) -> Moments:
        """With all rows of the block in ``root``."""
        joint = torch.cat((checked_features(basis, x), y[:, None]), dim=1)
        mean = joint.mean(0)
        joint -= mean
        return cls(len(joint), mean, joint)

    def _reduced(self) -> Moments:
        return replace(self, root=_triangular(self.root))

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows together."""
        if len(self.mean) != len(other.mean):
            raise InputError(
                f"the basis must give the same features for all rows, got {len(self.mean) - 1} for some and "
                f"{len(other.mean) - 1} for others"
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        between = math.sqrt(self.count * other.count / count) * apart
        mean = self.mean + (other.count / count) * apart
        return Moments(count, mean, _triangular(torch.cat((self.root, other.root, between[None]))))

    def to(self, device: torch.device) -> Moments:
        """The same on another device."""
        return Moments(self.count, self.mean.to(device), self.root.to(device))

    def table(self, centered: bool) -> ReducedTable:
        """The rows about their mean (``centered``) or about 0."""
        # A constant column leaves rounding in its scatter, which would pass for a feature of its own.
        spread = torch.linalg.vector_norm(self.root, dim=0) / math.sqrt(self.count)
        root = torch.where(spread > 4.0 * ROUNDING * self.mean.abs(), self.root, 0.0)
        if not centered:
            root = _triangular(torch.cat((root, math.sqrt(self.count) * self.mean[None])))
        size = len(self.mean) - 1
        left = root[size:, -1]
        return ReducedTable(self.count, root[:size, :-1], root[:size, -1], float(left.square().sum()))


def _triangular(rows: Tensor) -> Tensor:
    """R with RᵀR = AᵀA for ``rows`` A ``[K, M]``, upper triangular, ``[min(K, M), M]``."""
    root: Tensor = torch.linalg.qr(rows, mode="r").R
    return root
