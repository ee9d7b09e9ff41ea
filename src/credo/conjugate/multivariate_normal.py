"""Multivariate Gaussian observations: an unknown mean, with a known or an unknown covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Size, Tensor
from torch.distributions import Chi2, MultivariateNormal, Wishart
from typing_extensions import override

from credo._special import log_rising
from credo.conjugate.base import (
    ConjugatePair,
    TensorLike,
    check_all_positive,
    check_not_empty,
    mean_or_zero,
    to_observations,
    to_tensors,
)
from credo.conjugate.linear_gaussian import GaussianBelief, condition
from credo.conjugate.normal import MeanAndPrecision, MeanPrecisionDistribution
from credo.conjugate.student_t import MultivariateStudentT
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalKnownCovariance(ConjugatePair):
    """μ ~ N(m, V) and x ~ N(μ, Σ) with a known Σ. Data are real, ``[N, D]``.

        V′⁻¹ = V⁻¹ + NΣ⁻¹,    m′ = V′(V⁻¹m + NΣ⁻¹x̄)

    Args:
        mean: m, ``[D]``.
        covariance: V, the covariance of μ, ``[D, D]``.
        noise_covariance: Σ, ``[D, D]``.

    Raises:
        InputError: if the shapes do not match, or a covariance is not symmetric and positive definite.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, exercise 2.40.

    Example:
        >>> from credo.conjugate import NormalKnownCovariance
        >>> identity = [[1.0, 0.0], [0.0, 1.0]]
        >>> NormalKnownCovariance([0.0, 0.0], identity, identity).update([[2.0, 4.0]]).mean
        tensor([1.0000, 2.0000], dtype=torch.float64)
    """

    mean: Tensor
    covariance: Tensor
    noise_covariance: Tensor

    def __init__(self, mean: TensorLike, covariance: TensorLike, noise_covariance: TensorLike) -> None:
        mean, covariance, noise_covariance = to_tensors(
            mean=mean, covariance=covariance, noise_covariance=noise_covariance
        )
        _check_vector("mean", mean)
        _check_covariance(len(mean), covariance=covariance, noise_covariance=noise_covariance)
        self._store(mean=mean, covariance=covariance, noise_covariance=noise_covariance)

    @property
    def posterior(self) -> MultivariateNormal:
        """N(μ | m, V)."""
        return MultivariateNormal(self.mean, self.covariance)

    @property
    def predictive(self) -> MultivariateNormal:
        """N(x | m, V + Σ)."""
        return MultivariateNormal(self.mean, self.covariance + self.noise_covariance)

    @override
    def likelihood(self, parameters: Tensor) -> MultivariateNormal:
        return MultivariateNormal(parameters, self.noise_covariance)

    @staticmethod
    def maximum_likelihood(data: TensorLike, noise_covariance: TensorLike) -> MultivariateNormal:
        """Estimate μ by the sample mean; to estimate the covariance too, see :class:`NormalWishart`.

        Args:
            data: real vectors, ``[N, D]``.
            noise_covariance: Σ, ``[D, D]``.

        Returns:
            N(x | x̄, Σ).

        Raises:
            InputError: if there are no rows, or ``noise_covariance`` is not a covariance matrix.
        """
        (noise_covariance,) = to_tensors(noise_covariance=noise_covariance)
        _check_covariance(noise_covariance.shape[-1] if noise_covariance.ndim else 1, noise_covariance=noise_covariance)
        rows = check_not_empty(to_observations(data, noise_covariance.shape[-1:], noise_covariance.device))
        return MultivariateNormal(rows.mean(0), noise_covariance)

    def _read(self, data: TensorLike) -> Tensor:
        return to_observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        prior = GaussianBelief.from_precision(self.mean, torch.linalg.inv(self.covariance))
        noise_precision = torch.linalg.inv(self.noise_covariance)
        after = condition(prior, len(data) * noise_precision, noise_precision @ data.sum(0))
        return replace(self, mean=after.mean, covariance=after.covariance)

    def _log_evidence(self, data: Tensor) -> Tensor:
        """By a rotation of the rows: √N x̄ depends on μ, the other N − 1 directions are pure noise."""
        center = mean_or_zero(data)
        along = MultivariateNormal(torch.zeros_like(center), self.noise_covariance + len(data) * self.covariance)
        squares: Tensor = torch.linalg.solve(self.noise_covariance, _scatter(data - center)).trace()
        noise = (len(data) - 1) * torch.logdet(2.0 * math.pi * self.noise_covariance) + squares
        log_prob: Tensor = along.log_prob(math.sqrt(len(data)) * (center - self.mean))
        return log_prob - 0.5 * noise


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalWishart(ConjugatePair):
    """Λ ~ Wishart(W, ν), μ ~ N(m, (βΛ)⁻¹) and x ~ N(μ, Λ⁻¹). Data are real, ``[N, D]``.

        β′ = β + N,    m′ = m + (N/β′)(x̄ − m),    ν′ = ν + N,
        W′⁻¹ = W⁻¹ + Σ(x − x̄)(x − x̄)ᵀ + (βN/β′)(x̄ − m)(x̄ − m)ᵀ

    Args:
        mean: m, ``[D]``.
        mean_precision: β, the number of observations that the prior mean is worth, a positive number.
        degrees_of_freedom: ν, the number of observations that the prior covariance is worth, above D − 1.
        inverse_scale: W⁻¹, ``[D, D]``, their scatter matrix; E[Λ] = νW, so ν times a prior guess of the covariance.

    Raises:
        InputError: if the shapes do not match, ``inverse_scale`` is not symmetric and positive definite, or a number
            is out of its range.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equation 2.157.
        K. P. Murphy. Conjugate Bayesian analysis of the Gaussian distribution. 2007, section 8.

    Example:
        >>> from credo.conjugate import NormalWishart
        >>> pair = NormalWishart([0.0, 0.0], mean_precision=1, degrees_of_freedom=3, inverse_scale=[[3, 0], [0, 3]])
        >>> pair.update([[2.0, 4.0]]).mean.tolist()
        [1.0, 2.0]
    """

    mean: Tensor
    mean_precision: Tensor
    degrees_of_freedom: Tensor
    inverse_scale: Tensor

    def __init__(
        self,
        mean: TensorLike,
        mean_precision: TensorLike,
        degrees_of_freedom: TensorLike,
        inverse_scale: TensorLike,
    ) -> None:
        mean, mean_precision, degrees_of_freedom, inverse_scale = to_tensors(
            mean=mean,
            mean_precision=mean_precision,
            degrees_of_freedom=degrees_of_freedom,
            inverse_scale=inverse_scale,
        )
        _check_vector("mean", mean)
        for name, value in (("mean_precision", mean_precision), ("degrees_of_freedom", degrees_of_freedom)):
            if value.ndim:
                raise InputError(f"{name} must be one number, got shape {list(value.shape)}")
        check_all_positive(mean_precision=mean_precision)
        _check_covariance(len(mean), inverse_scale=inverse_scale)
        minimum = len(mean) - 1
        if degrees_of_freedom.item() <= minimum:
            raise InputError(f"degrees_of_freedom must be above D - 1 = {minimum}, got {degrees_of_freedom.item():g}")
        self._store(
            mean=mean,
            mean_precision=mean_precision,
            degrees_of_freedom=degrees_of_freedom,
            inverse_scale=inverse_scale,
        )

    @property
    def posterior(self) -> NormalWishartDistribution:
        """N(μ | m, (βΛ)⁻¹) Wishart(Λ | W, ν)."""
        return NormalWishartDistribution(self.mean, self.mean_precision, self.degrees_of_freedom, self.inverse_scale)

    @property
    def predictive(self) -> MultivariateStudentT:
        """Student's t with location m, ν + 1 − D degrees of freedom and scale W⁻¹(1 + 1/β) / (ν + 1 − D)."""
        df = self.degrees_of_freedom + 1.0 - len(self.mean)
        scale = self.inverse_scale * (1.0 + 1.0 / self.mean_precision) / df
        return MultivariateStudentT(df, self.mean, torch.linalg.cholesky(scale))

    @override
    def likelihood(self, parameters: MeanAndPrecision) -> MultivariateNormal:
        return MultivariateNormal(parameters.mean, precision_matrix=parameters.precision)

    @staticmethod
    def maximum_likelihood(data: TensorLike) -> MultivariateNormal:
        """Estimate mean and covariance (Bishop 2.121, 2.122); the covariance is divided by N, not N − 1.

        Args:
            data: real vectors, ``[N, D]``.

        Returns:
            N(x | x̄, Σ(x − x̄)(x − x̄)ᵀ/N).

        Raises:
            InputError: if the rows do not span all D dimensions about their mean.
        """
        rows = check_not_empty(to_observations(data))
        if rows.ndim != 2:
            raise InputError(f"data must have one observation per row, shape [N, D], got {list(rows.shape)}")
        centered = rows - rows.mean(0)
        if bool((rows == rows[0]).all(0).any()) or _rank(centered) < rows.shape[1]:
            raise InputError(
                f"data must span all {rows.shape[1]} dimensions about their mean for an estimate of the covariance, "
                f"got {len(rows)} rows that do not: add rows, or drop columns that repeat others"
            )
        return MultivariateNormal(rows.mean(0), _scatter(centered) / len(rows))

    def _read(self, data: TensorLike) -> Tensor:
        return to_observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        count = self.mean_precision + len(data)
        return replace(
            self,
            mean=self.mean + len(data) / count * (mean_or_zero(data) - self.mean),
            mean_precision=count,
            degrees_of_freedom=self.degrees_of_freedom + len(data),
            inverse_scale=self.inverse_scale + self._added_scatter(data),
        )

    def _log_evidence(self, data: Tensor) -> Tensor:
        rows, size = data.shape
        halves = 0.5 * (self.degrees_of_freedom - torch.arange(size, device=data.device))
        gammas = log_rising(halves, torch.full_like(halves, 0.5 * rows)).sum()
        mean = -0.5 * size * torch.log1p(rows / self.mean_precision)
        factor: Tensor = torch.linalg.cholesky(self.inverse_scale)
        half = torch.linalg.solve_triangular(factor, self._added_scatter(data), upper=False)
        white = torch.linalg.solve_triangular(factor, half.mT, upper=False)
        # log |W′⁻¹| − log |W⁻¹| without cancellation: ν, by which it is multiplied, may be large
        gain = torch.log1p(torch.linalg.eigvalsh(white).clamp(min=0.0)).sum()
        after = 2.0 * factor.diagonal().log().sum() + gain
        spread = 0.5 * (self.degrees_of_freedom * gain + rows * after + rows * size * math.log(math.pi))
        return gammas + mean - spread

    def _added_scatter(self, data: Tensor) -> Tensor:
        """W′⁻¹ − W⁻¹."""
        center = mean_or_zero(data)
        share = self.mean_precision * len(data) / (self.mean_precision + len(data))
        return _scatter(data - center) + share * torch.outer(center - self.mean, center - self.mean)


class NormalWishartDistribution(MeanPrecisionDistribution):
    """N(μ | m, (βΛ)⁻¹) Wishart(Λ | W, ν): draws, values and moments are pairs :class:`MeanAndPrecision`.

    Args:
        loc: m, ``[D]``.
        mean_precision: β.
        degrees_of_freedom: ν, above D − 1.
        inverse_scale: W⁻¹, ``[D, D]``.

    Example:
        >>> from credo.conjugate import NormalWishart
        >>> NormalWishart([0.0], 1, degrees_of_freedom=3, inverse_scale=[[2.0]]).posterior.mean.precision
        tensor([[1.5000]], dtype=torch.float64)
    """

    def __init__(self, loc: Tensor, mean_precision: Tensor, degrees_of_freedom: Tensor, inverse_scale: Tensor) -> None:
        super().__init__(loc, mean_precision, Wishart(degrees_of_freedom, precision_matrix=inverse_scale), Size())

    @property
    def variance(self) -> MeanAndPrecision:  # type: ignore[override]
        """The diagonal of W⁻¹/(β(ν − D − 1)), infinite for ν ≤ D + 1, and ν(WᵢⱼWᵢⱼ + WᵢᵢWⱼⱼ)."""
        excess = self._precision.df - len(self.loc) - 1.0
        spread = self._precision.precision_matrix.diagonal() / (self.mean_precision * excess)
        return MeanAndPrecision(torch.where(excess > 0.0, spread, torch.inf), self._precision.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> MeanAndPrecision:  # type: ignore[override]
        """Draw Λ, then μ given Λ.

        Λ = FFᵀ with F by Bartlett's decomposition, and μ = m + F⁻ᵀε/√β. (torch's Wishart sampler warns of singular
        matrices where there are none.)

        Args:
            sample_shape: shape of independent draws.

        Returns:
            μ, ``[*sample_shape, D]``, and Λ, ``[*sample_shape, D, D]``.
        """
        with torch.no_grad():
            factor = self._precision.scale_tril @ self._bartlett(sample_shape)
            noise = torch.randn(factor.shape[:-1], dtype=factor.dtype, device=factor.device).unsqueeze(-1)
            spread: Tensor = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
            mean = self.loc + spread.squeeze(-1) * self.mean_precision.rsqrt()
            return MeanAndPrecision(mean, factor @ factor.mT)

    def _mean_given(self, precision: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.loc, precision_matrix=self.mean_precision * precision)

    def _bartlett(self, sample_shape: Sequence[int]) -> Tensor:
        """The Cholesky factor of a draw from Wishart(I, ν): normals below a diagonal of √χ²(ν), √χ²(ν − 1), …."""
        size = len(self.loc)
        df = self._precision.df - torch.arange(size, device=self.loc.device)
        below = torch.randn((*sample_shape, size, size), dtype=self.loc.dtype, device=self.loc.device).tril(-1)
        return below + Chi2(df).sample(Size(sample_shape)).sqrt().diag_embed()


def _check_vector(name: str, vector: Tensor) -> None:
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{name} must be a vector [D], got shape {list(vector.shape)}")


def _check_covariance(size: int, **values: Tensor) -> None:
    """Raise ``InputError`` if a matrix is not ``[size, size]``, symmetric and positive definite."""
    for name, value in values.items():
        if value.shape != (size, size):
            raise InputError(f"{name} must have shape [{size}, {size}], got {list(value.shape)}")
        if not torch.allclose(value, value.mT) or bool(torch.linalg.cholesky_ex(value).info):
            raise InputError(f"{name} must be symmetric and positive definite, got {value.tolist()}")


def _scatter(centered: Tensor) -> Tensor:
    """Σ (x − x̄)(x − x̄)ᵀ, ``[D, D]``, of ``centered [N, D]``."""
    return centered.mT @ centered


def _rank(centered: Tensor) -> int:
    """The rank of columns of any scale."""
    return int(torch.linalg.matrix_rank(centered / centered.norm(dim=0)))
