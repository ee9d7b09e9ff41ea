"""Events: how many to expect in a unit of time, from the counts seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.distributions import Gamma, Poisson

from credo._special import log_negative_binomial
from credo.conjugate._arguments import Numbers, numbers, require_positive, require_rows, together, whole_observations
from credo.conjugate._special import log_poisson_at
from credo.conjugate.base import ConjugatePair
from credo.conjugate.predictives import PreciseNegativeBinomial


@dataclass(frozen=True, eq=False, repr=False, init=False)
class GammaPoisson(ConjugatePair):
    """λ ~ Gamma(a, b) and x ~ Poisson(λ). Data are counts, ``[N, ...]``.

        p(λ | x₁ … x_N) = Gamma(a + Σx, b + N)

    Attributes:
        shape: a: events seen, or believed to have been seen, ``[...]``.
        rate: b: observations, likewise.

    References:
        A. Gelman et al. Bayesian Data Analysis. 3rd edition, 2013, section 2.6.
    """

    shape: Tensor
    rate: Tensor

    def __init__(self, shape: Numbers, rate: Numbers) -> None:
        shape, rate = numbers(shape=shape, rate=rate)
        require_positive(shape=shape, rate=rate)
        shape, rate = together(shape=shape, rate=rate)
        self._store(shape=shape, rate=rate)

    @property
    def posterior(self) -> Gamma:
        """Gamma(λ | a, b)."""
        return Gamma(self.shape, self.rate)

    @property
    def predictive(self) -> PreciseNegativeBinomial:
        """The negative binomial with mean a/b and variance (a/b)(1 + 1/b)."""
        return PreciseNegativeBinomial(self.shape, logits=-self.rate.log())

    def likelihood(self, parameters: Tensor) -> Poisson:
        """Poisson(x | λ)."""
        return Poisson(parameters)

    @staticmethod
    def maximum_likelihood(data: Numbers) -> Poisson:
        """Poisson(x | Σx / N) of ``data [N, ...]``."""
        return Poisson(require_rows(whole_observations(data)).mean(0))

    def _read(self, data: Numbers) -> Tensor:
        return whole_observations(data, self.shape.shape, self.shape.device)

    def _update(self, data: Tensor) -> Self:
        return replace(self, shape=self.shape + data.sum(0), rate=self.rate + len(data))

    def _log_evidence(self, data: Tensor) -> Tensor:
        """That of the sum of the data, and of the data given their sum, multinomial with equal shares."""
        events = data.sum(0)
        spread = log_poisson_at(data, events / max(len(data), 1)).sum(0) - log_poisson_at(events, events)
        return log_negative_binomial(events, self.shape, len(data) / self.rate) + spread
