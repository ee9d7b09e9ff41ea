"""Simulation-based calibration: a posterior that is right has uniform ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from credo.errors import InputError
from credo.seeding import seeded

_FEWEST_A_BIN = 5.0
"""The expected count below which the statistic of a bin is far from its χ² limit (Cochran 1952)."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of true parameters among draws from their posteriors, uniform where the posterior is right.

    A ∪-shaped histogram means a posterior that is too narrow, a ∩-shaped one that it is too wide, a slope that it is
    shifted.

    Attributes:
        ranks: how many draws lie below the truth, from 0 to ``draws``, ``[simulations, P]``.
        draws: from each posterior.
    """

    ranks: Tensor
    draws: int

    def counts(self, bins: int = 20) -> Tensor:
        """The rank histogram of every parameter, ``[P, bins]``; compare with :meth:`expected_counts`."""
        self._check(bins)
        where = self.ranks * bins // (self.draws + 1)
        return torch.nn.functional.one_hot(where, bins).sum(0)

    def expected_counts(self, bins: int = 20) -> Tensor:
        """What :meth:`counts` are on average for a right posterior, ``[bins]``: all equal if bins divide draws + 1."""
        self._check(bins)
        share = torch.bincount(torch.arange(self.draws + 1) * bins // (self.draws + 1), minlength=bins)
        return share.double() * len(self.ranks) / (self.draws + 1)

    def p_values(self, bins: int = 20) -> Tensor:
        """The p-value of every parameter in Pearson's χ² test that its ranks are uniform, ``[P]``.

        With P parameters, a level of ε/P keeps the chance of a false alarm below ε.
        """
        from scipy.stats import chisquare

        observed, expected = self.counts(bins), self.expected_counts(bins)
        if float(expected.min()) < _FEWEST_A_BIN:
            raise InputError(
                f"bins must be few enough that {_FEWEST_A_BIN:.0f} ranks are expected in each, got {bins} bins for "
                f"{len(self.ranks)} simulations: run more simulations or use fewer bins"
            )
        return torch.from_numpy(chisquare(observed.numpy(), expected.numpy(), axis=1).pvalue)

    def _check(self, bins: int) -> None:
        if not 2 <= bins <= self.draws + 1:
            raise InputError(f"bins must be from 2 to the {self.draws + 1} possible ranks, got {bins}")


def simulation_based_calibration(
    prior: Callable[[Generator], Tensor],
    simulate: Callable[[Tensor, Generator], Any],
    posterior: Callable[[Any, int, Generator], Tensor],
    *,
    simulations: int = 1000,
    draws: int = 99,
    seed: int = 0,
) -> Ranks:
    """Rank parameters drawn from the prior among draws from the posterior of data simulated with them.

        θ ~ p(θ),    y ~ p(y | θ),    θ₁ … θ_L ~ p(θ | y),    rank = #{θ_l < θ}

    θ and the draws are exchangeable if the posterior is right, so every rank from 0 to L is equally likely. Ties, as
    between discrete parameters, are broken at random.

        ranks = simulation_based_calibration(
            lambda g: torch.randn(1, generator=g),                                       # θ ~ N(0, 1)
            lambda theta, g: theta + torch.randn(1, generator=g),                        # y ~ N(θ, 1)
            lambda y, n, g: y / 2 + torch.randn(n, 1, generator=g) / math.sqrt(2),       # θ | y ~ N(y/2, 1/2)
        )
        assert ranks.p_values().min() > 1e-3

    Args:
        prior: gives θ, ``[P]``.
        simulate: gives data for a θ, in whatever form ``posterior`` takes.
        posterior: gives independent draws of θ for the data, ``[draws, P]``.
        simulations: how many parameters to rank.
        draws: L; the default leaves 100 ranks.
        seed: fixes everything random. The generator that the three functions are given is torch's own, seeded for
            the time of this call, so torch distributions, which take no generator, follow it too.

    References:
        S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman. Validating Bayesian Inference Algorithms with
        Simulation-Based Calibration. arXiv:1804.06788, 2018.
    """
    for name, value in (("simulations", simulations), ("draws", draws)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    with seeded(seed, torch.device("cpu")):
        source = torch.default_generator
        ranks = []
        for _ in range(simulations):
            truth = torch.as_tensor(prior(source)).cpu()
            drawn = torch.as_tensor(posterior(simulate(truth, source), draws, source)).cpu()
            _check_draws(truth, drawn, draws)
            ranks.append(_rank(truth, drawn, source))
    return Ranks(torch.stack(ranks), draws)


def _rank(truth: Tensor, drawn: Tensor, source: Generator) -> Tensor:
    below, ties = (drawn < truth).sum(0), (drawn == truth).sum(0)
    share = torch.rand(truth.shape, generator=source, dtype=torch.float64)
    return below + (share * (ties + 1)).long()


def _check_draws(truth: Tensor, drawn: Tensor, draws: int) -> None:
    if truth.ndim != 1:
        raise InputError(f"prior must return the parameters as a vector [P], got shape {list(truth.shape)}")
    if drawn.shape != (draws, len(truth)):
        raise InputError(f"posterior must return draws of shape [{draws}, {len(truth)}], got shape {list(drawn.shape)}")
    if not bool(truth.isfinite().all() and drawn.isfinite().all()):
        raise InputError("prior and posterior must return finite numbers, got NaN or infinity, which have no rank")
