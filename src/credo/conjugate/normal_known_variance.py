"""Real numbers around an unknown mean, with a variance that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.distributions import Normal

from credo.conjugate._arguments import Numbers, numbers, observations, require_positive, require_rows, together
from credo.conjugate._moments import mean_and_squares
from credo.conjugate.base import ConjugatePair


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NormalKnownVariance(ConjugatePair):
    """μ ~ N(m, v) and x ~ N(μ, σ²) with a known σ². Data are real, ``[N, ...]``.

        1/v′ = 1/v + N/σ²,    m′ = m + (v′N/σ²)(x̄ − m)

    Attributes:
        mean: m, ``[...]``.
        variance: v, of the belief about μ.
        noise_variance: σ².

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, equations 2.141 and 2.142.
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor

    def __init__(self, mean: Numbers, variance: Numbers, noise_variance: Numbers) -> None:
        mean, variance, noise_variance = numbers(mean=mean, variance=variance, noise_variance=noise_variance)
        require_positive(variance=variance, noise_variance=noise_variance)
        mean, variance, noise_variance = together(mean=mean, variance=variance, noise_variance=noise_variance)
        self._store(mean=mean, variance=variance, noise_variance=noise_variance)

    @property
    def posterior(self) -> Normal:
        """N(μ | m, v)."""
        return Normal(self.mean, self.variance.sqrt())

    @property
    def predictive(self) -> Normal:
        """N(x | m, v + σ²)."""
        return Normal(self.mean, (self.variance + self.noise_variance).sqrt())

    def likelihood(self, parameters: Tensor) -> Normal:
        """N(x | μ, σ²)."""
        return Normal(parameters, self.noise_variance.sqrt())

    @staticmethod
    def maximum_likelihood(data: Numbers, noise_variance: Numbers) -> Normal:
        """N(x | x̄, σ²) of ``data [N, ...]``; for a variance that is estimated too, see :class:`NormalGamma`."""
        rows = require_rows(observations(data))
        (noise_variance,) = numbers(noise_variance=noise_variance)
        require_positive(noise_variance=noise_variance)
        return Normal(rows.mean(0), noise_variance.sqrt().to(rows.device))

    def _read(self, data: Numbers) -> Tensor:
        return observations(data, self.mean.shape, self.mean.device)

    def _update(self, data: Tensor) -> Self:
        center, _ = mean_and_squares(data)
        total = len(data) * self.variance + self.noise_variance
        mean = self.mean + len(data) * self.variance / total * (center - self.mean)
        return replace(self, mean=mean, variance=self.variance * (self.noise_variance / total))

    def _log_evidence(self, data: Tensor) -> Tensor:
        """By an orthogonal turn of the data: √N x̄ carries μ, the other N − 1 directions are noise alone."""
        center, squares = mean_and_squares(data)
        along = Normal(0.0, (self.noise_variance + len(data) * self.variance).sqrt())
        noise = (len(data) - 1) * (2.0 * math.pi * self.noise_variance).log() + squares / self.noise_variance
        log_prob: Tensor = along.log_prob(math.sqrt(len(data)) * (center - self.mean))
        return log_prob - 0.5 * noise
