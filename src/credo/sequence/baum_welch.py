"""EM for hidden Markov models with Gaussian emissions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._rows import Rows
from credo._threads import one_thread
from credo.em import Expectation
from credo.mixture._components import ComponentSums, GaussianComponents
from credo.sequence.forward_backward import Chain, smooth
from credo.sequence.layout import Layout


@dataclass(frozen=True, eq=False)
class Parameters:
    """The chain, and the emissions of its states."""

    chain: Chain
    components: GaussianComponents


@dataclass(frozen=True, eq=False)
class Expected:
    """What the E-step expects of the states.

    Attributes:
        at: the parameters that it was made with.
        starts: how many sequences start in each state, ``[K]``.
        transitions: how many steps go from each state to each, ``[K, K]``.
        sums: what the rows of each state add up to.
    """

    at: Parameters
    starts: Tensor
    transitions: Tensor
    sums: ComponentSums


class BaumWelch:
    """The two steps of EM for one table.

    Args:
        rows: the table.
        layout: where its sequences are.
        floor: ε, the least variance, see :mod:`credo.mixture.components`.
        start_prior: the Dirichlet parameter of π.
        transition_prior: the Dirichlet parameter of the rows of A.
    """

    def __init__(self, rows: Rows, layout: Layout, floor: float, start_prior: float, transition_prior: float) -> None:
        self._rows = rows
        self._layout = layout
        self._floor = floor
        self._start_prior = start_prior
        self._transition_prior = transition_prior

    def e_step(self, at: Parameters) -> Expectation[Expected]:
        """Forward–backward; the bound is the log likelihood and the log prior."""
        emission = log_emission(self._rows, at.components)
        # a step of the recursions is shorter than it takes threads to meet
        with one_thread(emission.device.type == "cpu"):
            smoothed = smooth(at.chain, emission, self._layout)
            posterior, transitions = smoothed.posterior, smoothed.transitions(at.chain)
            starts = posterior[torch.from_numpy(self._layout.starts).to(posterior.device)].sum(0)
            bound = float(smoothed.log_likelihood.sum()) + self.log_prior(at)
        return Expectation(Expected(at, starts, transitions, self._sums(at.components, posterior)), bound)

    def m_step(self, expected: Expected) -> Parameters:
        """The parameters that the expected counts and sums call for."""
        chain = expected.at.chain
        start = _normalized(expected.starts + (self._start_prior - 1.0), chain.start)
        transition = _normalized(expected.transitions + (self._transition_prior - 1.0), chain.transition)
        return Parameters(Chain(start, transition), expected.at.components.m_step(expected.sums, self._floor))

    def log_prior(self, at: Parameters) -> float:
        """The log density of π and A; that of the precisions is flat above the floor, and its constant left out."""
        start = _log_dirichlet(at.chain.start, self._start_prior)
        return start + _log_dirichlet(at.chain.transition, self._transition_prior)

    def _sums(self, components: GaussianComponents, posterior: Tensor) -> ComponentSums:
        def add_up(x: Tensor, shares: Tensor) -> tuple[Tensor, ...]:
            sums = components.whiten(x).sums(shares.mT)
            return sums.count, sums.first, sums.second

        return ComponentSums(*self._rows.beside(posterior).total(add_up, components.numbers_per_row))


def log_emission(rows: Rows, components: GaussianComponents) -> Tensor:
    """log N(x_t | μ_k, Σ_k), ``[N, K]``."""
    log_scale = components.half_log_det - 0.5 * components.means.shape[1] * math.log(2.0 * math.pi)
    emission = rows.map(lambda x: log_scale - 0.5 * components.squared_distances(x).mT, components.numbers_per_row)
    return torch.from_numpy(emission).to(rows.device)


def _normalized(counts: Tensor, otherwise: Tensor) -> Tensor:
    """Counts as probabilities along the last dimension; those of before where there is nothing to count."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0.0, counts / total.clamp_min(torch.finfo(counts.dtype).tiny), otherwise)


def _log_dirichlet(probabilities: Tensor, concentration: float) -> float:
    """The log density of each row of ``probabilities [..., K]`` under Dir(a, …, a), summed."""
    size = probabilities.shape[-1]
    constant = math.lgamma(size * concentration) - size * math.lgamma(concentration)
    powers = torch.xlogy(torch.full_like(probabilities, concentration - 1.0), probabilities)
    return probabilities.numel() // size * constant + float(powers.sum())
