"""Linear algebra of Bayesian linear regression: reduced tables, their singular values, posteriors of the weights."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning, get_lapack_funcs
from torch import Tensor

from credo._rows import Rows, rows_per_block
from credo._threads import one_thread
from credo.conjugate import GaussianBelief
from credo.errors import DivergenceError, InputError
from credo.linear.bases import Basis, compute_features

Vector = NDArray[np.float64]

ROUNDING = torch.finfo(torch.float64).eps
ROUNDING_LIMIT = 1e-3
"""Warn if rounding of the features may change the log evidence by more nats than this."""
_SIMILAR_LENGTHS = 100.0
"""Columns are of similar length if their lengths differ by no more than this factor."""
_WIDE = 128
"""Number of features from which QR decompositions of a block gain from several threads."""


@dataclass(frozen=True, eq=False)
class ReducedTable:
    """r ≤ M rows with the same likelihood N(y | Φw, β⁻¹I) as a whole table: ‖y − Φw‖² = ‖z − Rw‖² + residual.

    ΦᵀΦ and Φᵀy hold the same information, but R has the condition number of Φ and not its square.

    Attributes:
        count: N, the number of rows of the whole table.
        rows: R, ``[r, M]``.
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

    def transform(self, mean: Tensor, factor: Tensor | None) -> ReducedTable:
        """The table of u where w = m + Lu: features ΦL and targets y − Φm; L = I if ``factor`` is ``None``."""
        rows = self.rows if factor is None else self.rows @ factor
        return replace(self, rows=rows, targets=self.targets - self.rows @ mean)

    def evidence_rounding(self, weights: Tensor, variances: Tensor, noise_precision: float) -> float:
        """The first-order change of log p(y) if rounding moves every column a by εa, with ε = 2⁻⁵², in nats.

            ∂ log p(y) / ∂Φ = β ((y − Φm)mᵀ − ΦS),    ‖Φs_j‖ ≤ √(S_jj/β) for a column s_j of S

        The second term is large if columns are nearly linear combinations of others and the prior is weak.

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
class SufficientStatistics:
    """N, the mean and a root of the scatter matrix of (φ, y). Centering keeps all digits of data with large offsets.

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
    def from_rows(cls, rows: Rows, basis: Basis) -> SufficientStatistics:
        """The statistics of the features and targets of rows (X, y), in one pass."""
        return rows.reduce(lambda part: cls._from_part(part, basis))

    @classmethod
    def _from_part(cls, rows: Rows, basis: Basis) -> SufficientStatistics:
        total: SufficientStatistics | None = None
        for x, y in rows.blocks():
            width = basis.features(x[:1]).shape[1]
            # with as many rows as columns, half of the work of reducing a block is on new rows
            size = max(rows_per_block(width, rows.device), width)
            # For narrow blocks, synchronization after every operation costs the threads more than they gain.
            with one_thread(width < _WIDE):
                for part in zip(x.split(size), y.split(size), strict=True):
                    block = cls._from_block(basis, *part)
                    total = replace(block, root=_triangular(block.root)) if total is None else total + block
        assert total is not None
        return total

    @classmethod
    def _from_block(cls, basis: Basis, x: Tensor, y: Tensor) -> SufficientStatistics:
        """The statistics of one block, with all its centered rows as ``root``."""
        joint = torch.cat((compute_features(basis, x), y[:, None]), dim=1)
        mean = joint.mean(0)
        joint -= mean
        return cls(len(joint), mean, joint)

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """The statistics of both sets of rows together."""
        if len(self.mean) != len(other.mean):
            raise InputError(
                f"the basis must give the same features for all rows, got {len(self.mean) - 1} for some and "
                f"{len(other.mean) - 1} for others"
            )
        count = self.count + other.count
        difference = other.mean - self.mean
        between = math.sqrt(self.count * other.count / count) * difference
        mean = self.mean + (other.count / count) * difference
        return SufficientStatistics(count, mean, _triangular(torch.cat((self.root, other.root, between[None]))))

    def to(self, device: torch.device) -> SufficientStatistics:
        """The same statistics on another device."""
        return SufficientStatistics(self.count, self.mean.to(device), self.root.to(device))

    def to_table(self, centered: bool) -> ReducedTable:
        """The reduced table of the rows about their mean (``centered``) or about 0."""
        # A constant column leaves rounding errors in its scatter, which would count as a feature of its own.
        spread = torch.linalg.vector_norm(self.root, dim=0) / math.sqrt(self.count)
        root = torch.where(spread > 4.0 * ROUNDING * self.mean.abs(), self.root, 0.0)
        if not centered:
            root = _triangular(torch.cat((root, math.sqrt(self.count) * self.mean[None])))
        size = len(self.mean) - 1
        residual = float(root[size:, -1].square().sum())
        return ReducedTable(self.count, root[:size, :-1], root[:size, -1], residual)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A table in the coordinates of its singular vectors, z_i = √λ_i w_i + noise, where the evidence costs O(M).

    ‖y − Φw‖² = Σ_i (z_i − √λ_i w_i)² + residual. All sums below have non-negative terms, so no digits cancel.

    Attributes:
        count: N.
        scales: √λ, the singular values of Φ, 0 for directions that the data do not determine, ``[M]``.
        targets: z, ``[M]``.
        residual: the sum of squares that no weights explain.
    """

    count: int
    scales: Vector
    targets: Vector
    residual: float

    @property
    def size(self) -> int:
        """M."""
        return len(self.scales)

    @property
    def total(self) -> float:
        """yᵀy."""
        return float(self.targets @ self.targets) + self.residual

    def posterior(self, weight_precision: float, noise_precision: float) -> SpectralPosterior:
        """The posterior for α and β."""
        return SpectralPosterior(self, weight_precision, noise_precision)

    def shrunken_squares(self, ratio: Vector) -> Vector:
        """yᵀ(I + ΦΦᵀ/ρ)⁻¹y for every ρ = α/β of ``ratio [G]``, ``[G]``: squared errors plus the prior's penalty."""
        squares: Vector = (np.square(self.targets) / (1.0 + self._gains(ratio))).sum(-1) + self.residual
        return squares

    def log_evidence(self, ratio: Vector, noise_precision: Vector) -> Vector:
        """log p(y | α = ρβ, β) (Bishop 3.86) of every pair, ``[G]``."""
        constant = self.count * np.log(noise_precision / (2.0 * math.pi))
        log_det = np.log1p(self._gains(ratio)).sum(-1)
        evidence: Vector = 0.5 * (constant - log_det - noise_precision * self.shrunken_squares(ratio))
        return evidence

    def _gains(self, ratio: Vector) -> Vector:
        """λ/ρ, ``[G, M]``."""
        gains: Vector = np.square(self.scales) / np.asarray(ratio)[..., None]
        return gains


@dataclass(frozen=True, eq=False)
class SpectralPosterior:
    """p(w | y, α, β) for w ~ N(0, α⁻¹I) and y ~ N(Φw, β⁻¹I), in coordinates along the singular vectors.

    Attributes:
        spectrum: the table.
        weight_precision: α.
        noise_precision: β.
    """

    spectrum: Spectrum
    weight_precision: float
    noise_precision: float

    @cached_property
    def precisions(self) -> Vector:
        """α + βλ, ``[M]``."""
        return self.weight_precision + self.noise_precision * self.spectrum.scales**2

    @cached_property
    def squared_weights(self) -> float:
        """‖m‖², with coordinates β√λz / (α + βλ) of m."""
        mean = self.noise_precision * self.spectrum.scales * self.spectrum.targets / self.precisions
        return float(mean @ mean)

    @cached_property
    def squared_errors(self) -> float:
        """‖y − Φm‖²."""
        errors = self.spectrum.targets * (self.weight_precision / self.precisions)
        return float(errors @ errors) + self.spectrum.residual

    @cached_property
    def trace(self) -> float:
        """tr S."""
        return float((1.0 / self.precisions).sum())

    @cached_property
    def effective_parameters(self) -> float:
        """γ = Σ βλ / (α + βλ) = β tr(ΦᵀΦS), the number of weights that the data determine (Bishop 3.91)."""
        return float((self.noise_precision * self.spectrum.scales**2 / self.precisions).sum())

    @cached_property
    def free_rows(self) -> float:
        """N − γ, as a sum of non-negative terms."""
        seen = self.spectrum.scales > 0.0
        return self.spectrum.count - int(seen.sum()) + float((self.weight_precision / self.precisions[seen]).sum())

    @cached_property
    def log_det_precision(self) -> float:
        """log |αI + βΦᵀΦ|."""
        return float(np.log(self.precisions).sum())

    @property
    def log_evidence(self) -> float:
        """log p(y | α, β)."""
        ratio = np.array(self.weight_precision / self.noise_precision)
        return float(self.spectrum.log_evidence(ratio, np.array(self.noise_precision)))

    def to_weights(self, table: ReducedTable, factor: Tensor | None) -> GaussianBelief:
        """The posterior of w − m₀ = Lu, where ``table`` and this posterior are those of u; L = I for ``None``."""
        rows, root = table.rows, torch.eye(table.size, dtype=torch.float64, device=table.rows.device)
        if factor is not None:
            rows, root = (torch.linalg.solve_triangular(factor, m, upper=False, left=False) for m in (rows, root))
        noise = math.sqrt(self.noise_precision)
        posterior, _ = weight_posterior(noise * rows, noise * table.targets, math.sqrt(self.weight_precision) * root)
        return posterior


def decompose(table: ReducedTable) -> tuple[ReducedTable, Spectrum]:
    """The part of a table that determines weights, and its spectrum.

    Combinations of columns, each divided by its length, that are 0 up to rounding are left out. Columns of very
    different lengths have singular values of very different size: Jacobi's method finds the small ones to as many
    digits as the large ones.

    Reference:
        Z. Drmač, K. Veselić. New fast and accurate Jacobi SVD algorithm. SIAM Journal on Matrix Analysis and
        Applications, 2008.
    """
    lengths = torch.linalg.vector_norm(table.rows, dim=0)
    lengths = torch.where(lengths > 0.0, lengths, lengths.amax())
    similar = bool(lengths.amax() <= _SIMILAR_LENGTHS * lengths.amin())
    unit = torch.ones_like(lengths) if similar else lengths
    left, scales, right = torch.linalg.svd(table.rows / unit, full_matrices=False)
    seen = scales > table.size * ROUNDING * scales.amax() if len(scales) else scales > 0.0
    left, targets = left[:, seen], left[:, seen].mT @ table.targets
    rows = scales[seen, None] * right[seen] * unit
    # targets outside the span of the rows are explained by no weights
    residual = table.residual + float((table.targets - left @ targets).square().sum())
    values, coordinates = (t.cpu().numpy() for t in (scales[seen], targets))
    if not similar:
        values, coordinates = _jacobi(rows.cpu().numpy(), coordinates)
    padding = (0, table.size - len(values))
    spectrum = Spectrum(table.count, np.pad(values, padding), np.pad(coordinates, padding), residual)
    return ReducedTable(table.count, rows, targets, residual), spectrum


def weight_posterior(rows: Tensor, targets: Tensor, prior_root: Tensor) -> tuple[GaussianBelief, Tensor]:
    """p(w | z) for z ~ N(Rw, I) and w ~ N(0, (AᵀA)⁻¹), and the orthonormal Q ``[r + M, M]`` of (R, A) = QC.

    C is the Cholesky factor of the precision, found without squaring the condition number: collinear columns under a
    weak prior stay distinct, and columns of any size keep their digits.

    Args:
        rows: R, ``[r, M]``.
        targets: z, ``[r]``.
        prior_root: A, ``[M, M]``.
    """
    q, c = torch.linalg.qr(torch.cat((rows, prior_root)))
    signs = torch.where(c.diagonal() < 0.0, -1.0, 1.0).to(c.dtype)  # a Cholesky factor has a positive diagonal
    q, c = q * signs, signs[:, None] * c
    mean: Tensor = torch.linalg.solve_triangular(c, (q[: len(rows)].mT @ targets)[:, None], upper=True)
    return GaussianBelief(mean.squeeze(-1), c.mT), q


def warn_if_collinear(nats: float) -> None:
    """Warn the caller of ``fit`` if rounding of the features may change the log evidence by so many nats.

    Call it from a function that ``fit`` calls.
    """
    if nats > ROUNDING_LIMIT:
        warnings.warn(
            "the features are so nearly linear combinations of one another that rounding alone may change the log "
            f"evidence by {nats:.2g} nats, and the predictions with it: scale the inputs to about [-1, 1], lower the "
            "degree, choose another basis, such as GaussianBasis, or raise weight_precision",
            LinAlgWarning,
            stacklevel=4,
        )


def _triangular(rows: Tensor) -> Tensor:
    """R with RᵀR = AᵀA for ``rows`` A ``[K, M]``, upper triangular, ``[min(K, M), M]``."""
    root: Tensor = torch.linalg.qr(rows, mode="r").R
    return root


def _jacobi(rows: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """The singular values of ``rows [r, M]``, and ``targets [r]`` along their left singular vectors."""
    (decomposition,) = get_lapack_funcs(("gejsv",), (rows,))
    # joba=2: for rows and columns of very different size
    values, _, vectors, scaling, _, failed = decomposition(rows.T, joba=2)
    if failed:
        raise DivergenceError("the singular values of the features were not found: scale the columns of X")
    return values * (scaling[0] / scaling[1]), vectors.T @ targets
