"""Coins: how often one lands heads, from the tosses seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Beta

from credo.conjugate._arguments import Numbers, numbers, require_positive, require_rows, together, whole_observations
from credo.conjugate._special import log_sequence_probability
from credo.conjugate.base import ConjugatePair


@dataclass(frozen=True, eq=False, repr=False, init=False)
class BetaBernoulli(ConjugatePair):
    """μ ~ Beta(a, b) and x ~ Bernoulli(μ). Data are 0 or 1, ``[N, ...]``.

        p(μ | x₁ … x_N) = Beta(a + Σx, b + N − Σx),    p(x = 1) = a / (a + b)

    Attributes:
        a: ones seen, or believed to have been seen, ``[...]``.
        b: zeros, likewise.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.1.1.
    """

    a: Tensor
    b: Tensor

    def __init__(self, a: Numbers, b: Numbers) -> None:
        a, b = numbers(a=a, b=b)
        require_positive(a=a, b=b)
        a, b = together(a=a, b=b)
        self._store(a=a, b=b)

    @property
    def posterior(self) -> Beta:
        """Beta(μ | a, b)."""
        return Beta(self.a, self.b)

    @property
    def predictive(self) -> Bernoulli:
        """Bernoulli(x | a / (a + b)) (Bishop 2.20)."""
        return Bernoulli(logits=self.a.log() - self.b.log())

    def likelihood(self, parameters: Tensor) -> Bernoulli:
        """Bernoulli(x | μ)."""
        return Bernoulli(parameters)

    @staticmethod
    def maximum_likelihood(data: Numbers) -> Bernoulli:
        """Bernoulli(x | Σx / N) (Bishop 2.7) of ``data [N, ...]``."""
        return Bernoulli(require_rows(whole_observations(data, highest=1)).mean(0))

    def _read(self, data: Numbers) -> Tensor:
        return whole_observations(data, self.a.shape, self.a.device, highest=1)

    def _update(self, data: Tensor) -> Self:
        ones = data.sum(0)
        return replace(self, a=self.a + ones, b=self.b + (len(data) - ones))

    def _log_evidence(self, data: Tensor) -> Tensor:
        ones = data.sum(0)
        concentration = torch.stack([self.a, self.b], -1)
        return log_sequence_probability(concentration, torch.stack([ones, len(data) - ones], -1))
