"""A table along its singular vectors, where the evidence of any two precisions costs O(M)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.errors import DivergenceError
from credo.linear._moments import ROUNDING, ReducedTable

Vector = NDArray[np.float64]
_ALIKE = 100.0
"""Columns whose lengths differ by no more than this factor are of similar size."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A table in coordinates of w and of y in which every target has a weight of its own: z_i = √λ_i w_i + noise.

    ‖y − Φw‖² = Σ_i (z_i − √λ_i w_i)² + residual. All sums below are of terms that are not negative, so nothing cancels.

    Attributes:
        count: N.
        scales: √λ, the singular values of Φ, 0 for directions that the data leave open, ``[M]``.
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

    def at(self, weight_precision: float, noise_precision: float) -> SpectralPosterior:
        """The posterior for α and β."""
        return SpectralPosterior(self, weight_precision, noise_precision)

    def shrunken_squares(self, ratio: Vector) -> Vector:
        """y(I + ΦΦᵀ/ρ)⁻¹y for every ρ = α/β of ``ratio [G]``, ``[G]``: what the fit leaves and the prior charges."""
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
    """p(w | y, α, β) for w ~ N(0, α⁻¹I) and y ~ N(Φw, β⁻¹I), by its coordinates along the singular vectors.

    Attributes:
        spectrum: of the table.
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
    def coordinates(self) -> Vector:
        """Of the posterior mean, β√λz / (α + βλ), ``[M]``."""
        means: Vector = self.noise_precision * self.spectrum.scales * self.spectrum.targets / self.precisions
        return means

    @cached_property
    def squared_weights(self) -> float:
        """‖m‖²."""
        return float(self.coordinates @ self.coordinates)

    @cached_property
    def squared_errors(self) -> float:
        """‖y − Φm‖²."""
        left = self.spectrum.targets * (self.weight_precision / self.precisions)
        return float(left @ left) + self.spectrum.residual

    @cached_property
    def spread(self) -> float:
        """tr S."""
        return float((1.0 / self.precisions).sum())

    @cached_property
    def effective_parameters(self) -> float:
        """γ = Σ βλ / (α + βλ) = β tr(ΦᵀΦS), how many weights the data determine (Bishop 3.91)."""
        return float((self.noise_precision * self.spectrum.scales**2 / self.precisions).sum())

    @cached_property
    def free_rows(self) -> float:
        """N − γ, as a sum of terms that are not negative."""
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


def decompose(table: ReducedTable) -> tuple[ReducedTable, Spectrum]:
    """What a table determines, and its spectrum.

    Combinations of columns, each taken in units of its length, that are 0 up to rounding say nothing, and are left out.
    Columns of very different length have singular values of very different size: Jacobi's method finds the small ones
    to as many digits as the large ones.

    Reference:
        Z. Drmač, K. Veselić. New fast and accurate Jacobi SVD algorithm. SIAM Journal on Matrix Analysis and
        Applications, 2008.
    """
    lengths = torch.linalg.vector_norm(table.rows, dim=0)
    lengths = torch.where(lengths > 0.0, lengths, lengths.amax())
    alike = bool(lengths.amax() <= _ALIKE * lengths.amin())
    unit = torch.ones_like(lengths) if alike else lengths
    left, scales, right = torch.linalg.svd(table.rows / unit, full_matrices=False)
    seen = scales > table.size * ROUNDING * scales.amax() if len(scales) else scales > 0.0
    left, targets = left[:, seen], left[:, seen].mT @ table.targets
    rows = scales[seen, None] * right[seen] * unit
    # what no rows reach is explained by no weights
    residual = table.residual + float((table.targets - left @ targets).square().sum())
    determined = ReducedTable(table.count, rows, targets, residual)
    values, coordinates = (t.cpu().numpy() for t in (scales[seen], targets))
    if not alike:
        values, coordinates = _jacobi(rows.cpu().numpy(), coordinates)
    open_directions = (0, table.size - len(values))
    return determined, Spectrum(
        table.count, np.pad(values, open_directions), np.pad(coordinates, open_directions), residual
    )


def _jacobi(rows: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """The singular values of ``rows [r, M]``, and ``targets [r]`` along their left singular vectors."""
    (decomposition,) = get_lapack_funcs(("gejsv",), (rows,))
    # joba=2: for rows and columns of very different size
    values, _, vectors, scaling, _, failed = decomposition(rows.T, joba=2)
    if failed:
        raise DivergenceError("the singular values of the features were not found: scale the columns of X")
    return values * (scaling[0] / scaling[1]), vectors.T @ targets


def weight_posterior(rows: Tensor, targets: Tensor, prior_root: Tensor) -> tuple[GaussianBelief, Tensor]:
    """p(w | z) for z ~ N(Rw, I) and w ~ N(0, (AᵀA)⁻¹), and the orthonormal Q ``[r + M, M]`` of (R, A) = QC.

    C is the Cholesky factor of the precision, found without squaring the condition number: collinear columns under a
    weak prior stay apart, and columns of any size keep their digits.

    Args:
        rows: R, ``[r, M]``.
        targets: z, ``[r]``.
        prior_root: A, ``[M, M]``.
    """
    q, c = _positive_qr(torch.cat((rows, prior_root)))
    mean: Tensor = torch.linalg.solve_triangular(c, (q[: len(rows)].mT @ targets)[:, None], upper=True)
    return GaussianBelief(mean.squeeze(-1), c.mT), q


def _positive_qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of ``matrix [K, M]``, K ≥ M, the diagonal of R not negative, so that Rᵀ is the Cholesky factor of AᵀA."""
    q, r = torch.linalg.qr(matrix)
    signs = torch.where(r.diagonal() < 0.0, -1.0, 1.0).to(r.dtype)
    return q * signs, signs[:, None] * r
