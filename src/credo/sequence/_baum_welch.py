"""The two steps of EM for hidden Markov models with Gaussian emissions (Baum–Welch)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._rows import Rows
from credo._threads import one_thread
from credo.em import Expectation
from credo.mixture._components import LOG_2PI, ComponentSums, MixtureComponents
from credo.sequence._inference import MarkovChain, SequenceLayout, smooth


@dataclass(frozen=True, eq=False)
class HMMParameters:
    """The chain, and the emission densities of its states."""

    chain: MarkovChain
    emissions: MixtureComponents


@dataclass(frozen=True, eq=False)
class HMMStatistics:
    """The expected sufficient statistics.

    Attributes:
        parameters: of the E-step.
        starts: the expected number of sequences that start in each state, ``[K]``.
        transitions: the expected number of transitions from each state to each, ``[K, K]``.
        sums: of the rows, weighted by the posterior of each state.
    """

    parameters: HMMParameters
    starts: Tensor
    transitions: Tensor
    sums: ComponentSums


@dataclass(frozen=True, eq=False)
class BaumWelch:
    """The steps for one table.

    Attributes:
        rows: the table.
        layout: of its sequences.
        floor: ε, the minimum variance, see :mod:`credo.mixture._components`.
        start_prior: the Dirichlet parameter of π.
        transition_prior: the Dirichlet parameter of the rows of A.
    """

    rows: Rows
    layout: SequenceLayout
    floor: float
    start_prior: float
    transition_prior: float

    def e_step(self, parameters: HMMParameters) -> Expectation[HMMStatistics]:
        """Forward–backward; the bound is the log likelihood plus the log prior."""
        chain, emissions = parameters.chain, parameters.emissions
        log_emission = compute_log_emission(self.rows, emissions)
        # the recursions take less time per step than synchronizing threads
        with one_thread(log_emission.device.type == "cpu"):
            smoothed = smooth(chain, log_emission, self.layout)
            posterior, transitions = smoothed.posterior, smoothed.transition_counts(chain)
            starts = posterior[torch.from_numpy(self.layout.first_rows).to(posterior.device)].sum(0)
            bound = float(smoothed.log_likelihood.sum()) + self.log_prior(parameters)

        def block_sums(x: Tensor, responsibilities: Tensor) -> tuple[Tensor, ...]:
            sums = emissions.whiten(x).sums(responsibilities.mT)
            return sums.count, sums.first, sums.second

        sums = ComponentSums(*self.rows.with_columns(posterior).total(block_sums, emissions.numbers_per_row))
        return Expectation(HMMStatistics(parameters, starts, transitions, sums), bound)

    def m_step(self, statistics: HMMStatistics) -> HMMParameters:
        """The parameters that maximize the objective for the expected counts and sums."""
        old = statistics.parameters
        start = _normalize(statistics.starts + (self.start_prior - 1.0), old.chain.start)
        transition = _normalize(statistics.transitions + (self.transition_prior - 1.0), old.chain.transition)
        return HMMParameters(MarkovChain(start, transition), old.emissions.m_step(statistics.sums, self.floor))

    def log_prior(self, parameters: HMMParameters) -> float:
        """The log density of π and A; that of the precisions is constant above the floor, and omitted."""
        start = _log_dirichlet(parameters.chain.start, self.start_prior)
        return start + _log_dirichlet(parameters.chain.transition, self.transition_prior)


def compute_log_emission(rows: Rows, emissions: MixtureComponents) -> Tensor:
    """log N(x_t | μ_k, Σ_k), ``[N, K]``."""
    log_scale = emissions.half_log_det - 0.5 * emissions.means.shape[1] * LOG_2PI
    log_density = rows.map(lambda x: log_scale - 0.5 * emissions.squared_distances(x).mT, emissions.numbers_per_row)
    return torch.from_numpy(log_density).to(rows.device)


def _normalize(counts: Tensor, otherwise: Tensor) -> Tensor:
    """Counts as probabilities along the last dimension; ``otherwise`` where all counts are 0."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0.0, counts / total.clamp_min(torch.finfo(counts.dtype).tiny), otherwise)


def _log_dirichlet(probabilities: Tensor, concentration: float) -> float:
    """The log density of each row of ``probabilities [..., K]`` under Dir(a, …, a), summed."""
    size = probabilities.shape[-1]
    constant = math.lgamma(size * concentration) - size * math.lgamma(concentration)
    powers = torch.xlogy(torch.full_like(probabilities, concentration - 1.0), probabilities)
    return probabilities.numel() // size * constant + float(powers.sum())
