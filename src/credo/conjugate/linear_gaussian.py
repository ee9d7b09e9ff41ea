"""Gaussians with linear-Gaussian observations y = Ax + b + noise: the algebra of regression, PPCA and filters."""

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
    """N(x | m, Λ⁻¹), stored as the Cholesky factor of its precision.

    Attributes:
        mean: m, ``[..., M]``; several means may share one precision.
        cholesky: the lower triangular L with LLᵀ = Λ, ``[..., M, M]``.

    Example:
        >>> import torch
        >>> from credo.conjugate import GaussianBelief
        >>> GaussianBelief.from_precision(torch.zeros(2), torch.diag(torch.tensor([4.0, 16.0]))).covariance.diagonal()
        tensor([0.2500, 0.0625])
    """

    mean: Tensor
    cholesky: Tensor

    @classmethod
    def from_precision(cls, mean: Tensor, precision: Tensor) -> GaussianBelief:
        """N(x | m, Λ⁻¹) from its precision.

        Args:
            mean: m, ``[..., M]``.
            precision: Λ, symmetric and positive definite, ``[..., M, M]``.

        Returns:
            The Gaussian.

        Raises:
            InputError: if ``precision`` is not positive definite.
        """
        return cls(mean, precision_factor(precision))

    @classmethod
    def isotropic(cls, size: int, precision: float, like: Tensor) -> GaussianBelief:
        """N(0, α⁻¹I).

        Args:
            size: M, the number of dimensions.
            precision: α, positive.
            like: tensor whose dtype and device are used.

        Returns:
            The Gaussian.
        """
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
        """The Gaussian as a torch distribution."""
        return MultivariateNormal(self.mean, covariance_matrix=self.covariance)

    def variance_along(self, directions: Tensor) -> Tensor:
        """The variance φᵀΛ⁻¹φ of φᵀx.

        Args:
            directions: one φ per row, ``[B, M]``.

        Returns:
            Variances, never negative, ``[B]``.
        """
        half: Tensor = torch.linalg.solve_triangular(self.cholesky, directions.mT, upper=False)
        return half.square().sum(-2)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw m + L⁻ᵀε with standard normal ε.

        Args:
            n: number of draws.
            generator: source of the random numbers; ``None`` for torch's default.

        Returns:
            Draws, ``[n, ..., M]``.
        """
        shape = (n, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        spread: Tensor = torch.linalg.solve_triangular(self.cholesky.mT, noise.unsqueeze(-1), upper=True)
        return self.mean + spread.squeeze(-1)


def precision_factor(precision: Tensor) -> Tensor:
    """The lower Cholesky factor of a precision ``[..., M, M]``; ``InputError`` if it is not positive definite."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(precision)
    if bool(failed.any()) or not bool(torch.isfinite(factor).all()):
        raise InputError(
            "a precision matrix is not positive definite: the data and the prior leave a direction undetermined; "
            "give the prior a larger precision, or drop columns that repeat others"
        )
    return factor


def condition(prior: GaussianBelief, gain: Tensor, shift: Tensor) -> GaussianBelief:
    """Condition a Gaussian on Gaussian observations that are linear in x (Bishop 2.116, 2.117).

        Λ′ = Λ + AᵀLA,    m′ = Λ′⁻¹ (Λm + AᵀL(y − b))

    The observations enter through two sums over them, so they may come in any order and in any number of batches.

    Args:
        prior: N(x | m, Λ⁻¹).
        gain: AᵀLA, ``[..., M, M]``.
        shift: AᵀL(y − b), ``[..., M]``.

    Returns:
        N(x | m′, Λ′⁻¹).

    Raises:
        InputError: if Λ′ is not positive definite.
    """
    factor = precision_factor(prior.precision + gain)
    information = (prior.precision @ prior.mean.unsqueeze(-1)).squeeze(-1) + shift
    if factor.ndim == 2:  # one precision for all means: one solve
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

    Example:
        >>> import torch
        >>> from credo.conjugate import GaussianBelief, LinearGaussian
        >>> prior = GaussianBelief.isotropic(1, precision=1.0, like=torch.zeros(1))
        >>> model = LinearGaussian(prior, matrix=torch.ones(1, 1), offset=torch.zeros(1), noise_precision=3.0)
        >>> model.posterior(torch.tensor([4.0])).mean
        tensor([3.])
    """

    prior: GaussianBelief
    matrix: Tensor
    offset: Tensor
    noise_precision: Tensor | float

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[1] != self.prior.mean.shape[-1]:
            raise InputError(
                f"matrix must have shape [D, {self.prior.mean.shape[-1]}] to match the prior, "
                f"got {list(self.matrix.shape)}"
            )
        if self.offset.shape != self.matrix.shape[:1]:
            raise InputError(f"offset must have shape [{len(self.matrix)}], got {list(self.offset.shape)}")

    @cached_property
    def marginal(self) -> MultivariateNormal:
        """p(y) = N(y | Am + b, L⁻¹ + AΛ⁻¹Aᵀ) (2.115)."""
        mean = self.prior.mean @ self.matrix.mT + self.offset
        return MultivariateNormal(mean, self._noise_covariance + self.matrix @ self.prior.covariance @ self.matrix.mT)

    def posterior(self, y: Tensor) -> GaussianBelief:
        """p(x | y) (2.116).

        Args:
            y: observations, ``[..., D]``.

        Returns:
            One mean per observation, ``[..., M]``, and one precision for all.
        """
        shift = self._shift(self._innovation(y))
        return GaussianBelief(self.prior.mean + shift.mean, shift.cholesky)

    def log_evidence(self, y: Tensor) -> Tensor:
        """log p(y), without a D × D matrix if the noise is diagonal.

        log p(y) = ½ (log|L| + log|Λ| − log|Λ′| − D log 2π − eᵀLe − (m′ − m)ᵀΛ(m′ − m)),    e = y − b − Am′

        Neither square is negative, so that nothing cancels if there is little noise.

        Args:
            y: observations, ``[..., D]``.

        Returns:
            The log evidence of each observation in nats, ``[...]``.
        """
        innovation = self._innovation(y)
        shift = self._shift(innovation)
        errors = innovation - shift.mean @ self.matrix.mT
        squares = (errors * self._weighted(errors.unsqueeze(-1)).squeeze(-1)).sum(-1)
        log_dets = self._log_det_noise_precision + self.prior.log_det_precision - shift.log_det_precision
        moved = GaussianBelief(shift.mean, self.prior.cholesky).quadratic
        return 0.5 * (log_dets - squares - moved - y.shape[-1] * math.log(2.0 * math.pi))

    def _innovation(self, y: Tensor) -> Tensor:
        """y − Am − b, the difference of ``y [..., D]`` from its prior mean."""
        return y - self.offset - self.prior.mean @ self.matrix.mT

    def _shift(self, innovation: Tensor) -> GaussianBelief:
        """p(x − m | y): relative to the prior mean, which may be large."""
        weighted = self._weighted(self.matrix)
        about_mean = GaussianBelief(torch.zeros_like(self.prior.mean), self.prior.cholesky)
        return condition(about_mean, self.matrix.mT @ weighted, innovation @ weighted)

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
