"""Components whose columns are independent: a variance for each column (diagonal), or one for all (spherical)."""

from __future__ import annotations

from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor

from credo.errors import InputError
from credo.mixture.components import FAR, Components, Measured, Sums


@final
class DiagonalComponents(Components):
    """A variance for each column of each component; ``factor [K, D]`` is one over the standard deviation."""

    @classmethod
    def unit(cls, means: Tensor) -> Self:
        """Variances of 1."""
        return cls(means, torch.ones_like(means))

    @classmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """One over the variances, ``[K, D]``."""
        return cls(means, _given_roots(precisions))

    @staticmethod
    def shape(components: int, features: int) -> tuple[int, ...]:
        """``[K, D]``."""
        return components, features

    @property
    def numbers_per_row(self) -> int:
        """Those of y in all components, or those of x, x² and the distances."""
        return self.means.numel() if self._narrow else 2 * self.means.shape[1] + len(self.means)

    @cached_property
    def _narrow(self) -> bool:
        """Whether a component is so narrow that p²(x − μ)² must not be taken apart into powers of x."""
        extent = ((self.means - self.center).square() + self.covariances).amax(0)
        return bool((self.precisions * extent).max() > FAR)

    def measure(self, x: Tensor) -> Measured:
        """By differences where some component is narrow, else by two products with all components at once."""
        return self._measure_differences(x) if self._narrow else self._measure_powers(x)

    def _measure_differences(self, x: Tensor) -> Measured:
        p = self.factor.unsqueeze(-1)
        y = (x - self.center).mT * p - (self.means - self.center).unsqueeze(-1) * p
        squares = y.square()

        def sums(r: Tensor) -> Sums:
            return Sums(r.sum(1), (y @ r.unsqueeze(-1)).squeeze(-1), (squares @ r.unsqueeze(-1)).squeeze(-1))

        return Measured(squares.sum(1), sums)

    def _measure_powers(self, x: Tensor) -> Measured:
        """p²(z − m)² = p²z² − 2p²m z + p²m², with z and m measured from the center."""
        z, m, squares = x - self.center, self.means - self.center, self.factor.square()
        powers = torch.cat([z, z.square()], 1)
        matrix = torch.cat([-2.0 * squares * m, squares], 1)
        distances = torch.addmm((squares * m.square()).sum(1, keepdim=True), matrix, powers.mT)

        def sums(r: Tensor) -> Sums:
            count = r.sum(1)
            first, second = (r @ powers).chunk(2, dim=1)
            offset = count[:, None] * m
            return Sums(count, self.factor * (first - offset), squares * (second - m * (2.0 * first - offset)))

        return Measured(distances.clamp_min_(0.0), sums)

    def updated(self, sums: Sums, floor: float) -> Self:
        """σ²_kd = scatter_kd / N_k, but no less than ε."""
        shift = sums.shift
        white = torch.where(sums.occupied, (sums.second - sums.first * shift) / sums.count[:, None], 1.0)
        variances = (white / self.precisions).clamp_min(floor)
        return type(self)(self.means + shift / self.factor, _roots(variances).reciprocal())

    @property
    def least_variance(self) -> float:
        """The smallest variance of any component."""
        return float(self.covariances.min())

    @property
    def half_log_det(self) -> Tensor:
        """Σ_d log p_kd."""
        return self.factor.log().sum(1)

    @property
    def covariances(self) -> Tensor:
        """The variances, ``[K, D]``."""
        return self.factor.square().reciprocal()

    @property
    def precisions(self) -> Tensor:
        """One over the variances, ``[K, D]``."""
        return self.factor.square()

    @property
    def free_parameters(self) -> int:
        """K D."""
        return self.means.numel()

    def color(self, k: int, noise: Tensor) -> Tensor:
        """σ_k times each row."""
        return noise / self.factor[k]


@final
class SphericalComponents(Components):
    """One variance for each component; ``factor [K]`` is one over the standard deviation."""

    @classmethod
    def unit(cls, means: Tensor) -> Self:
        """Variances of 1."""
        return cls(means, means.new_ones(len(means)))

    @classmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """One over the variances, ``[K]``."""
        return cls(means, _given_roots(precisions))

    @staticmethod
    def shape(components: int, features: int) -> tuple[int, ...]:
        """``[K]``."""
        return (components,)

    @property
    def numbers_per_row(self) -> int:
        """Those of x and of the distances."""
        return 2 * self.means.shape[1] + len(self.means)

    def measure(self, x: Tensor) -> Measured:
        """Distances from differences, exact also where a component is narrow."""
        z, m, p = x - self.center, self.means - self.center, self.factor[:, None]
        distances = torch.cdist(m, z, compute_mode="donot_use_mm_for_euclid_dist").mul_(p).square_()

        def sums(r: Tensor) -> Sums:
            count = r.sum(1)
            return Sums(count, p * (r @ z - count[:, None] * m), (r * distances).sum(1))

        return Measured(distances, sums)

    def updated(self, sums: Sums, floor: float) -> Self:
        """σ²_k = Σ_d scatter_kd / (D N_k), but no less than ε."""
        shift, size = sums.shift, self.means.shape[1]
        scatter = sums.second - (sums.first * shift).sum(1)
        white = torch.where(sums.occupied[:, 0], scatter / (size * sums.count), 1.0)
        variances = (white / self.precisions).clamp_min(floor)
        return type(self)(self.means + shift / self.factor[:, None], _roots(variances).reciprocal())

    @property
    def least_variance(self) -> float:
        """The smallest variance of any component."""
        return float(self.covariances.min())

    @property
    def half_log_det(self) -> Tensor:
        """D log p_k."""
        return self.means.shape[1] * self.factor.log()

    @property
    def covariances(self) -> Tensor:
        """The variances, ``[K]``."""
        return self.factor.square().reciprocal()

    @property
    def precisions(self) -> Tensor:
        """One over the variances, ``[K]``."""
        return self.factor.square()

    @property
    def free_parameters(self) -> int:
        """K."""
        return len(self.means)

    def color(self, k: int, noise: Tensor) -> Tensor:
        """σ_k times each row."""
        return noise / self.factor[k]


def _roots(variances: Tensor) -> Tensor:
    """Square roots of what must be above 0."""
    if not bool((variances > 0.0).all()):
        raise InputError(
            "a variance is not above 0: a column is constant, or a component has shrunk onto one row; raise "
            "reg_covar, lower n_components or drop such columns"
        )
    return variances.sqrt()


def _given_roots(precisions: Tensor) -> Tensor:
    if not bool((precisions > 0.0).all()):
        raise InputError(f"precisions_init must be above 0, got {float(precisions.min()):g}")
    return precisions.sqrt()
