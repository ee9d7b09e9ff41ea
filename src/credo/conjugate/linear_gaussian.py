"""Gaussian beliefs about x, and what y = Ax + b + noise says of it: regression, PPCA and filters are this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from credo.errors import InputError


@dataclass(frozen=True, eq=False)
class GaussianBelief:
    """N(x | m, Λ⁻¹), by the Cholesky factor of its precision.

    Attributes:
        mean: m, ``[..., M]``; several beliefs may share one precision.
        cholesky: the lower triangular L with LLᵀ = Λ, ``[..., M, M]``.
    """

    mean: Tensor
    cholesky: Tensor

    @classmethod
    def from_precision(cls, mean: Tensor, precision: Tensor) -> GaussianBelief:
        """N(x | m, Λ⁻¹) by Λ itself, symmetric and positive definite, ``[..., M, M]``."""
        return cls(mean, precision_factor(precision))

    @classmethod
    def isotropic(cls, size: int, precision: float, like: Tensor) -> GaussianBelief:
        """N(0, α⁻¹I) in the dtype and on the device of ``like``."""
        identity = torch.eye(size, dtype=like.dtype, device=like.device)
        return cls(identity.new_zeros(size), math.sqrt(precision) * identity)

    @cached_property
    def precision(self) -> Tensor:
        """Λ, ``[..., M, M]``."""
        return self.cholesky @ self.cholesky.mT

    @cached_property
    def covariance(self) -> Tensor:
        """Λ⁻¹, ``[..., M, M]``."""
        return torch.cholesky_inverse(self.cholesky)

    @cached_property
    def log_det_precision(self) -> Tensor:
        """log |Λ|, ``[...]``."""
        diagonal: Tensor = self.cholesky.diagonal(dim1=-2, dim2=-1)
        return 2.0 * diagonal.log().sum(-1)

    @property
    def quadratic(self) -> Tensor:
        """mᵀΛm, ``[...]``."""
        if self.cholesky.ndim == 2:
            return (self.mean @ self.cholesky).square().sum(-1)
        return (self.cholesky.mT @ self.mean.unsqueeze(-1)).squeeze(-1).square().sum(-1)

    @property
    def distribution(self) -> MultivariateNormal:
        """The belief as a torch distribution."""
        return MultivariateNormal(self.mean, covariance_matrix=self.covariance)

    def variance_along(self, directions: Tensor) -> Tensor:
        """φᵀΛ⁻¹φ of each row φ of ``directions [B, M]``, never negative, ``[B]``."""
        half: Tensor = torch.linalg.solve_triangular(self.cholesky, directions.mT, upper=False)
        return half.square().sum(-2)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws, ``[n, ..., M]``: m + L⁻ᵀε."""
        shape = (n, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        spread: Tensor = torch.linalg.solve_triangular(self.cholesky.mT, noise.unsqueeze(-1), upper=True)
        return self.mean + spread.squeeze(-1)


def precision_factor(precision: Tensor) -> Tensor:
    """The Cholesky factor of a precision matrix, or an error that says what leaves a direction undetermined."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(precision)
    if bool(failed.any()) or not bool(torch.isfinite(factor).all()):
        raise InputError(
            "a precision matrix is not positive definite: the data and the prior leave a direction undetermined; "
            "give the prior a larger precision, or drop columns that repeat others"
        )
    return factor


def condition(prior: GaussianBelief, gain: Tensor, shift: Tensor) -> GaussianBelief:
    """The belief after Gaussian observations that are linear in x (Bishop 2.116, 2.117).

        Λ′ = Λ + AᵀLA,    m′ = Λ′⁻¹ (Λm + AᵀL(y − b))

    All that the observations say is in two sums over them, so they may come in any order and any number of pieces.

    Args:
        prior: N(x | m, Λ⁻¹).
        gain: AᵀLA, ``[..., M, M]``.
        shift: AᵀL(y − b), ``[..., M]``.
    """
    factor = precision_factor(prior.precision + gain)
    information = (prior.precision @ prior.mean.unsqueeze(-1)).squeeze(-1) + shift
    if factor.ndim == 2:  # one precision for all beliefs: all means in one solve
        solved = torch.cholesky_solve(torch.atleast_2d(information).flatten(0, -2).mT, factor)
        return GaussianBelief(solved.mT.reshape(information.shape), factor)
    return GaussianBelief(torch.cholesky_solve(information.unsqueeze(-1), factor).squeeze(-1), factor)


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """p(x) = N(x | m, Λ⁻¹) and p(y | x) = N(y | Ax + b, L⁻¹).

    Attributes:
        prior: p(x), M dimensions.
        matrix: A, ``[D, M]``.
        offset: b, ``[D]``.
        noise_precision: L: a number (or tensor ``[]``) for L = βI, ``[D]`` for a diagonal, or ``[D, D]``.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.3.3, equations 2.113–2.117.
    """

    prior: GaussianBelief
    matrix: Tensor
    offset: Tensor
    noise_precision: Tensor | float

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[1] != self.prior.mean.shape[-1]:
            raise InputError(
                f"matrix must map the {self.prior.mean.shape[-1]} dimensions of the prior, "
                f"shape [D, {self.prior.mean.shape[-1]}], got {list(self.matrix.shape)}"
            )
        if self.offset.shape != self.matrix.shape[:1]:
            raise InputError(f"offset must have shape [{len(self.matrix)}], got {list(self.offset.shape)}")

    @cached_property
    def marginal(self) -> MultivariateNormal:
        """p(y) = N(y | Am + b, L⁻¹ + AΛ⁻¹Aᵀ) (2.115)."""
        mean = self.prior.mean @ self.matrix.mT + self.offset
        return MultivariateNormal(mean, self._noise_covariance + self.matrix @ self.prior.covariance @ self.matrix.mT)

    def posterior(self, y: Tensor) -> GaussianBelief:
        """p(x | y) of each row of ``y [..., D]`` (2.116); all rows share the precision."""
        shift = self._shift(self._surprise(y))
        return GaussianBelief(self.prior.mean + shift.mean, shift.cholesky)

    def log_evidence(self, y: Tensor) -> Tensor:
        """log p(y) of each row of ``y [..., D]``, without a D × D matrix where the noise is diagonal, ``[...]``.

        log p(y) = ½ (log|L| + log|Λ| − log|Λ′| − D log 2π − eᵀLe − (m′ − m)ᵀΛ(m′ − m)),    e = y − b − Am′

        Neither square is negative, so that nothing cancels where there is little noise.
        """
        surprise = self._surprise(y)
        shift = self._shift(surprise)
        errors = surprise - shift.mean @ self.matrix.mT
        squares = (errors * self._weighted(errors.unsqueeze(-1)).squeeze(-1)).sum(-1)
        log_dets = self._log_det_noise_precision + self.prior.log_det_precision - shift.log_det_precision
        moved = GaussianBelief(shift.mean, self.prior.cholesky).quadratic
        return 0.5 * (log_dets - squares - moved - y.shape[-1] * math.log(2.0 * math.pi))

    def _surprise(self, y: Tensor) -> Tensor:
        """What the prior does not expect of ``y [..., D]``: y − Am − b."""
        return y - self.offset - self.prior.mean @ self.matrix.mT

    def _shift(self, surprise: Tensor) -> GaussianBelief:
        """p(x − m | y), about the mean of the prior, which may be large."""
        weighted = self._weighted(self.matrix)
        about_mean = GaussianBelief(torch.zeros_like(self.prior.mean), self.prior.cholesky)
        return condition(about_mean, self.matrix.mT @ weighted, surprise @ weighted)

    @property
    def _noise(self) -> Tensor:
        return torch.as_tensor(self.noise_precision, dtype=self.matrix.dtype, device=self.matrix.device)

    def _weighted(self, columns: Tensor) -> Tensor:
        """L times ``columns [..., D, C]``."""
        noise = self._noise
        if noise.ndim == 2:
            return noise @ columns
        return noise.unsqueeze(-1) * columns if noise.ndim else noise * columns

    @property
    def _noise_covariance(self) -> Tensor:
        noise = self._noise
        if noise.ndim == 2:
            return torch.cholesky_inverse(precision_factor(noise))
        return torch.diag(noise.reciprocal().expand(len(self.matrix)))

    @property
    def _log_det_noise_precision(self) -> Tensor:
        noise = self._noise
        return torch.logdet(noise) if noise.ndim == 2 else noise.log().expand(len(self.matrix)).sum()
