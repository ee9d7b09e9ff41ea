"""Simulation-based calibration: the ranks of a correct posterior are uniform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from credo._arguments import check_integer
from credo.errors import InputError
from credo.seeding import seeded

_MIN_EXPECTED_COUNT = 5.0
"""With a smaller expected count, the distribution of the statistic is far from χ² (Cochran 1952)."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of true parameters among draws from their posteriors, uniform if the posterior is correct.

    A ∪-shaped histogram means that the posterior is too narrow, a ∩-shaped one that it is too wide, a slope that it is
    shifted.

    Attributes:
        ranks: the number of draws below the true parameter, from 0 to ``draws``, ``[simulations, P]``.
        draws: the number of draws from each posterior.

    Example:
        >>> ranks = simulation_based_calibration(prior, simulate, posterior)
        >>> assert ranks.p_values().min() > 1e-3
    """

    ranks: Tensor
    draws: int

    def counts(self, bins: int = 20) -> Tensor:
        """Return the rank histogram of every parameter.

        Args:
            bins: the number of bins.

        Returns:
            Counts, ``[P, bins]``; compare with :meth:`expected_counts`.

        Raises:
            InputError: if there are fewer than 2 bins, or more bins than possible ranks.
        """
        self._check_bins(bins)
        where = self.ranks * bins // (self.draws + 1)
        return torch.nn.functional.one_hot(where, bins).sum(0)

    def expected_counts(self, bins: int = 20) -> Tensor:
        """Return the expected :meth:`counts` for a correct posterior.

        Args:
            bins: the number of bins.

        Returns:
            Expected counts, ``[bins]``; all equal if ``bins`` divides draws + 1.

        Raises:
            InputError: if there are fewer than 2 bins, or more bins than possible ranks.
        """
        self._check_bins(bins)
        n_ranks = torch.bincount(torch.arange(self.draws + 1) * bins // (self.draws + 1), minlength=bins)
        return n_ranks.double() * len(self.ranks) / (self.draws + 1)

    def p_values(self, bins: int = 20) -> Tensor:
        """Return the p-value of Pearson's χ² test of uniform ranks, for every parameter.

        With P parameters, a significance level of ε/P keeps the probability of a false alarm below ε.

        Args:
            bins: the number of bins.

        Returns:
            P-values, ``[P]``.

        Raises:
            InputError: if fewer than 5 ranks are expected per bin, or ``bins`` is not valid.
        """
        from scipy.stats import chisquare

        observed, expected = self.counts(bins), self.expected_counts(bins)
        if float(expected.min()) < _MIN_EXPECTED_COUNT:
            raise InputError(
                f"each bin must have at least {_MIN_EXPECTED_COUNT:.0f} expected ranks, got {bins} bins for "
                f"{len(self.ranks)} simulations: run more simulations or use fewer bins"
            )
        return torch.from_numpy(chisquare(observed.numpy(), expected.numpy(), axis=1).pvalue)

    def _check_bins(self, bins: int) -> None:
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

    If the posterior is correct, θ and the draws are exchangeable, so every rank from 0 to L is equally likely. Ties, as
    between discrete parameters, are broken at random.

    Args:
        prior: a function of a generator that returns θ, ``[P]``.
        simulate: a function of θ and a generator that returns data, in any form that ``posterior`` accepts.
        posterior: a function of data, a number of draws and a generator that returns independent draws of θ,
            ``[draws, P]``.
        simulations: the number of parameters to rank.
        draws: L; with the default there are 100 possible ranks.
        seed: makes the result reproducible. The generator passed to the three functions is torch's default one, seeded
            during this call, so torch distributions, which take no generator, use it too.

    Returns:
        The ranks.

    Raises:
        InputError: if a function returns tensors of the wrong shape or values that are not finite.

    Example:
        >>> ranks = simulation_based_calibration(
        ...     lambda g: torch.randn(1, generator=g),  # θ ~ N(0, 1)
        ...     lambda theta, g: theta + torch.randn(1, generator=g),  # y ~ N(θ, 1)
        ...     lambda y, n, g: y / 2 + torch.randn(n, 1, generator=g) / math.sqrt(2),  # θ | y ~ N(y/2, 1/2)
        ... )
        >>> assert ranks.p_values().min() > 1e-3

    References:
        S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman. Validating Bayesian Inference Algorithms with
        Simulation-Based Calibration. arXiv:1804.06788, 2018.
    """
    check_integer(simulations, "simulations", minimum=1)
    check_integer(draws, "draws", minimum=1)
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
    fraction = torch.rand(truth.shape, generator=source, dtype=torch.float64)
    return below + (fraction * (ties + 1)).long()


def _check_draws(truth: Tensor, drawn: Tensor, draws: int) -> None:
    if truth.ndim != 1:
        raise InputError(f"prior must return the parameters as a vector [P], got shape {list(truth.shape)}")
    if drawn.shape != (draws, len(truth)):
        raise InputError(f"posterior must return draws of shape [{draws}, {len(truth)}], got shape {list(drawn.shape)}")
    if not bool(truth.isfinite().all() and drawn.isfinite().all()):
        raise InputError("prior and posterior must return finite numbers, got NaN or infinity")
