"""Estimates by maximum likelihood are maxima, and the formulas of the textbook."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Binomial, Categorical, Multinomial, MultivariateNormal, Normal, Poisson

from conjugate.pairs import PAIRS, simulated
from credo.conjugate import (
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    DirichletMultinomial,
    GammaPoisson,
    NormalGamma,
    NormalKnownCovariance,
    NormalKnownVariance,
    NormalWishart,
)
from credo.errors import InputError

COVARIANCE = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=torch.float64)

# The estimate, and the distribution at a point of the unconstrained space near it.
CASES = {
    "beta-bernoulli": (BetaBernoulli.maximum_likelihood, lambda d, e: Bernoulli(logits=d.logits + e())),
    "beta-binomial": (
        lambda data: BetaBinomial.maximum_likelihood(data, 7),
        lambda d, e: Binomial(7, logits=d.logits + e()),
    ),
    "dirichlet-categorical": (
        lambda data: DirichletCategorical.maximum_likelihood(data, 4),
        lambda d, e: Categorical(logits=d.logits + e(4)),
    ),
    "dirichlet-multinomial": (
        lambda data: DirichletMultinomial.maximum_likelihood(data, 5),
        lambda d, e: Multinomial(5, logits=d.logits + e(3)),
    ),
    "gamma-poisson": (GammaPoisson.maximum_likelihood, lambda d, e: Poisson(d.rate * e().exp())),
    "normal-known-variance": (
        lambda data: NormalKnownVariance.maximum_likelihood(data, 2.5),
        lambda d, e: Normal(d.loc + e(), d.scale),
    ),
    "normal-known-covariance": (
        lambda data: NormalKnownCovariance.maximum_likelihood(data, COVARIANCE),
        lambda d, e: MultivariateNormal(d.loc + e(2), COVARIANCE),
    ),
    "normal-gamma": (NormalGamma.maximum_likelihood, lambda d, e: Normal(d.loc + e(), d.scale * e().exp())),
    "normal-wishart": (
        NormalWishart.maximum_likelihood,
        lambda d, e: MultivariateNormal(d.loc + e(3), scale_tril=d.scale_tril @ (e(3, 3).tril(-1) + e(3).exp().diag())),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_estimate_maximizes_the_likelihood(name):
    estimate, nearby = CASES[name]
    _, data = simulated(PAIRS[name], 40)
    best = estimate(data)
    highest = best.log_prob(data).sum()
    source = torch.Generator().manual_seed(0)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(20):
            other = nearby(best, lambda *shape, size=size: size * torch.randn(shape, generator=source).double())
            assert other.log_prob(data).sum() < highest


def test_every_pair_has_a_case():
    assert CASES.keys() == PAIRS.keys()


def test_estimates_equal_textbook_formulas():
    x = np.random.default_rng(0).normal(size=(50, 2))
    assert BetaBernoulli.maximum_likelihood([1, 1, 0, 1]).probs == 0.75
    assert DirichletCategorical.maximum_likelihood([0, 2, 2, 1], 4).probs.tolist() == [0.25, 0.25, 0.5, 0.0]
    assert GammaPoisson.maximum_likelihood([1, 2, 6]).rate == 3.0
    normal = NormalGamma.maximum_likelihood(x[:, 0])
    np.testing.assert_allclose([normal.mean, normal.variance], [x[:, 0].mean(), x[:, 0].var()], rtol=1e-13)
    joint = NormalWishart.maximum_likelihood(x)
    np.testing.assert_allclose(joint.covariance_matrix, np.cov(x.T, bias=True), rtol=1e-13)


def test_vague_prior_predicts_the_estimate():
    data = [1, 0, 1, 1]
    weak = BetaBernoulli(1e-12, 1e-12).update(data)
    torch.testing.assert_close(weak.predictive.mean, BetaBernoulli.maximum_likelihood(data).mean, rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BetaBernoulli.maximum_likelihood([]), "at least one row"),
        (lambda: GammaPoisson.maximum_likelihood([]), "at least one row"),
        (lambda: GammaPoisson.maximum_likelihood(3), "put it in a list"),
        (lambda: NormalGamma.maximum_likelihood([0.1, 0.1, 0.1]), "different values"),
        (lambda: NormalGamma.maximum_likelihood([1.0]), "different values"),
        (lambda: NormalWishart.maximum_likelihood([1.0, 2.0, 3.0]), r"\[N, D\]"),
        (lambda: NormalWishart.maximum_likelihood([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]), "repeat others"),
        (lambda: NormalWishart.maximum_likelihood([[0.1, 2.0], [0.1, 4.0], [0.1, 5.0]]), "repeat others"),
        (lambda: NormalWishart.maximum_likelihood([[1.0, 2.0], [2.0, 5.0]]), "add rows"),
        (lambda: NormalKnownVariance.maximum_likelihood([1.0], 0.0), "noise_variance must be positive"),
        (lambda: NormalKnownCovariance.maximum_likelihood([[1.0]], [[1.0, 2.0]]), "noise_covariance"),
        (lambda: NormalKnownCovariance.maximum_likelihood([[1.0]], 2.0), r"noise_covariance must have shape \[1, 1\]"),
        (lambda: DirichletCategorical.maximum_likelihood([0, 4], 4), "from 0 to 3"),
        (lambda: DirichletMultinomial.maximum_likelihood([[1, 2]], 4), "sum to 4 trials"),
        (lambda: BetaBinomial.maximum_likelihood([1], 0), "trials must be an integer"),
    ],
)
def test_data_without_an_estimate_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()
