"""Pairs and their distributions against textbook formulas, scipy and arithmetic with 60 digits."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import multigammaln
from torch.distributions import StudentT

from conjugate.pairs import PAIRS, simulated
from credo._special import log_dirichlet_multinomial
from credo.conjugate import (
    BetaBernoulli,
    BetaBinomial,
    BetaBinomialDistribution,
    DirichletCategorical,
    DirichletMultinomial,
    DirichletMultinomialDistribution,
    GammaPoisson,
    MultivariateStudentT,
    NormalGamma,
    NormalKnownCovariance,
    NormalKnownVariance,
    NormalWishart,
    NormalWishartDistribution,
)
from credo.seeding import seeded

mpmath.mp.dps = 60
TINY = 1e-11
LEVEL = 0.01 / 2  # for a false alarm in 1 % of all seeds, divided between the two tests of draws


def close(actual, expected):
    expected = expected if isinstance(expected, torch.Tensor) else t(expected)
    torch.testing.assert_close(actual, expected, rtol=TINY, atol=TINY)


def test_bishop_figure_2_3_update():
    after = BetaBernoulli(2, 2).update([1])
    close(after.a, 3)
    close(after.b, 2)
    close(after.posterior.mean, 3 / 5)
    close(after.predictive.mean, 3 / 5)


def test_laplace_rule_of_succession():
    close(BetaBernoulli(1, 1).update([1] * 9).predictive.mean, 10 / 11)


def test_binomial_evidence_counts_orderings_of_bernoulli_sequence():
    sequence = BetaBernoulli(2.0, 3.0).log_evidence([1, 0, 1, 1, 0])
    count = BetaBinomial(2.0, 3.0, trials=5).log_evidence([3])
    close(count - sequence, math.log(10))


def test_binomial_with_one_trial_equals_bernoulli():
    data = [1, 0, 0, 1, 1, 1]
    close(BetaBinomial(0.4, 2.0, trials=1).log_evidence(data), BetaBernoulli(0.4, 2.0).log_evidence(data))


def test_one_hot_vectors_are_counts_of_one_trial():
    labels, prior = [2, 0, 2, 1, 2], [0.5, 1.0, 2.0]
    one_hot = np.eye(3)[labels]
    counts = DirichletMultinomial(prior, trials=1)
    close(counts.update(one_hot).concentration, DirichletCategorical(prior).update(labels).concentration)
    close(counts.log_evidence(one_hot), DirichletCategorical(prior).log_evidence(labels))
    shares = DirichletMultinomial.maximum_likelihood(one_hot, trials=1).probs
    close(shares, DirichletCategorical.maximum_likelihood(labels, classes=3).probs)


def test_two_classes_equal_beta_pairs():
    labels = [1, 0, 0, 1, 1]
    close(DirichletCategorical([2.0, 0.7]).log_evidence(labels), BetaBernoulli(0.7, 2.0).log_evidence(labels))
    counts = [[3, 4], [0, 7]]
    two = DirichletMultinomial([1.5, 0.8], trials=7)
    close(two.log_evidence(counts), BetaBinomial(1.5, 0.8, trials=7).log_evidence([3, 0]))


def test_categorical_update_counts_labels():
    close(DirichletCategorical([1.0, 2.0, 3.0]).update([2, 0, 2, 2]).concentration, [2.0, 2.0, 6.0])


def test_poisson_update_counts_events():
    after = GammaPoisson(3, 2).update([4, 0, 5])
    close(torch.stack([after.shape, after.rate]), [12, 5])
    close(after.predictive.mean, 12 / 5)
    close(after.predictive.variance, 12 / 5 * (1 + 1 / 5))


def test_normal_known_variance_equals_bishop_2_141_and_2_142():
    x = np.array([2.0, 1.0, 4.5])
    after = NormalKnownVariance(0.5, 2.0, 3.0).update(x)
    close(after.mean, 3.0 / (3 * 2.0 + 3.0) * 0.5 + 3 * 2.0 / (3 * 2.0 + 3.0) * x.mean())
    close(1 / after.variance, 1 / 2.0 + 3 / 3.0)


def test_normal_gamma_equals_bishop_section_2_3_6():
    """There with b = b₀ + β/2 (m² …): the same quadratic form, completed in another way."""
    x = np.array([2.0, 1.0, 4.5, 0.0])
    after = NormalGamma(0.5, 2.0, 3.0, 1.5).update(x)
    close(after.mean_precision, 6)
    close(after.shape, 5)
    close(after.mean, (2.0 * 0.5 + x.sum()) / 6)
    close(after.rate, 1.5 + 0.5 * (np.square(x).sum() + 2.0 * 0.5**2 - 6 * float(after.mean) ** 2))


def test_normal_wishart_in_one_dimension_equals_normal_gamma():
    """Wishart(W, ν) of one dimension is Gamma(ν/2, 1/2W)."""
    x = [2.0, 1.0, 4.5, 0.0]
    gamma = NormalGamma(0.5, 2.0, 1.7, 1.1)
    wishart = NormalWishart([0.5], 2.0, 3.4, [[2.2]])
    rows = [[value] for value in x]
    close(wishart.log_evidence(rows), gamma.log_evidence(x))
    after, expected = wishart.update(rows), gamma.update(x)
    close(after.inverse_scale.squeeze() / 2, expected.rate)
    close(after.predictive.log_prob(torch.tensor([0.3])), expected.predictive.log_prob(torch.tensor(0.3)))


def test_normal_wishart_evidence_equals_matrix_t_density():
    """By the covariance of all rows at once, (1 + 11ᵀ/β) ⊗ W⁻¹, with mean m in every row."""
    pair = PAIRS["normal-wishart"]
    _, data = simulated(pair, 4)
    rows, size = data.shape
    freedom = float(pair.degrees_of_freedom) - size + 1
    between = np.eye(rows) + np.ones((rows, rows)) / float(pair.mean_precision)
    residual = (data - pair.mean).numpy()
    scaled = np.linalg.solve(between, residual) @ np.linalg.inv(pair.inverse_scale.numpy())
    half = 0.5 * (freedom + rows + size - 1)
    expected = (
        multigammaln(half, size)
        - multigammaln(0.5 * (freedom + size - 1), size)
        - 0.5 * rows * size * math.log(math.pi)
        - 0.5 * size * np.linalg.slogdet(between)[1]
        - 0.5 * rows * np.linalg.slogdet(pair.inverse_scale.numpy())[1]
        - half * np.linalg.slogdet(np.eye(size) + residual.T @ scaled)[1]
    )
    close(pair.log_evidence(data), expected)


def test_diagonal_known_covariance_equals_independent_normals():
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 2.0]])
    joint = NormalKnownCovariance([0.0, 1.0], [[2.0, 0.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 3.0]])
    apart = NormalKnownVariance([0.0, 1.0], [2.0, 0.5], [1.0, 3.0])
    close(joint.log_evidence(x), apart.log_evidence(x).sum())
    close(joint.update(x).mean, apart.update(x).mean)
    close(joint.update(x).covariance.diagonal(), apart.update(x).variance)


def exact_dirichlet_multinomial(alpha, counts):
    a, m = ([mpmath.mpf(x) for x in values] for values in (alpha, counts))
    ways = mpmath.loggamma(sum(m) + 1) - sum(mpmath.loggamma(x + 1) for x in m)
    rising = sum(mpmath.loggamma(x + y) - mpmath.loggamma(x) for x, y in zip(a, m, strict=True))
    return float(ways + rising + mpmath.loggamma(sum(a)) - mpmath.loggamma(sum(a) + sum(m)))


@pytest.mark.parametrize(
    ("alpha", "counts"),
    [([1e12, 2e12, 0.5], [1e12, 2e12 - 1e6, 3.0]), ([0.5, 0.5], [5e14, 5e14]), ([1e15, 1e15], [20.0, 30.0])],
)
def test_dirichlet_multinomial_is_accurate_for_huge_counts(alpha, counts):
    a, m = (torch.tensor(values, dtype=torch.float64) for values in (alpha, counts))
    exact = exact_dirichlet_multinomial(alpha, counts)
    assert log_dirichlet_multinomial(a, m).item() == pytest.approx(exact, rel=1e-13)
    pair = DirichletMultinomial(alpha, int(sum(counts)))
    assert pair.log_evidence([counts]).item() == pytest.approx(exact, rel=1e-13)
    assert pair.predictive.log_prob(m).item() == pytest.approx(exact, rel=1e-13)
    if len(alpha) == 2:
        assert BetaBinomial(*alpha, int(sum(counts))).predictive.log_prob(m[0]).item() == pytest.approx(
            exact, rel=1e-13
        )


@pytest.mark.parametrize(("shape", "rate"), [(1e15, 1e13), (1e12, 1e12), (5e9, 1e2)])
def test_gamma_poisson_is_accurate_for_huge_shapes(shape, rate):
    pair, mean = GammaPoisson(shape, rate), int(shape / rate)
    a, b = mpmath.mpf(shape), mpmath.mpf(rate)

    def exact(counts):
        events, rows = sum(counts), len(counts)
        found = mpmath.loggamma(a + events) - mpmath.loggamma(a) + a * mpmath.log(b / (b + rows))
        return float(found - events * mpmath.log(b + rows) - sum(mpmath.loggamma(k + 1) for k in counts))

    for count in (mean, mean + 7):
        found = pair.predictive.log_prob(torch.tensor(float(count), dtype=torch.float64)).item()
        assert found == pytest.approx(exact([count]), rel=1e-13)
    data = [mean, mean + 3, mean + 1]
    assert pair.log_evidence(data).item() == pytest.approx(exact(data), rel=1e-13)
    assert pair.log_evidence([]).item() == 0


def test_student_t_with_huge_degrees_of_freedom_equals_normal():
    pair = NormalGamma(0.0, 1.0, 1e15, 1e15)  # scale² = 1 + 1/1
    expected = -0.5 * math.log(2 * math.pi * 2) - 0.25
    assert pair.predictive.log_prob(torch.tensor(1.0, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("variance", [1e8, 1e13, 1e20])
def test_vague_prior_gives_variance_of_the_sample_mean(variance):
    """1/v′ = 1/v + N/σ², without the difference of two numbers that are nearly 1."""
    after = NormalKnownVariance(0.0, variance, 2.0).update(np.linspace(-1.0, 1.0, 1000))
    close(after.variance / (1.0 / (1.0 / variance + 1000 / 2.0)), 1.0)


@pytest.mark.parametrize("shape", [1e12, 1e15])
def test_certain_precision_gives_gaussian_predictive(shape):
    """Student's t differs from a Gaussian by the order of x⁴/ν."""
    pair = NormalGamma(0.3, 5.0, shape, 2.0 * shape)
    x = t([-1.0, 0.3, 2.0])
    close(pair.predictive.log_prob(x), NormalKnownVariance(0.3, 2.0 / 5.0, 2.0).predictive.log_prob(x))


@pytest.mark.parametrize("freedom", [1e12, 1e14])
def test_certain_covariance_gives_gaussian_evidence(freedom):
    """The two differ by the order of N²/ν."""
    covariance = np.array([[2.0, 0.3], [0.3, 1.0]])
    data = np.random.default_rng(0).normal(size=(20, 2))
    known = NormalKnownCovariance([0.0, 0.0], covariance / 1.5, covariance).log_evidence(data)
    learned = NormalWishart([0.0, 0.0], 1.5, freedom, freedom * covariance).log_evidence(data)
    torch.testing.assert_close(learned, known, rtol=0.0, atol=10 * 20**2 / freedom + 1e-11)


def test_batched_priors_equal_separate_priors():
    labels = torch.tensor([[0, 2], [1, 1], [0, 0]])
    both = DirichletCategorical([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]])
    for column, alpha in enumerate(both.concentration):
        alone = DirichletCategorical(alpha)
        close(both.log_evidence(labels)[column], alone.log_evidence(labels[:, column]))
        close(both.update(labels).concentration[column], alone.update(labels[:, column]).concentration)
    x = torch.tensor([[0.0, 2.0], [1.0, 1.5]])
    two = NormalGamma([0.0, 1.0], 1.0, 2.0, [1.0, 3.0])
    close(two.log_evidence(x)[1], NormalGamma(1.0, 1.0, 2.0, 3.0).log_evidence(x[:, 1]))


def test_beta_binomial_distribution_equals_scipy_and_sums_to_one():
    distribution, reference = BetaBinomialDistribution(t(0.7), t(2.5), 12), stats.betabinom(12, 0.7, 2.5)
    values = torch.arange(13)
    close(distribution.log_prob(values), reference.logpmf(values.numpy()))
    close(distribution.log_prob(values).exp().sum(), 1.0)
    close(distribution.mean, reference.mean())
    close(distribution.variance, reference.var())


def test_dirichlet_multinomial_distribution_equals_scipy_and_sums_to_one():
    alpha = [0.7, 2.5, 1.0]
    distribution, reference = DirichletMultinomialDistribution(t(alpha), 6), stats.dirichlet_multinomial(alpha, 6)
    values = [counts for counts in itertools.product(range(7), repeat=3) if sum(counts) == 6]
    close(distribution.log_prob(torch.tensor(values)), reference.logpmf(np.array(values)))
    close(distribution.log_prob(torch.tensor(values)).exp().sum(), 1.0)
    close(distribution.mean, reference.mean())
    close(distribution.variance, np.diag(reference.cov()))
    assert distribution.log_prob(torch.tensor([1, 2, 0])) == -math.inf


def test_multivariate_student_t_equals_scipy():
    loc, scale = [1.0, -2.0], [[2.0, 0.6], [0.6, 1.0]]
    distribution = MultivariateStudentT(t(3.5), t(loc), torch.linalg.cholesky(t(scale)))
    reference = stats.multivariate_t(loc, scale, df=3.5)
    values = torch.randn(10, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    close(distribution.log_prob(values), reference.logpdf(values.numpy()))
    close(distribution.covariance_matrix, 3.5 / 1.5 * t(scale))


def test_one_dimensional_multivariate_student_t_integrates_to_one():
    distribution = MultivariateStudentT(t(1.5), t([0.3]), t([[2.0]]))
    total, error = integrate.quad(lambda x: distribution.log_prob(t([x])).exp().item(), -np.inf, np.inf)
    assert total == pytest.approx(1.0, abs=10 * error)


@pytest.mark.parametrize("df", [0.8, 1.5, 2.5])
def test_multivariate_student_t_moments_equal_torch(df):
    distribution, scalar = MultivariateStudentT(t(df), t([0.3]), t([[2.0]])), StudentT(t(df), t(0.3), t(2.0))
    torch.testing.assert_close(distribution.mean[0], scalar.mean, equal_nan=True)
    torch.testing.assert_close(distribution.variance[0], scalar.variance, equal_nan=True)


def test_normal_wishart_distribution_equals_scipy():
    inverse_scale = t([[2.0, 0.5], [0.5, 1.0]])
    distribution = NormalWishartDistribution(t([1.0, 2.0]), t(0.7), t(4.5), inverse_scale)
    precision = np.array([[1.0, 0.2], [0.2, 3.0]])
    mean = np.array([0.5, 2.5])
    expected = stats.wishart(4.5, np.linalg.inv(inverse_scale.numpy())).logpdf(precision) + stats.multivariate_normal(
        [1.0, 2.0], np.linalg.inv(0.7 * precision)
    ).logpdf(mean)
    close(distribution.log_prob((t(mean), t(precision))), expected)
    close(distribution.mean.precision, 4.5 * torch.linalg.inv(inverse_scale))


def test_beta_binomial_draws_have_their_probabilities():
    distribution = BetaBinomialDistribution(t(2.0), t(1.5), 6)
    with seeded(0, torch.device("cpu")):
        draws = distribution.sample((20_000,))
    expected = 20_000 * distribution.log_prob(torch.arange(7)).exp()
    assert stats.chisquare(torch.bincount(draws.long(), minlength=7), expected).pvalue > LEVEL


def test_multivariate_student_t_draws_have_f_distributed_distances():
    """(x − m)ᵀS⁻¹(x − m)/D has the F distribution with D and ν degrees of freedom."""
    factor = torch.linalg.cholesky(t([[2.0, 0.6], [0.6, 1.0]]))
    distribution = MultivariateStudentT(t(3.5), t([1.0, -2.0]), factor)
    with seeded(0, torch.device("cpu")):
        draws = distribution.sample((20_000,))
    distance = torch.linalg.solve_triangular(factor, (draws - distribution.loc).T, upper=False).square().mean(0)
    assert stats.kstest(distance, stats.f(2, 3.5).cdf).pvalue > LEVEL


@pytest.mark.parametrize("name", ["normal-gamma", "normal-wishart"])
def test_draws_of_mean_and_precision_have_their_variances(name):
    belief = PAIRS[name].update(simulated(PAIRS[name], 20)[1]).posterior
    with seeded(0, torch.device("cpu")):
        draws = belief.sample((100_000,))
    for drawn, center, variance in zip(draws, belief.mean, belief.variance, strict=True):
        squares = (drawn - center).square()
        error = squares.std(0) / math.sqrt(len(squares))
        assert ((squares.mean(0) - variance).abs() <= 5.0 * error).all()


def t(value):
    return torch.tensor(value, dtype=torch.float64)
