"""Events: how many to expect in a unit of time, from the counts seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Gamma, NegativeBinomial, Poisson

from credo.conjugate._arguments import Numbers, numbers, require_positive, require_rows, together, whole_observations
from credo.conjugate._special import log_rising
from credo.conjugate.base import ConjugatePair


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
    def predictive(self) -> NegativeBinomial:
        """The negative binomial with mean a/b and variance (a/b)(1 + 1/b)."""
        return NegativeBinomial(self.shape, logits=-self.rate.log())

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
        events = data.sum(0)
        waiting = self.shape * torch.log1p(len(data) / self.rate) + events * (self.rate + len(data)).log()
        return log_rising(self.shape, events) - waiting - torch.lgamma(data + 1.0).sum(0)
