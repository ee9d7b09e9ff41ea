"""Normal equations along their eigenvectors, where a posterior for any two precisions costs O(M)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.linear._moments import ROUNDING, NormalEquations

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A table reduced to M rows: ΦᵀΦ = RᵀR and Φᵀy = Rᵀz with R = diag(√λ)Vᵀ.

    Least squares on (R, z) is least squares on the table but for a constant, the residual:
    ‖y − Φw‖² = ‖z − Rw‖² + residual. All sums below are of terms that are not negative, so nothing cancels.

    Attributes:
        count: N.
        scales: √λ, the singular values of Φ, 0 for directions that the data leave open, ``[M]``.
        vectors: V, eigenvectors in columns, ``[M, M]``.
        targets: z, ``[M]``.
        residual: the sum of squares that no weights explain.
    """

    count: int
    scales: Vector
    vectors: Tensor
    targets: Vector
    residual: float

    @classmethod
    def of(cls, equations: NormalEquations) -> Spectrum:
        """Decompose ΦᵀΦ as a correlation matrix first.

        Columns of very different size would spend the digits of the small ones in an eigendecomposition of ΦᵀΦ
        itself; a square root of it keeps them.
        """
        size = len(equations.cross)
        columns = equations.gram.diagonal().clamp(min=0.0).sqrt()
        unit = torch.where(columns > 0.0, columns, 1.0)
        correlations, directions = torch.linalg.eigh(equations.gram / unit / unit[:, None])
        correlations = torch.where(correlations > size * ROUNDING, correlations, 0.0)
        root = correlations.sqrt()[:, None] * directions.mT * unit
        _, scales, rows = torch.linalg.svd(root)
        scales = torch.where(scales > size * ROUNDING * scales[0], scales, 0.0)
        projected = rows @ equations.cross
        targets = torch.where(scales > 0.0, projected / torch.where(scales > 0.0, scales, 1.0), 0.0)
        residual = max(equations.total - float(targets.square().sum()), 0.0)
        return cls(equations.count, scales.cpu().numpy(), rows.mT, targets.cpu().numpy(), residual)

    @property
    def size(self) -> int:
        """M."""
        return len(self.scales)

    @cached_property
    def determined(self) -> tuple[Tensor, Tensor]:
        """R ``[r, M]`` and z ``[r]`` in the r directions that the data determine; the others are 0."""
        seen = self.scales > 0.0
        rows = self.vectors.new_tensor(self.scales)[:, None] * self.vectors.mT
        return rows[seen], self.vectors.new_tensor(self.targets[seen])

    @property
    def total(self) -> float:
        """yᵀy."""
        return float(self.targets @ self.targets) + self.residual

    @property
    def least_squares_precision(self) -> float:
        """The number of determined weights over ‖w‖² of the shortest least squares solution; 1 where that is 0."""
        seen = self.scales > 0.0
        squares = float(np.square(self.targets[seen] / self.scales[seen]).sum())
        return int(seen.sum()) / squares if squares else 1.0

    def at(self, weight_precision: float, noise_precision: float) -> SpectralPosterior:
        """The posterior for α and β."""
        return SpectralPosterior(self, weight_precision, noise_precision)


@dataclass(frozen=True, eq=False)
class SpectralPosterior:
    """p(w | y, α, β) for w ~ N(0, α⁻¹I) and y ~ N(Φw, β⁻¹I), by its coordinates along the eigenvectors of ΦᵀΦ.

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
        """log p(y | α, β) (Bishop 3.86)."""
        n, m, alpha, beta = self.spectrum.count, self.spectrum.size, self.weight_precision, self.noise_precision
        log_dets = m * math.log(alpha) + n * math.log(beta / (2.0 * math.pi)) - self.log_det_precision
        return 0.5 * (log_dets - beta * self.squared_errors - alpha * self.squared_weights)

    def belief(self, factor: Tensor | None) -> GaussianBelief:
        """The posterior of w where the weights of the spectrum are u = L⁻¹w; L = I for ``None``.

        The precision is AᵀA with A = diag(√(α + βλ))VᵀL⁻¹, and A = QC gives its Cholesky factor Cᵀ without squaring
        the condition number: collinear columns under a weak prior stay apart.
        """
        vectors = self.spectrum.vectors
        root = vectors.new_tensor(np.sqrt(self.precisions))[:, None] * vectors.mT
        mean = vectors @ vectors.new_tensor(self.coordinates)
        if factor is not None:
            root = torch.linalg.solve_triangular(factor, root, upper=False, left=False)
            mean = factor @ mean
        return GaussianBelief(mean, positive_qr(root)[1].mT)


def positive_qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of ``matrix [K, M]``, K ≥ M, the diagonal of R not negative, so that Rᵀ is the Cholesky factor of AᵀA."""
    q, r = torch.linalg.qr(matrix)
    signs = torch.where(r.diagonal() < 0.0, -1.0, 1.0).to(r.dtype)
    return q * signs, signs[:, None] * r
