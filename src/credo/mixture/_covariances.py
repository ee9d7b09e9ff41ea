"""The four covariance types: full, tied, diagonal and spherical."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, Self, final

import torch
from torch import Tensor
from typing_extensions import override

from credo.errors import InputError
from credo.mixture._components import ComponentSums, MixtureComponents, WhitenedRows

CovarianceType = Literal["full", "tied", "diag", "spherical"]

EXPANSION_LIMIT = 1e4
"""The largest squared distance, in standard deviations of a component, for which squared differences are expanded into
powers (which is faster): up to there 12 digits remain."""
_ROUNDING = 1e-13
"""The relative rounding error of a variance where sums over rows cancel."""


class _MatrixComponents(MixtureComponents):
    """Components with covariance matrices; ``factor [..., D, D]`` is upper triangular."""

    @classmethod
    @override
    def with_unit_covariance(cls, means: Tensor) -> Self:
        return cls(means, _identity(means).expand(cls.factor_shape(*means.shape)))

    @classmethod
    @override
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        return cls(means, _upper_cholesky(precisions))

    @property
    @override
    def numbers_per_row(self) -> int:
        return self.means.numel()

    @property
    @override
    def min_variance(self) -> float:
        return float(torch.linalg.matrix_norm(self.factor, 2).max()) ** -2

    @property
    @override
    def half_log_det(self) -> Tensor:
        diagonal: Tensor = self.factor.diagonal(dim1=-2, dim2=-1)
        return diagonal.log().sum(-1).expand(len(self.means))

    @property
    @override
    def covariances(self) -> Tensor:
        inverse: Tensor = torch.linalg.solve_triangular(self.factor, _identity(self.factor), upper=True)
        return inverse.mT @ inverse

    @property
    @override
    def precisions(self) -> Tensor:
        return self.factor @ self.factor.mT

    @property
    @override
    def n_parameters(self) -> int:
        size = self.means.shape[1]
        return self.factor.numel() // size * (size + 1) // 2

    @override
    def unwhiten(self, k: int, noise: Tensor) -> Tensor:
        return _unwhiten(self.factor.expand(len(self.means), -1, -1)[k], noise)


@final
class FullComponents(_MatrixComponents):
    """A covariance matrix per component; ``factor [K, D, D]``."""

    @staticmethod
    @override
    def factor_shape(n_components: int, n_features: int) -> tuple[int, ...]:
        return n_components, n_features, n_features

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """Pᵀ and −Pᵀ(μ − c) of all components, stacked: ``[K·D, D]`` and ``[K·D, 1]``."""
        offset = self.factor.mT @ (self.means - self.center).unsqueeze(-1)
        return self.factor.mT.reshape(-1, self.means.shape[1]), -offset.reshape(-1, 1)

    @override
    def whiten(self, x: Tensor) -> WhitenedRows:
        # one product for all components, with the rows along the last dimension, where memory is contiguous
        matrix, offset = self._projection
        y = torch.addmm(offset, matrix, (x - self.center).mT).view(*self.means.shape, len(x))
        return WhitenedRows(y.square().sum(1), lambda r: _matrix_sums(y, r))

    @override
    def m_step(self, sums: ComponentSums, floor: float) -> Self:
        mean, occupied = sums.mean, sums.occupied[..., None]
        scatter = sums.second - outer(sums.first, mean)
        white = torch.where(occupied, scatter / sums.count[:, None, None], _identity(scatter))
        return type(self)(self.shift_means(mean), update_factor(self.factor, white, floor))

    def shift_means(self, steps: Tensor) -> Tensor:
        """The means after ``steps [K, D]`` in white coordinates."""
        shift: Tensor = torch.linalg.solve_triangular(self.factor.mT, steps.unsqueeze(-1), upper=False)
        return self.means + shift.squeeze(-1)


@final
class TiedComponents(_MatrixComponents):
    """One covariance matrix for all components; ``factor [D, D]``."""

    @staticmethod
    @override
    def factor_shape(n_components: int, n_features: int) -> tuple[int, ...]:
        return n_features, n_features

    @cached_property
    def _white_means(self) -> Tensor:
        """Relative to the center, ``[K, D]``."""
        return (self.means - self.center) @ self.factor

    @cached_property
    def _far_apart(self) -> bool:
        """Whether the scatter about the means would be lost in that about the center."""
        return bool(self._white_means.square().max() > EXPANSION_LIMIT)

    @override
    def whiten(self, x: Tensor) -> WhitenedRows:
        means, z = self._white_means, (x - self.center) @ self.factor
        distances = torch.cdist(means, z, compute_mode="donot_use_mm_for_euclid_dist").square_()

        def sums(r: Tensor) -> ComponentSums:
            count = r.sum(1)
            if self._far_apart:
                own = _matrix_sums(z.mT - means.unsqueeze(-1), r)
                return ComponentSums(count, own.first, own.second.sum(0))
            first = r @ z - count[:, None] * means
            cross = first.mT @ means
            second = z.mT @ z - cross - cross.mT - means.mT @ (count[:, None] * means)
            return ComponentSums(count, first, second)

        return WhitenedRows(distances, sums)

    @override
    def m_step(self, sums: ComponentSums, floor: float) -> Self:
        mean = sums.mean
        scatter = sums.second - sums.first.mT @ mean
        factor = update_factor(self.factor, scatter / sums.count.sum(), floor)
        return type(self)(self.means + _unwhiten(self.factor, mean), factor)


class _VarianceComponents(MixtureComponents):
    """Components with independent columns; ``factor`` is one over the standard deviations."""

    @classmethod
    @override
    def with_unit_covariance(cls, means: Tensor) -> Self:
        return cls(means, means.new_ones(cls.factor_shape(*means.shape)))

    @classmethod
    @override
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        if not bool((precisions > 0.0).all()):
            raise InputError(f"precisions_init must be above 0, got {float(precisions.min()):g}")
        return cls(means, precisions.sqrt())

    @property
    @override
    def min_variance(self) -> float:
        return float(self.covariances.min())

    @property
    @override
    def covariances(self) -> Tensor:
        return self.factor.square().reciprocal()

    @property
    @override
    def precisions(self) -> Tensor:
        return self.factor.square()

    @property
    @override
    def n_parameters(self) -> int:
        return self.factor.numel()

    @override
    def unwhiten(self, k: int, noise: Tensor) -> Tensor:
        return noise / self.factor[k]

    def _new_factor(self, white: Tensor, floor: float) -> Tensor:
        """The factor for variances ``white`` in white coordinates, raised to the ``floor``."""
        variances = (white / self.precisions).clamp_min(floor)
        if not bool((variances > 0.0).all()):
            raise InputError(
                "a variance is not above 0: a column is constant, or a component has shrunk onto one row; raise "
                "reg_covar, lower n_components or drop such columns"
            )
        return variances.sqrt().reciprocal()


@final
class DiagonalComponents(_VarianceComponents):
    """A variance per column and component; ``factor [K, D]``."""

    @staticmethod
    @override
    def factor_shape(n_components: int, n_features: int) -> tuple[int, ...]:
        return n_components, n_features

    @property
    @override
    def numbers_per_row(self) -> int:
        return self.means.numel() if self._narrow else 2 * self.means.shape[1] + len(self.means)

    @cached_property
    def _narrow(self) -> bool:
        """Whether a component is so narrow that p²(x − μ)² must not be expanded into powers of x."""
        extent = ((self.means - self.center).square() + self.covariances).amax(0)
        return bool((self.precisions * extent).max() > EXPANSION_LIMIT)

    @override
    def whiten(self, x: Tensor) -> WhitenedRows:
        return self._whiten_by_differences(x) if self._narrow else self._whiten_by_powers(x)

    def _whiten_by_differences(self, x: Tensor) -> WhitenedRows:
        p = self.factor.unsqueeze(-1)
        y = (x - self.center).mT * p - (self.means - self.center).unsqueeze(-1) * p
        squares = y.square()

        def sums(r: Tensor) -> ComponentSums:
            weights = r.unsqueeze(-1)
            return ComponentSums(r.sum(1), (y @ weights).squeeze(-1), (squares @ weights).squeeze(-1))

        return WhitenedRows(squares.sum(1), sums)

    def _whiten_by_powers(self, x: Tensor) -> WhitenedRows:
        """p²(z − m)² = p²z² − 2p²m z + p²m², with z and m relative to the center: two products for all components."""
        z, m, squares = x - self.center, self.means - self.center, self.factor.square()
        powers = torch.cat([z, z.square()], 1)
        matrix = torch.cat([-2.0 * squares * m, squares], 1)
        distances = torch.addmm((squares * m.square()).sum(1, keepdim=True), matrix, powers.mT)

        def sums(r: Tensor) -> ComponentSums:
            count = r.sum(1)
            first, second = (r @ powers).chunk(2, dim=1)
            offset = count[:, None] * m
            return ComponentSums(count, self.factor * (first - offset), squares * (second - m * (2.0 * first - offset)))

        return WhitenedRows(distances.clamp_min_(0.0), sums)

    @override
    def m_step(self, sums: ComponentSums, floor: float) -> Self:
        mean = sums.mean
        white = torch.where(sums.occupied, (sums.second - sums.first * mean) / sums.count[:, None], 1.0)
        return type(self)(self.means + mean / self.factor, self._new_factor(white, floor))

    @property
    @override
    def half_log_det(self) -> Tensor:
        return self.factor.log().sum(1)


@final
class SphericalComponents(_VarianceComponents):
    """One variance per component; ``factor [K]``."""

    @staticmethod
    @override
    def factor_shape(n_components: int, n_features: int) -> tuple[int, ...]:
        return (n_components,)

    @property
    @override
    def numbers_per_row(self) -> int:
        return 2 * self.means.shape[1] + len(self.means)

    @override
    def whiten(self, x: Tensor) -> WhitenedRows:
        z, m, p = x - self.center, self.means - self.center, self.factor[:, None]
        # from differences: exact also where a component is narrow
        distances = torch.cdist(m, z, compute_mode="donot_use_mm_for_euclid_dist").mul_(p).square_()

        def sums(r: Tensor) -> ComponentSums:
            count = r.sum(1)
            return ComponentSums(count, p * (r @ z - count[:, None] * m), (r * distances).sum(1))

        return WhitenedRows(distances, sums)

    @override
    def m_step(self, sums: ComponentSums, floor: float) -> Self:
        mean, size = sums.mean, self.means.shape[1]
        scatter = sums.second - (sums.first * mean).sum(1)
        white = torch.where(sums.occupied[:, 0], scatter / (size * sums.count), 1.0)
        return type(self)(self.means + mean / self.factor[:, None], self._new_factor(white, floor))

    @property
    @override
    def half_log_det(self) -> Tensor:
        return self.means.shape[1] * self.factor.log()


COVARIANCE_TYPES: dict[str, type[MixtureComponents]] = {
    "full": FullComponents,
    "tied": TiedComponents,
    "diag": DiagonalComponents,
    "spherical": SphericalComponents,
}


def update_factor(factor: Tensor, white: Tensor, floor: float) -> Tensor:
    """The factor of the precision of Σ′ = P⁻ᵀ C P⁻¹, with eigenvalues of Σ′ below ``floor`` raised to it.

    With C = GGᵀ this factor is P G⁻ᵀ. Σ′ itself is not formed: C is near the identity however flat Σ is.

    Args:
        factor: P, ``[..., D, D]``.
        white: C, the covariance in white coordinates, ``[..., D, D]``.
        floor: ε; at 0 a singular C is an error.
    """
    lower, failed = torch.linalg.cholesky_ex(white)
    _, below_floor = torch.linalg.cholesky_ex(white - floor * factor.mT @ factor)
    if floor > 0.0 and bool((failed + below_floor).any()):
        return _update_factor_with_floor(factor, white, floor)
    pivots, diagonal = (m.diagonal(dim1=-2, dim2=-1) for m in (lower, white))
    if bool(failed.any()) or not bool((pivots.square() > _ROUNDING * diagonal).all()):
        raise InputError(
            "a covariance is singular: columns are constant or repeat others, or a component has shrunk onto a few "
            "rows; raise reg_covar, lower n_components or drop such columns"
        )
    solved: Tensor = torch.linalg.solve_triangular(lower, factor.mT, upper=False)
    return solved.mT


def _update_factor_with_floor(factor: Tensor, white: Tensor, floor: float) -> Tensor:
    """``update_factor`` by the eigenvalues of Σ′: squared singular values of a root of it, which keep more digits."""
    values, vectors = torch.linalg.eigh(white)
    root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    axes, scales, _ = torch.linalg.svd(torch.linalg.solve_triangular(factor.mT, root, upper=False))
    precision_root = axes / scales.clamp_min(math.sqrt(floor)).unsqueeze(-2)
    _, upper = torch.linalg.qr(precision_root.flip(-2).mT)
    factor = upper.mT.flip(-1, -2)
    return factor * factor.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _upper_cholesky(precision: Tensor) -> Tensor:
    """The upper triangular P with PPᵀ = Λ, ``[..., D, D]``: a Cholesky factor with rows and columns reversed."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(precision.flip(-1, -2))
    if bool(failed.any()) or not torch.allclose(precision, precision.mT):
        raise InputError("precisions_init must be symmetric and positive definite, got a matrix that is not")
    return lower.flip(-1, -2)


def _matrix_sums(y: Tensor, r: Tensor) -> ComponentSums:
    """The sums of white rows ``y [K, D, b]`` with responsibilities ``r [K, b]``."""
    weighted = y * r.unsqueeze(1)
    return ComponentSums(r.sum(1), weighted.sum(2), weighted @ y.mT)


def _unwhiten(factor: Tensor, y: Tensor) -> Tensor:
    """P⁻ᵀ times each row of ``y [n, D]``."""
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, y.mT, upper=False)
    return solved.mT


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """abᵀ of vectors ``[..., D]``."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)
