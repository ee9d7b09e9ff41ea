"""Counts of classes in a known number of trials: how likely each class is, from the counts seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.distributions import Dirichlet, Multinomial

from credo.conjugate._arguments import (
    Numbers,
    numbers,
    require_concentration,
    require_rows,
    require_whole,
    whole_observations,
)
from credo.conjugate._special import log_dirichlet_multinomial, log_pooled_multinomial
from credo.conjugate.base import ConjugatePair
from credo.conjugate.predictives import DirichletMultinomialDistribution
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DirichletMultinomial(ConjugatePair):
    """μ ~ Dir(α) and m ~ Multinomial(n, μ). Data are counts of K classes that sum to n, ``[N, ..., K]``.

        p(μ | m₁ … m_N) = Dir(α + Σm)

    Attributes:
        concentration: α: trials with each outcome seen, or believed to have been seen, ``[..., K]``.
        trials: n, the same for every observation.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.2.1.
    """

    concentration: Tensor
    trials: int

    def __init__(self, concentration: Numbers, trials: int) -> None:
        (concentration,) = numbers(concentration=concentration)
        require_concentration(concentration)
        require_whole(trials=trials)
        self._store(concentration=concentration, trials=int(trials))

    @property
    def posterior(self) -> Dirichlet:
        """Dir(μ | α)."""
        return Dirichlet(self.concentration)

    @property
    def predictive(self) -> DirichletMultinomialDistribution:
        """The counts of n new trials."""
        return DirichletMultinomialDistribution(self.concentration, self.trials)

    def likelihood(self, parameters: Tensor) -> Multinomial:
        """Multinomial(m | n, μ)."""
        return Multinomial(self.trials, parameters)

    @staticmethod
    def maximum_likelihood(data: Numbers, trials: int) -> Multinomial:
        """Multinomial(m | n, Σm / Nn) of ``data [N, ..., K]``."""
        require_whole(trials=trials)
        return Multinomial(int(trials), require_rows(_with_total(whole_observations(data), trials)).mean(0))

    def _read(self, data: Numbers) -> Tensor:
        counts = whole_observations(data, self.concentration.shape, self.concentration.device)
        return _with_total(counts, self.trials)

    def _update(self, data: Tensor) -> Self:
        return replace(self, concentration=self.concentration + data.sum(0))

    def _log_evidence(self, data: Tensor) -> Tensor:
        return log_dirichlet_multinomial(self.concentration, data.sum(0)) + log_pooled_multinomial(data)


def _with_total(counts: Tensor, trials: int) -> Tensor:
    wrong = counts.sum(-1) != trials
    if bool(wrong.any()):
        raise InputError(
            f"data must be counts that sum to the {trials} trials of an observation, got {counts[wrong][0].tolist()}"
        )
    return counts
