"""Univariate Gaussian observations: an unknown mean, with a known or an unknown variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Gamma, Normal, StudentT
from torch.distributions.constraints import Constraint
from typing_extensions import override

from credo._special import log_rising
from credo.conjugate.base import (
    ConjugatePair,
    TensorLike,
    broadcast_hyperparameters,
    check_all_positive,
    check_not_empty,
    mean_or_zero,
    to_observations,
    to_tensors,
)
from credo.conjugate.student_t import PreciseStudentT
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalKnownVariance(ConjugatePair):
    """μ ~ N(m, v) and x ~ N(μ, σ²) with a known σ². Data are real, ``[N, ...]``.

        1/v′ = 1/v + N/σ²,    m′ = m + (v′N/σ²)(x̄ − m)

    Args:
        mean: m, ``[...]``.
        variance: v, the variance of μ, positive, ``[...]``.
        noise_variance: σ², positive, ``[...]``.

    Raises:
        InputError: if a variance is not positive and finite, or the shapes do not broadcast.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equations 2.141 and 2.142.

    Example:
        >>> from credo.conjugate import NormalKnownVariance
        >>> NormalKnownVariance(mean=0, variance=1, noise_variance=2).update([1.0, 3.0])
        NormalKnownVariance(mean=1, variance=0.5, noise_variance=2)
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor

    def __init__(self, mean: TensorLike, variance: TensorLike, noise_variance: TensorLike) -> None:
        positive = ("variance", "noise_variance")
        self._store(**broadcast_hyperparameters(positive, mean=mean, variance=variance, noise_variance=noise_variance))

    @property
    def posterior(self) -> Normal:
        """N(μ | m, v)."""
        return Normal(self.mean, self.variance.sqrt())

    @property
    def predictive(self) -> Normal:
        """N(x | m, v + σ²)."""
        return Normal(self.mean, (self.variance + self.noise_variance).sqrt())

    @override
    def likelihood(self, parameters: Tensor) -> Normal:
        return Normal(parameters, self.noise_variance.sqrt())

    @staticmethod
    def maximum_likelihood(data: TensorLike, noise_variance: TensorLike) -> Normal:
        """Estimate μ by the sample mean; to estimate the variance too, see :class:`NormalGamma`.

        Args:
            data: real numbers, ``[N, ...]``.
            noise_variance: σ², positive, ``[...]``.

        Returns:
            N(x | x̄, σ²).

        Raises:
            InputError: if there are no rows, or ``noise_variance`` is not positive.
        """
        rows = check_not_empty(to_observations(data))
        (noise_variance,) = to_tensors(noise_variance=noise_variance)
        check_all_positive(noise_variance=noise_variance)
        return Normal(rows.mean(0), noise_variance.sqrt().to(rows.device))

    def _read(self, data: TensorLike) -> Tensor:
        return to_observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        total = len(data) * self.variance + self.noise_variance
        mean = self.mean + len(data) * self.variance / total * (mean_or_zero(data) - self.mean)
        return replace(self, mean=mean, variance=self.variance * (self.noise_variance / total))

    def _log_evidence(self, data: Tensor) -> Tensor:
        """By a rotation of the data: √N x̄ depends on μ, the other N − 1 directions are pure noise."""
        center = mean_or_zero(data)
        squares = (data - center).square().sum(0)
        along = Normal(0.0, (self.noise_variance + len(data) * self.variance).sqrt())
        noise = (len(data) - 1) * (2.0 * math.pi * self.noise_variance).log() + squares / self.noise_variance
        log_prob: Tensor = along.log_prob(math.sqrt(len(data)) * (center - self.mean))
        return log_prob - 0.5 * noise


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalGamma(ConjugatePair):
    """λ ~ Gamma(a, b), μ ~ N(m, 1/βλ) and x ~ N(μ, 1/λ). Data are real, ``[N, ...]``.

        β′ = β + N,    m′ = m + (N/β′)(x̄ − m),    a′ = a + N/2,
        b′ = b + ½ Σ(x − x̄)² + ½ (βN/β′)(x̄ − m)²

    Args:
        mean: m, ``[...]``.
        mean_precision: β, the number of observations that the prior mean is worth, positive, ``[...]``.
        shape: a, half the number of observations that the prior variance is worth, positive, ``[...]``.
        rate: b, half their sum of squares, positive, ``[...]``.

    Raises:
        InputError: if a hyperparameter other than ``mean`` is not positive, one is not finite, or the shapes do not
            broadcast.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equations 2.153 and 2.154.
        K. P. Murphy. Conjugate Bayesian analysis of the Gaussian distribution. 2007, section 3.

    Example:
        >>> from credo.conjugate import NormalGamma
        >>> NormalGamma(mean=0, mean_precision=1, shape=2, rate=1).update([1.0, 2.0, 3.0])
        NormalGamma(mean=1.5, mean_precision=4, shape=3.5, rate=3.5)
    """

    mean: Tensor
    mean_precision: Tensor
    shape: Tensor
    rate: Tensor

    def __init__(self, mean: TensorLike, mean_precision: TensorLike, shape: TensorLike, rate: TensorLike) -> None:
        positive = ("mean_precision", "shape", "rate")
        self._store(
            **broadcast_hyperparameters(positive, mean=mean, mean_precision=mean_precision, shape=shape, rate=rate)
        )

    @property
    def posterior(self) -> NormalGammaDistribution:
        """N(μ | m, 1/βλ) Gamma(λ | a, b)."""
        return NormalGammaDistribution(self.mean, self.mean_precision, self.shape, self.rate)

    @property
    def predictive(self) -> StudentT:
        """Student's t with location m, 2a degrees of freedom and squared scale (b/a)(1 + 1/β)."""
        squared_scale = self.rate / self.shape * (1.0 + 1.0 / self.mean_precision)
        return PreciseStudentT(2.0 * self.shape, self.mean, squared_scale.sqrt())

    @override
    def likelihood(self, parameters: MeanAndPrecision) -> Normal:
        return Normal(parameters.mean, parameters.precision.rsqrt())

    @staticmethod
    def maximum_likelihood(data: TensorLike) -> Normal:
        """Estimate mean and variance (Bishop 1.55, 1.56); the variance is divided by N, not N − 1.

        Args:
            data: real numbers, ``[N, ...]``.

        Returns:
            N(x | x̄, Σ(x − x̄)²/N).

        Raises:
            InputError: if there are no rows, or all are equal.
        """
        rows = check_not_empty(to_observations(data))
        if bool((rows == rows[0]).all(0).any()):
            raise InputError("data must have different values for an estimate of the variance, got a constant")
        return Normal(rows.mean(0), rows.std(0, correction=0))

    def _read(self, data: TensorLike) -> Tensor:
        return to_observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        count = self.mean_precision + len(data)
        return replace(
            self,
            mean=self.mean + len(data) / count * (mean_or_zero(data) - self.mean),
            mean_precision=count,
            shape=self.shape + 0.5 * len(data),
            rate=self.rate + self._added_rate(data),
        )

    def _log_evidence(self, data: Tensor) -> Tensor:
        half, added = 0.5 * len(data), self._added_rate(data)
        mean = -0.5 * torch.log1p(len(data) / self.mean_precision)
        spread = self.shape * torch.log1p(added / self.rate) + half * (2.0 * math.pi * (self.rate + added)).log()
        return log_rising(self.shape, torch.full_like(self.shape, half)) + mean - spread

    def _added_rate(self, data: Tensor) -> Tensor:
        """b′ − b."""
        center = mean_or_zero(data)
        share = self.mean_precision * len(data) / (self.mean_precision + len(data))
        return 0.5 * ((data - center).square().sum(0) + share * (center - self.mean).square())


class MeanAndPrecision(NamedTuple):
    """The parameters of a Gaussian.

    Attributes:
        mean: μ, ``[...]``; for vectors ``[..., D]``.
        precision: λ = 1/σ², ``[...]``; for vectors a matrix Λ, ``[..., D, D]``.

    Example:
        >>> import torch
        >>> from credo.conjugate import MeanAndPrecision
        >>> MeanAndPrecision(mean=torch.tensor(0.0), precision=torch.tensor(4.0)).precision
        tensor(4.)
    """

    mean: Tensor
    precision: Tensor


class MeanPrecisionDistribution(Distribution):
    """p(μ | λ) p(λ): draws, values and moments are pairs :class:`MeanAndPrecision`.

    Args:
        loc: m, the mean of μ.
        mean_precision: β, by which λ is multiplied in the precision of μ.
        precision: p(λ).
        batch_shape: of the distribution.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, loc: Tensor, mean_precision: Tensor, precision: Distribution, batch_shape: Size) -> None:
        self.loc, self.mean_precision = loc, mean_precision
        self._precision: Any = precision
        super().__init__(batch_shape)

    @property
    def mean(self) -> MeanAndPrecision:  # type: ignore[override]
        """m and E[λ]."""
        return MeanAndPrecision(self.loc, self._precision.mean)

    def log_prob(self, value: MeanAndPrecision) -> Tensor:  # type: ignore[override]
        """log p(λ) + log p(μ | λ).

        Args:
            value: μ and λ.

        Returns:
            The log density of each pair.
        """
        mean, precision = value
        log_prob: Tensor = self._precision.log_prob(precision) + self._mean_given(precision).log_prob(mean)
        return log_prob

    def _mean_given(self, precision: Tensor) -> Distribution:
        """p(μ | λ)."""
        raise NotImplementedError


class NormalGammaDistribution(MeanPrecisionDistribution):
    """N(μ | m, 1/βλ) Gamma(λ | a, b): draws, values and moments are pairs :class:`MeanAndPrecision`.

    Args:
        loc: m, ``[...]``.
        mean_precision: β, ``[...]``.
        shape: a, ``[...]``.
        rate: b, ``[...]``.

    Example:
        >>> from credo.conjugate import NormalGamma
        >>> NormalGamma(mean=0, mean_precision=1, shape=3, rate=2).posterior.mean.precision.item()
        1.5
    """

    def __init__(self, loc: Tensor, mean_precision: Tensor, shape: Tensor, rate: Tensor) -> None:
        super().__init__(loc, mean_precision, Gamma(shape, rate), loc.shape)

    @property
    def variance(self) -> MeanAndPrecision:  # type: ignore[override]
        """b/(β(a − 1)), infinite for a ≤ 1, and a/b²."""
        shape, rate = self._precision.concentration, self._precision.rate
        spread = rate / (self.mean_precision * (shape - 1.0))
        return MeanAndPrecision(torch.where(shape > 1.0, spread, torch.inf), self._precision.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> MeanAndPrecision:  # type: ignore[override]
        """Draw λ, then μ given λ.

        Args:
            sample_shape: shape of independent draws.

        Returns:
            μ and λ, ``[*sample_shape, ...]`` each.
        """
        precision = self._precision.sample(Size(sample_shape))
        return MeanAndPrecision(self._mean_given(precision).sample(), precision)

    def _mean_given(self, precision: Tensor) -> Normal:
        return Normal(self.loc, (self.mean_precision * precision).rsqrt())
