"""Successes in a known number of trials: how likely one is, from the counts seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Beta, Binomial

from credo.conjugate._arguments import (
    Numbers,
    numbers,
    require_positive,
    require_rows,
    require_whole,
    together,
    whole_observations,
)
from credo.conjugate._special import log_dirichlet_multinomial, log_pooled_multinomial
from credo.conjugate.base import ConjugatePair
from credo.conjugate.predictives import BetaBinomialDistribution


@dataclass(frozen=True, eq=False, repr=False, init=False)
class BetaBinomial(ConjugatePair):
    """μ ~ Beta(a, b) and m ~ Binomial(n, μ). Data are successes from 0 to n, ``[N, ...]``.

        p(μ | m₁ … m_N) = Beta(a + Σm, b + Nn − Σm)

    Attributes:
        a: successes seen, or believed to have been seen, ``[...]``.
        b: failures, likewise.
        trials: n, the same for every observation.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.1.
    """

    a: Tensor
    b: Tensor
    trials: int

    def __init__(self, a: Numbers, b: Numbers, trials: int) -> None:
        a, b = numbers(a=a, b=b)
        require_positive(a=a, b=b)
        require_whole(trials=trials)
        a, b = together(a=a, b=b)
        self._store(a=a, b=b, trials=int(trials))

    @property
    def posterior(self) -> Beta:
        """Beta(μ | a, b)."""
        return Beta(self.a, self.b)

    @property
    def predictive(self) -> BetaBinomialDistribution:
        """The successes in n new trials."""
        return BetaBinomialDistribution(self.a, self.b, self.trials)

    def likelihood(self, parameters: Tensor) -> Binomial:
        """Binomial(m | n, μ)."""
        return Binomial(self.trials, parameters)

    @staticmethod
    def maximum_likelihood(data: Numbers, trials: int) -> Binomial:
        """Binomial(m | n, Σm / Nn) of ``data [N, ...]``."""
        require_whole(trials=trials)
        return Binomial(int(trials), require_rows(whole_observations(data, highest=trials)).mean(0) / trials)

    def _read(self, data: Numbers) -> Tensor:
        return whole_observations(data, self.a.shape, self.a.device, highest=self.trials)

    def _update(self, data: Tensor) -> Self:
        successes, failures = self._counts(data).sum(0).unbind(-1)
        return replace(self, a=self.a + successes, b=self.b + failures)

    def _log_evidence(self, data: Tensor) -> Tensor:
        counts = self._counts(data)
        together = log_dirichlet_multinomial(torch.stack([self.a, self.b], -1), counts.sum(0))
        return together + log_pooled_multinomial(counts)

    def _counts(self, data: Tensor) -> Tensor:
        """Successes and failures, ``[N, ..., 2]``."""
        return torch.stack([data, self.trials - data], -1)
