"""Simulation-based calibration passes right posteriors and catches wrong ones."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from credo.errors import InputError
from credo.testing import Ranks, simulation_based_calibration

TESTS = 8
"""Tests of uniformity in this file that should pass: Bonferroni's share of a chance of 1 % for a false alarm."""
LEVEL = 0.01 / TESTS


def normal_ranks(width=1.0, shift=0.0, **options):
    """θ ~ N(0, 1) and y ~ N(θ, 1); the posterior N(y/2, 1/2), scaled and shifted in its own standard deviations."""
    return simulation_based_calibration(
        lambda g: torch.randn(2, generator=g),
        lambda theta, g: theta + torch.randn(2, generator=g),
        lambda y, n, g: y / 2 + (shift + width * torch.randn(n, 2, generator=g)) / math.sqrt(2),
        **options,
    )


def test_correct_posterior_passes():
    assert normal_ranks().p_values().min() > LEVEL


@pytest.mark.parametrize("wrong", [{"width": 0.8}, {"width": 1.25}, {"shift": 0.4}])
def test_wrong_posterior_is_detected(wrong):
    assert normal_ranks(**wrong).p_values().max() < LEVEL


def coin_ranks(posterior_probability):
    """θ ~ Bernoulli(0.3), seen through a channel that is right with probability 0.8."""

    def posterior(y, n, g):
        p = posterior_probability(y)
        return (torch.rand(n, 1, generator=g) < p).long()

    return simulation_based_calibration(
        lambda g: (torch.rand(1, generator=g) < 0.3).long(),
        lambda theta, g: int(theta) if torch.rand((), generator=g) < 0.8 else 1 - int(theta),
        posterior,
    )


def test_ties_of_discrete_parameters_are_broken_at_random():
    ranks = coin_ranks(lambda y: 0.3 * 0.8 / (0.3 * 0.8 + 0.7 * 0.2) if y else 0.3 * 0.2 / (0.3 * 0.2 + 0.7 * 0.8))
    assert ranks.p_values().min() > LEVEL


def test_discrete_posterior_without_prior_is_detected():
    assert coin_ranks(lambda y: 0.8 if y else 0.2).p_values().max() < LEVEL


def test_torch_distributions_follow_the_seed_and_the_global_state_is_kept():
    def ranks(seed):
        return simulation_based_calibration(
            lambda _: torch.distributions.Beta(2.0, 3.0).sample((1,)),
            lambda theta, _: torch.distributions.Binomial(10, theta).sample(),
            lambda k, n, _: torch.distributions.Beta(2.0 + k, 13.0 - k).sample((n,)),
            simulations=1000,
            seed=seed,
        )

    before = torch.get_rng_state()
    first = ranks(0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(ranks(0).ranks, first.ranks)
    assert not torch.equal(ranks(1).ranks, first.ranks)
    assert first.p_values().min() > LEVEL


def test_ranks_count_the_draws_below():
    draws = torch.arange(9.0)[:, None]
    ranks = simulation_based_calibration(
        lambda _: torch.tensor([3.5]), lambda *_: None, lambda *_: draws, simulations=3, draws=9
    )
    assert ranks.ranks.tolist() == [[4], [4], [4]]


def test_p_value_matches_pearson_for_unequal_bins():
    ranks = Ranks(torch.randint(11, (500, 3), generator=torch.Generator().manual_seed(0)), draws=10)
    assert ranks.expected_counts(4).tolist() == pytest.approx([500 * share / 11 for share in (3, 3, 3, 2)])
    assert torch.equal(ranks.counts(4).sum(1), torch.full((3,), 500))
    statistic = ((ranks.counts(4) - ranks.expected_counts(4)) ** 2 / ranks.expected_counts(4)).sum(1)
    torch.testing.assert_close(ranks.p_values(4), torch.from_numpy(stats.chi2(3).sf(statistic.numpy())))
    assert ranks.p_values(11).min() > LEVEL


def test_p_values_are_uniform():
    source = torch.Generator().manual_seed(0)
    ranks = Ranks(torch.randint(100, (1000, 500), generator=source), draws=99)
    assert stats.kstest(ranks.p_values().numpy(), "uniform").pvalue > LEVEL


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: normal_ranks(simulations=0), "simulations must be an integer of at least 1"),
        (lambda: normal_ranks(draws=0), "draws must be an integer of at least 1"),
        (lambda: normal_ranks(simulations=20).p_values(), "run more simulations"),
        (lambda: normal_ranks(simulations=20).p_values(bins=1), "bins must be from 2"),
        (lambda: normal_ranks(simulations=20, draws=9).p_values(bins=20), "10 possible ranks"),
        (lambda: normal_ranks(width=math.nan, simulations=1), "finite"),
    ],
)
def test_bad_arguments_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("truth", "drawn", "words"),
    [(torch.tensor(1.0), torch.zeros(9, 1), "vector"), (torch.zeros(2), torch.zeros(9, 1), r"\[9, 2\]")],
)
def test_wrong_shapes_raise(truth, drawn, words):
    with pytest.raises(InputError, match=words):
        simulation_based_calibration(lambda _: truth, lambda *_: None, lambda *_: drawn, simulations=1, draws=9)
