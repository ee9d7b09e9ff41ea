"""Negative binomial predictions against scipy, sums over counts and the Poisson limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from credo.likelihoods import NegativeBinomial, Poisson
from credo.predictive.counts import NegativeBinomialComponents, PoissonComponents

from .cases import F64


def exact(mean: np.ndarray, dispersion: np.ndarray) -> stats.rv_discrete:
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


def components(mean: object, dispersion: object) -> NegativeBinomialComponents:
    values = torch.broadcast_tensors(*(torch.as_tensor(np.asarray(t), dtype=F64).log() for t in (mean, dispersion)))
    return NegativeBinomialComponents(*values)


def test_moments_cdf_and_quantiles_are_those_of_scipy() -> None:
    mean, dispersion = np.meshgrid([0.01, 0.7, 5.0, 300.0], [1e-4, 0.3, 2.0])
    c, reference = components(mean, dispersion), exact(mean, dispersion)
    # scipy's p = 1/(1 + αμ) is rounded, 1 − p by 2e-16/αμ of itself
    np.testing.assert_allclose(c.draws, reference.mean(), rtol=1e-9)
    np.testing.assert_allclose(c.variance, reference.var(), rtol=1e-9)
    for z in (0, 1, 7, 250, 2000):
        y = torch.full(mean.shape, float(z), dtype=F64)
        np.testing.assert_allclose(c.cdf(y), reference.cdf(z), rtol=1e-9)
        np.testing.assert_allclose(c.survival(y), reference.sf(z), rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(c.log_density(y), reference.logpmf(z), rtol=1e-8, atol=1e-8)
    assert bool((c.cdf(torch.full(mean.shape, -1.0)) == 0).all())
    assert bool((c.survival(torch.full(mean.shape, -0.5)) == 1).all())
    p = NegativeBinomial("heteroscedastic").predictive(
        torch.stack([c.log_mean, c.log_dispersion], -1).flatten(0, 1)[None]
    )
    for q in (1e-3, 0.3, 0.975):
        np.testing.assert_array_equal(p.quantile(q).flatten(), reference.ppf(q).flatten())


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 4.0])
@pytest.mark.parametrize("mean", [0.05, 3.0, 2_000.0])
def test_entropy_is_the_sum_over_all_counts(mean: float, dispersion: float) -> None:
    reference = exact(np.array(mean), np.array(dispersion))
    log_p = reference.logpmf(np.arange(int(reference.isf(1e-15)) + 10))
    log_p = log_p[np.isfinite(log_p)]
    assert float(components(mean, dispersion).entropy) == pytest.approx(-(np.exp(log_p) * log_p).sum(), abs=2e-5)


def test_information_of_two_rates() -> None:
    """H of the mixture less the mean entropy, from sums over all counts."""
    mean, dispersion = np.array([1.0, 40.0]), np.array([0.5, 0.5])
    pmf = exact(mean, dispersion).pmf(np.arange(2000)[:, None])
    p = NegativeBinomial(0.5).predictive(torch.tensor(mean).log()[:, None])
    assert float(p.mutual_information) == pytest.approx(
        stats.entropy(pmf.mean(1)) - stats.entropy(pmf).mean(), abs=1e-6
    )


def test_without_dispersion_it_is_poisson() -> None:
    """NB(μ, α) has a log probability within α(y² + μ²) of Poisson's."""
    log_mean = torch.tensor([[-1.0, 1.0, 4.0]], dtype=F64)
    near = NegativeBinomialComponents(log_mean, torch.full_like(log_mean, math.log(1e-10)))
    poisson, y = PoissonComponents(log_mean), torch.tensor([1.0, 4.0, 60.0], dtype=F64)
    torch.testing.assert_close(near.log_density(y), poisson.log_density(y), atol=1e-6, rtol=0)
    torch.testing.assert_close(near.cdf(y), poisson.cdf(y), atol=1e-6, rtol=0)
    torch.testing.assert_close(near.entropy, poisson.entropy, atol=1e-6, rtol=0)


def test_single_precision_at_large_counts() -> None:
    c = components([1e6, 1e7], [1e-3, 0.5])
    y = torch.tensor([1.01e6, 6e6], dtype=F64)
    single = c.map(torch.Tensor.float)
    # rounding of log μ to 1e-6 moves log p by |y − μ|/(1 + αμ)·1e-6
    torch.testing.assert_close(single.log_density(y.float()).double(), c.log_density(y), atol=1e-3, rtol=1e-5)


def test_samples_have_the_moments() -> None:
    """The mean of n samples within 5 standard errors, and the variance, whose standard error needs the kurtosis."""
    p = NegativeBinomial(0.5).predictive(torch.tensor([[0.0, 2.0], [0.5, 2.5]], dtype=F64))
    n = 40_000
    y = p.sample(n, seed=1)
    assert bool(((y.mean(0) - p.mean).abs() < 5 * p.std / math.sqrt(n)).all())
    fourth = (y - p.mean).pow(4).mean(0)
    assert bool(((y.var(0) - p.variance).abs() < 5 * ((fourth - p.variance.square()) / n).sqrt()).all())


def test_the_support_of_counts_starts_at_0() -> None:
    for likelihood in (Poisson(), NegativeBinomial()):
        assert likelihood.components(torch.zeros(1, 2)).support == (0.0, math.inf)
