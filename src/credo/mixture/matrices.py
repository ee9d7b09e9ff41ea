"""Components with whole covariance matrices: one each (full), or one for all (tied)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor

from credo.errors import InputError
from credo.mixture.components import FAR, Components, Measured, Sums

_ROUNDING = 1e-13
"""The share of a variance that may be left by rounding where sums over rows cancel."""


@final
class FullComponents(Components):
    """A matrix for each component; ``factor [K, D, D]`` is upper triangular."""

    @classmethod
    def unit(cls, means: Tensor) -> Self:
        """Σ_k = I."""
        return cls(means, _identity(means).expand(len(means), -1, -1))

    @classmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """Λ_k, ``[K, D, D]``."""
        return cls(means, upper_factor(precisions))

    @staticmethod
    def shape(components: int, features: int) -> tuple[int, ...]:
        """``[K, D, D]``."""
        return components, features, features

    @property
    def numbers_per_row(self) -> int:
        """Those of y in all components."""
        return self.means.numel()

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """Pᵀ and −Pᵀ(μ − c) of all components below one another: ``[K·D, D]`` and ``[K·D, 1]``."""
        offset = self.factor.mT @ (self.means - self.center).unsqueeze(-1)
        return self.factor.mT.reshape(-1, self.means.shape[1]), -offset.reshape(-1, 1)

    def measure(self, x: Tensor) -> Measured:
        """One product for all components; rows run along the last dimension, where memory is contiguous."""
        matrix, offset = self._projection
        y = torch.addmm(offset, matrix, (x - self.center).mT).view(*self.means.shape, len(x))
        return Measured(y.square().sum(1), lambda r: matrix_sums(y, r))

    def updated(self, sums: Sums, floor: float) -> Self:
        """Σ_k = scatter_k / N_k, with no eigenvalue below ε."""
        shift, occupied = sums.shift, sums.occupied[..., None]
        scatter = sums.second - outer(sums.first, shift)
        white = torch.where(occupied, scatter / sums.count[:, None, None], _identity(scatter))
        return type(self)(self.moved(shift), corrected(self.factor, white, floor))

    def moved(self, steps: Tensor) -> Tensor:
        """The means after white ``steps [K, D]`` from them."""
        move: Tensor = torch.linalg.solve_triangular(self.factor.mT, steps.unsqueeze(-1), upper=False)
        return self.means + move.squeeze(-1)

    @property
    def least_variance(self) -> float:
        """The smallest eigenvalue of any Σ."""
        return float(torch.linalg.matrix_norm(self.factor, 2).max()) ** -2

    @property
    def half_log_det(self) -> Tensor:
        """The sum of the logs of the diagonal of P_k."""
        diagonal: Tensor = self.factor.diagonal(dim1=-2, dim2=-1)
        return diagonal.log().sum(-1)

    @property
    def covariances(self) -> Tensor:
        """Σ_k, ``[K, D, D]``."""
        return covariance(self.factor)

    @property
    def precisions(self) -> Tensor:
        """Λ_k, ``[K, D, D]``."""
        return self.factor @ self.factor.mT

    @property
    def free_parameters(self) -> int:
        """K D(D+1)/2."""
        components, features = self.means.shape
        return components * features * (features + 1) // 2

    def color(self, k: int, noise: Tensor) -> Tensor:
        """P_k⁻ᵀ times each row."""
        return _colored(self.factor[k], noise)


@final
class TiedComponents(Components):
    """One matrix for all components; ``factor [D, D]`` is upper triangular."""

    @classmethod
    def unit(cls, means: Tensor) -> Self:
        """Σ = I."""
        return cls(means, _identity(means))

    @classmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """Λ, ``[D, D]``."""
        return cls(means, upper_factor(precisions))

    @staticmethod
    def shape(components: int, features: int) -> tuple[int, ...]:
        """``[D, D]``."""
        return features, features

    @property
    def numbers_per_row(self) -> int:
        """Those of y in all components."""
        return self.means.numel()

    @cached_property
    def _white_means(self) -> Tensor:
        """Measured from the center, ``[K, D]``."""
        return (self.means - self.center) @ self.factor

    @cached_property
    def _far_apart(self) -> bool:
        """Whether the scatter about the means would be lost in that about the center."""
        return bool(self._white_means.square().max() > FAR)

    def measure(self, x: Tensor) -> Measured:
        """Rows are projected once and then compared with every mean."""
        means, z = self._white_means, (x - self.center) @ self.factor
        distances = torch.cdist(means, z, compute_mode="donot_use_mm_for_euclid_dist").square_()

        def sums(r: Tensor) -> Sums:
            count = r.sum(1)
            if self._far_apart:
                own = matrix_sums(z.mT - means.unsqueeze(-1), r)
                return Sums(count, own.first, own.second.sum(0))
            first = r @ z - count[:, None] * means
            crossed = first.mT @ means
            second = z.mT @ z - crossed - crossed.mT - means.mT @ (count[:, None] * means)
            return Sums(count, first, second)

        return Measured(distances, sums)

    def updated(self, sums: Sums, floor: float) -> Self:
        """Σ = Σ_k scatter_k / N, with no eigenvalue below ε."""
        shift = sums.shift
        means = self.means + _colored(self.factor, shift)
        scatter = sums.second - sums.first.mT @ shift
        return type(self)(means, corrected(self.factor, scatter / sums.count.sum(), floor))

    @property
    def least_variance(self) -> float:
        """The smallest eigenvalue of any Σ."""
        return float(torch.linalg.matrix_norm(self.factor, 2).max()) ** -2

    @property
    def half_log_det(self) -> Tensor:
        """The sum of the logs of the diagonal of P, for every component."""
        return self.factor.diagonal().log().sum().expand(len(self.means))

    @property
    def covariances(self) -> Tensor:
        """Σ, ``[D, D]``."""
        return covariance(self.factor)

    @property
    def precisions(self) -> Tensor:
        """Λ, ``[D, D]``."""
        return self.factor @ self.factor.mT

    @property
    def free_parameters(self) -> int:
        """D(D+1)/2."""
        features = self.means.shape[1]
        return features * (features + 1) // 2

    def color(self, k: int, noise: Tensor) -> Tensor:
        """P⁻ᵀ times each row, whatever k."""
        return _colored(self.factor, noise)


def matrix_sums(y: Tensor, r: Tensor) -> Sums:
    """The sums of white rows ``y [K, D, b]`` with responsibilities ``r [K, b]``."""
    weighted = y * r.unsqueeze(1)
    return Sums(r.sum(1), weighted.sum(2), weighted @ y.mT)


def upper_factor(precision: Tensor) -> Tensor:
    """The upper triangular P with PPᵀ = Λ, ``[..., D, D]``: a Cholesky factor with rows and columns reversed."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(precision.flip(-1, -2))
    if bool(failed.any()) or not torch.allclose(precision, precision.mT):
        raise InputError("precisions_init must be symmetric and positive definite, got a matrix that is not")
    return lower.flip(-1, -2)


def covariance(factor: Tensor) -> Tensor:
    """(PPᵀ)⁻¹."""
    inverse: Tensor = torch.linalg.solve_triangular(factor, _identity(factor), upper=True)
    return inverse.mT @ inverse


def corrected(factor: Tensor, white: Tensor, floor: float) -> Tensor:
    """The factor of the precision after a step to Σ′ = P⁻ᵀ C P⁻¹, with eigenvalues below ``floor`` raised to it.

    With C = GGᵀ that factor is P G⁻ᵀ, so that Σ′ itself need not be formed: C is near the identity however flat Σ is.

    Args:
        factor: P, ``[..., D, D]``.
        white: C, the covariance in white coordinates, ``[..., D, D]``.
        floor: ε; at 0 a singular C is an error.
    """
    lower, failed = torch.linalg.cholesky_ex(white)
    _, too_flat = torch.linalg.cholesky_ex(white - floor * factor.mT @ factor)
    if floor > 0.0 and bool((failed + too_flat).any()):
        return _raised(factor, white, floor)
    _require_regular(white, lower, failed)
    solved: Tensor = torch.linalg.solve_triangular(lower, factor.mT, upper=False)
    return solved.mT


def _raised(factor: Tensor, white: Tensor, floor: float) -> Tensor:
    """``corrected`` by the eigenvalues of Σ′: squared singular values of a root of it, which keep more digits."""
    values, vectors = torch.linalg.eigh(white)
    root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    axes, scales, _ = torch.linalg.svd(torch.linalg.solve_triangular(factor.mT, root, upper=False))
    precision_root = axes / scales.clamp_min(math.sqrt(floor)).unsqueeze(-2)
    _, upper = torch.linalg.qr(precision_root.flip(-2).mT)
    factor = upper.mT.flip(-1, -2)
    return factor * factor.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _require_regular(matrix: Tensor, lower: Tensor, failed: Tensor) -> None:
    """An error where a pivot of the Cholesky factor ``lower`` cannot be told from 0."""
    pivots, diagonal = (m.diagonal(dim1=-2, dim2=-1) for m in (lower, matrix))
    if bool(failed.any()) or not bool((pivots.square() > _ROUNDING * diagonal).all()):
        raise InputError(
            "a covariance is singular: columns are constant or repeat others, or a component has shrunk onto a few "
            "rows; raise reg_covar, lower n_components or drop such columns"
        )


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """abᵀ of vectors ``[..., D]``."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _colored(factor: Tensor, noise: Tensor) -> Tensor:
    """P⁻ᵀ times each row of ``noise [n, D]``."""
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, noise.mT, upper=False)
    return solved.mT
