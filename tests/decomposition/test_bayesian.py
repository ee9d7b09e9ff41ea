"""Bayesian PCA: the bound is correct, and the dimension is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.exceptions import ConvergenceWarning
from torch.distributions import Gamma, Normal

from credo.decomposition import BayesianPCA, ProbabilisticPCA
from credo.decomposition._variational import PCAPosterior, PCAPriors, VariationalSteps
from credo.em import fit_em
from credo.errors import InputError
from decomposition.tables import planted_table, spread_table


@pytest.mark.parametrize("dimensions", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("rows", [60, 300, 20_000])
def test_dimension_is_recovered(rows, dimensions):
    table = planted_table(rows, 10, dimensions)
    found = BayesianPCA().fit(table)
    assert found.n_components_ == len(found.components_) == dimensions
    assert found.transform(table).shape == (rows, dimensions)
    assert (np.diff(found.alpha_) >= 0.0).all()
    assert len(found.alpha_) == 9


@pytest.mark.parametrize("dimensions", [0, 3, 7])
def test_noise_is_recovered_from_many_rows(dimensions):
    rows = 20_000
    found = BayesianPCA().fit(planted_table(rows, 10, dimensions))
    # 5 standard errors of a variance from the values of the directions without a component
    assert found.noise_variance_ == pytest.approx(0.09, rel=5.0 * math.sqrt(2.0 / (rows * (10 - dimensions))))


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
def test_small_noise_is_recovered(noise):
    """The default priors are weak enough for the data to determine the noise."""
    found = BayesianPCA().fit(planted_table(300, 10, 3, noise=noise))
    assert found.n_components_ == 3
    # 5 standard errors of a variance; the prior weighs 1e-11 of the variance of the data, 1e-3 of the least noise
    assert found.noise_variance_ == pytest.approx(noise**2, rel=5.0 * math.sqrt(2.0 / (300 * 7)) + 1e-3)


def test_dimension_is_recovered_with_fewer_rows_than_columns():
    assert BayesianPCA().fit(planted_table(30, 60, 3, noise=0.1)).n_components_ == 3


def test_bound_never_falls_and_is_below_the_maximum_likelihood():
    """log p(X) averages the likelihood over the prior, so its maximum lies above it."""
    for rows, dimensions in ((50, 2), (500, 3), (5000, 5)):
        table = planted_table(rows, 8, dimensions)
        found = BayesianPCA().fit(table)
        assert np.diff(found.lower_bounds_).min() >= -1e-9 * abs(found.lower_bound_)
        assert found.lower_bound_ < ProbabilisticPCA(7).fit(table).log_likelihood_


def log_normal(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return Normal(mean, variance.sqrt()).log_prob(x)


def log_ratios(
    table: torch.Tensor, axes: torch.Tensor, posterior: PCAPosterior, priors: PCAPriors, draws: int
) -> torch.Tensor:
    """log p(X, Z, W, α, μ, τ) − log q(Z, W, α, μ, τ) of draws from q, ``[draws]``, written out from the model."""
    columns, center = posterior.columns, table.mean(0)
    (rows, size), k = table.shape, len(columns.length)
    w_mean = axes[:k].mT * columns.length
    z_mean = (table - center) @ axes[:k].mT * columns.gain
    normal = torch.randn
    w = w_mean + columns.variance.sqrt() * normal(draws, size, k).double()
    z = z_mean + columns.latent_variance.sqrt() * normal(draws, rows, k).double()
    mu = center + posterior.mean_variance.sqrt() * normal(draws, size).double()
    alpha, tau = columns.alpha.sample((draws,)), posterior.tau.sample((draws,))
    x_mean = z @ w.mT + mu[:, None]
    log_p = (
        log_normal(table, x_mean, (1.0 / tau)[:, None, None]).sum((1, 2))
        + log_normal(z, torch.zeros(()), torch.ones(())).sum((1, 2))
        + log_normal(w, torch.zeros(()), 1.0 / alpha[:, None]).sum((1, 2))
        + log_normal(mu, center, torch.tensor(1.0 / priors.mean_precision)).sum(1)
        + Gamma(*map(torch.tensor, (priors.precision_shape, priors.precision_rate))).log_prob(alpha).sum(1)
        + Gamma(*map(torch.tensor, (priors.noise_shape, priors.noise_rate))).log_prob(tau)
    )
    log_q = (
        log_normal(z, z_mean, columns.latent_variance).sum((1, 2))
        + log_normal(w, w_mean, columns.variance).sum((1, 2))
        + log_normal(mu, center, posterior.mean_variance).sum(1)
        + columns.alpha.log_prob(alpha).sum(1)
        + posterior.tau.log_prob(tau)
    )
    return log_p - log_q


@pytest.mark.parametrize("steps", [1, 3, 200])
def test_bound_matches_monte_carlo_estimate(steps):
    """By Monte Carlo, before and at convergence, with components that are zero and not."""
    table = torch.from_numpy(planted_table(25, 4, 1))
    priors = PCAPriors(2.0, 0.5, 1.5, 0.3, 0.1)
    centered = table - table.mean(0)
    scatter, vectors = torch.linalg.eigh(centered.mT @ centered)
    model = VariationalSteps(25, scatter.flip(0), 3, priors)
    fit = fit_em(lambda _: model.start(), model.e_step, model.m_step, max_iter=steps, tolerance=0.0)
    posterior = fit.expectation.statistics
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ratios = log_ratios(table, vectors.mT.flip(0), posterior, priors, draws=20_000)
    standard_error = float(ratios.std()) / math.sqrt(len(ratios))
    assert float(ratios.mean()) == pytest.approx(fit.bound, abs=4.0 * standard_error)
    assert standard_error < 0.1


def test_zero_component_is_chosen_if_its_bound_is_higher():
    """The closed form for a zero component is a fixed point of the updates, up to its latent variance."""
    table = planted_table(200, 6, 2)
    priors = PCAPriors(1e-3, 1e-9, 1e-3, 1e-3, 1e-3)
    scatter = torch.from_numpy(np.linalg.eigvalsh(np.cov(table.T, ddof=0) * 200)[::-1].copy())
    model = VariationalSteps(200, scatter, 5, priors)
    tau = torch.tensor(10.0, dtype=torch.float64)
    zero = model._zero(tau)
    again = model._updated(zero, tau)
    torch.testing.assert_close(again.variance, zero.variance)
    torch.testing.assert_close(again.alpha.rate, zero.alpha.rate)
    assert not again.length.any()


def test_fit_is_invariant_to_units():
    table = planted_table(300, 6, 2)
    found, scaled = BayesianPCA().fit(table), BayesianPCA().fit(1e4 * table + 7.0)
    assert scaled.n_components_ == found.n_components_ == 2
    np.testing.assert_allclose(scaled.components_, 1e4 * found.components_, rtol=1e-6, atol=1e-4)
    assert scaled.noise_variance_ == pytest.approx(1e8 * found.noise_variance_, rel=1e-8)
    # the density of a row in other units
    assert scaled.lower_bound_ == pytest.approx(found.lower_bound_ - 300 * 6 * math.log(1e4), rel=1e-8)


def test_many_rows_match_probabilistic_pca():
    table = planted_table(20_000, 8, 3)
    found, likely = BayesianPCA().fit(table), ProbabilisticPCA(3).fit(table)
    assert subspace_angles(found.components_.T, likely.components_.T).max() < 1e-6
    np.testing.assert_allclose(found.components_, likely.components_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.transform(table), likely.transform(table), atol=5e-3)
    assert found.score(table) == pytest.approx(likely.score(table), abs=1e-5)
    np.testing.assert_allclose(found.get_covariance() @ found.get_precision(), np.eye(8), atol=1e-9)


def test_posterior_of_z_includes_uncertainty_of_weights():
    table = planted_table(30, 8, 2)
    found = BayesianPCA().fit(table)
    posterior = found.posterior(table)
    np.testing.assert_allclose(posterior.mean, found.transform(table), atol=1e-12)
    # uncertain weights add D times their variance to WᵀW
    tau, loading = 1.0 / found.noise_variance_, found.components_
    expected = np.eye(2) + tau * (loading @ loading.T + 8 * np.diag(found.components_variance_))
    np.testing.assert_allclose(posterior.precision, expected, rtol=1e-10, atol=1e-8)
    np.testing.assert_allclose(found.inverse_transform([[0.0, 0.0]])[0], table.mean(0))


def test_pure_noise_has_no_component():
    found = BayesianPCA().fit(planted_table(500, 6, 0))
    table = planted_table(10, 6, 0, seed=1)
    assert found.components_.shape == (0, 6)
    assert found.transform(table).shape == (10, 0)
    np.testing.assert_allclose(found.inverse_transform(found.transform(table)), np.tile(found.mean_, (10, 1)))
    assert np.isfinite(found.score(table))
    assert found.sample(5, random_state=0).shape == (5, 6)


def test_unconverged_fit_warns():
    with pytest.warns(ConvergenceWarning, match="not converged after 1 iterations"):
        BayesianPCA(max_iter=1).fit(spread_table())


@pytest.mark.parametrize("bad", [0, -1, 6, 2.0, "all"])
def test_bad_n_components_raises(bad):
    with pytest.raises(InputError, match="n_components must be an integer between 1 and 5"):
        BayesianPCA(bad).fit(spread_table(columns=6))


@pytest.mark.parametrize("name", ["precision_shape", "precision_rate", "noise_shape", "noise_rate", "mean_precision"])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "1"])
def test_bad_priors_raise(name, bad):
    with pytest.raises(InputError, match=f"{name} must be a positive number"):
        BayesianPCA(**{name: bad}).fit(spread_table())


def test_one_column_and_no_variance_raise():
    with pytest.raises(InputError, match="at least 2 columns"):
        BayesianPCA().fit(spread_table(columns=1))
    with pytest.raises(InputError, match="no variance"):
        BayesianPCA().fit(np.ones((10, 3)))
