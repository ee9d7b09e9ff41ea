"""Real vectors around an unknown mean, with an unknown covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from credo._special import log_rising
from credo.conjugate._arguments import (
    Numbers,
    numbers,
    observations,
    require_covariance,
    require_positive,
    require_rows,
    require_scalar,
    require_vector,
)
from credo.conjugate._moments import mean_and_scatter
from credo.conjugate.base import ConjugatePair
from credo.conjugate.joint import MeanAndPrecision, NormalWishartDistribution
from credo.conjugate.predictives import MultivariateStudentT
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalWishart(ConjugatePair):
    """Λ ~ Wishart(W, ν), μ ~ N(m, (βΛ)⁻¹) and x ~ N(μ, Λ⁻¹). Data are real, ``[N, D]``.

        β′ = β + N,    m′ = m + (N/β′)(x̄ − m),    ν′ = ν + N,
        W′⁻¹ = W⁻¹ + Σ(x − x̄)(x − x̄)ᵀ + (βN/β′)(x̄ − m)(x̄ − m)ᵀ

    Attributes:
        mean: m, ``[D]``.
        mean_precision: β: how many observations the mean is worth.
        degrees_of_freedom: ν, above D − 1: how many the covariance is worth.
        inverse_scale: W⁻¹, ``[D, D]``: their scatter, so that E[Λ] = νW; ν times a covariance that is believed in.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equation 2.157.
        K. P. Murphy. Conjugate Bayesian analysis of the Gaussian distribution. 2007, section 8.
    """

    mean: Tensor
    mean_precision: Tensor
    degrees_of_freedom: Tensor
    inverse_scale: Tensor

    def __init__(
        self, mean: Numbers, mean_precision: Numbers, degrees_of_freedom: Numbers, inverse_scale: Numbers
    ) -> None:
        mean, mean_precision, degrees_of_freedom, inverse_scale = numbers(
            mean=mean,
            mean_precision=mean_precision,
            degrees_of_freedom=degrees_of_freedom,
            inverse_scale=inverse_scale,
        )
        require_vector("mean", mean)
        require_scalar(mean_precision=mean_precision, degrees_of_freedom=degrees_of_freedom)
        require_positive(mean_precision=mean_precision)
        require_covariance(len(mean), inverse_scale=inverse_scale)
        if degrees_of_freedom.item() <= len(mean) - 1:
            raise InputError(
                f"degrees_of_freedom must be above D - 1 = {len(mean) - 1}, got {degrees_of_freedom.item():g}"
            )
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
        """Student's t with ν + 1 − D degrees of freedom about m, of scale W⁻¹(1 + 1/β) / (ν + 1 − D)."""
        freedom = self.degrees_of_freedom + 1.0 - len(self.mean)
        scale = self.inverse_scale * (1.0 + 1.0 / self.mean_precision) / freedom
        return MultivariateStudentT(freedom, self.mean, torch.linalg.cholesky(scale))

    def likelihood(self, parameters: MeanAndPrecision) -> MultivariateNormal:
        """N(x | μ, Λ⁻¹)."""
        return MultivariateNormal(parameters.mean, precision_matrix=parameters.precision)

    @staticmethod
    def maximum_likelihood(data: Numbers) -> MultivariateNormal:
        """N(x | x̄, Σ(x − x̄)(x − x̄)ᵀ/N) (Bishop 2.121, 2.122) of ``data [N, D]``; divided by N, not N − 1."""
        rows = require_rows(observations(data))
        if rows.ndim != 2:
            raise InputError(f"data must hold one observation a row, shape [N, D], got {list(rows.shape)}")
        center, scatter = mean_and_scatter(rows)
        if bool((rows == rows[0]).all(0).any()) or _rank(rows - center) < rows.shape[1]:
            raise InputError(
                f"data must span all {rows.shape[1]} dimensions about their mean for an estimate of the covariance, "
                f"got {len(rows)} rows that do not: add rows, or drop columns that repeat others"
            )
        return MultivariateNormal(center, scatter / len(rows))

    def _read(self, data: Numbers) -> Tensor:
        return observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        center, _ = mean_and_scatter(data)
        count = self.mean_precision + len(data)
        return replace(
            self,
            mean=self.mean + len(data) / count * (center - self.mean),
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
        # log |W′⁻¹| − log |W⁻¹|, of which a strong prior takes a large multiple
        gain = torch.log1p(torch.linalg.eigvalsh(white).clamp(min=0.0)).sum()
        after = 2.0 * factor.diagonal().log().sum() + gain
        spread = 0.5 * (self.degrees_of_freedom * gain + rows * after + rows * size * math.log(math.pi))
        return gammas + mean - spread

    def _added_scatter(self, data: Tensor) -> Tensor:
        """W′⁻¹ − W⁻¹."""
        center, scatter = mean_and_scatter(data)
        share = self.mean_precision * len(data) / (self.mean_precision + len(data))
        return scatter + share * torch.outer(center - self.mean, center - self.mean)


def _rank(centered: Tensor) -> int:
    """The rank of columns of any scale."""
    return int(torch.linalg.matrix_rank(centered / centered.norm(dim=0)))
