"""Real numbers around an unknown mean, with an unknown variance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Normal

from credo._special import log_rising
from credo.conjugate._arguments import Numbers, numbers, observations, require_positive, require_rows, together
from credo.conjugate._moments import mean_and_squares
from credo.conjugate.base import ConjugatePair
from credo.conjugate.joint import MeanAndPrecision, NormalGammaDistribution
from credo.conjugate.predictives import PreciseStudentT
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalGamma(ConjugatePair):
    """λ ~ Gamma(a, b), μ ~ N(m, 1/βλ) and x ~ N(μ, 1/λ). Data are real, ``[N, ...]``.

        β′ = β + N,    m′ = m + (N/β′)(x̄ − m),    a′ = a + N/2,
        b′ = b + ½ Σ(x − x̄)² + ½ (βN/β′)(x̄ − m)²

    Attributes:
        mean: m, ``[...]``.
        mean_precision: β: how many observations the mean is worth.
        shape: a: half as many as the variance is worth.
        rate: b: half their sum of squares.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equations 2.153 and 2.154.
        K. P. Murphy. Conjugate Bayesian analysis of the Gaussian distribution. 2007, section 3.
    """

    mean: Tensor
    mean_precision: Tensor
    shape: Tensor
    rate: Tensor

    def __init__(self, mean: Numbers, mean_precision: Numbers, shape: Numbers, rate: Numbers) -> None:
        mean, mean_precision, shape, rate = numbers(mean=mean, mean_precision=mean_precision, shape=shape, rate=rate)
        require_positive(mean_precision=mean_precision, shape=shape, rate=rate)
        mean, mean_precision, shape, rate = together(mean=mean, mean_precision=mean_precision, shape=shape, rate=rate)
        self._store(mean=mean, mean_precision=mean_precision, shape=shape, rate=rate)

    @property
    def posterior(self) -> NormalGammaDistribution:
        """N(μ | m, 1/βλ) Gamma(λ | a, b)."""
        return NormalGammaDistribution(self.mean, self.mean_precision, self.shape, self.rate)

    @property
    def predictive(self) -> PreciseStudentT:
        """Student's t with 2a degrees of freedom about m, of scale² (b/a)(1 + 1/β)."""
        square = self.rate / self.shape * (1.0 + 1.0 / self.mean_precision)
        return PreciseStudentT(2.0 * self.shape, self.mean, square.sqrt())

    def likelihood(self, parameters: MeanAndPrecision) -> Normal:
        """N(x | μ, 1/λ)."""
        return Normal(parameters.mean, parameters.precision.rsqrt())

    @staticmethod
    def maximum_likelihood(data: Numbers) -> Normal:
        """N(x | x̄, Σ(x − x̄)²/N) (Bishop 1.55, 1.56) of ``data [N, ...]``; the variance is divided by N, not N − 1."""
        rows = require_rows(observations(data))
        center, squares = mean_and_squares(rows)
        if bool((rows == rows[0]).all(0).any()):
            raise InputError("data must differ for an estimate of their variance, got one value throughout")
        return Normal(center, (squares / len(rows)).sqrt())

    def _read(self, data: Numbers) -> Tensor:
        return observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        center, _ = mean_and_squares(data)
        count = self.mean_precision + len(data)
        return replace(
            self,
            mean=self.mean + len(data) / count * (center - self.mean),
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
        center, squares = mean_and_squares(data)
        share = self.mean_precision * len(data) / (self.mean_precision + len(data))
        return 0.5 * (squares + share * (center - self.mean).square())
