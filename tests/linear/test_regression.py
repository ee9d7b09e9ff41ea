"""Bayesian linear regression with known precisions: identities, predictions, draws, and calibration by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import BayesianRidge, Ridge
from torch.distributions import MultivariateNormal

from credo.conjugate import GaussianBelief, LinearGaussian
from credo.linear import BayesianLinearRegression, GaussianBasis, Polynomial
from credo.plots._tools import draw_band
from credo.testing import simulation_based_calibration

ALPHA, BETA = 0.7, 4.0


def table(rows: int = 60, columns: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) @ rng.normal(size=(columns, columns)) + 3.0
    return x, x @ rng.normal(size=columns) + 5.0 + 0.5 * rng.normal(size=rows)


def known(basis="identity", **options) -> BayesianLinearRegression:
    return BayesianLinearRegression(basis, weight_precision=ALPHA, noise_precision=BETA, **options)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("rows", [60, 3])
def test_posterior_mean_is_ridge_regression(intercept, rows):
    x, y = table(rows)
    model = known(fit_intercept=intercept).fit(x, y)
    ridge = Ridge(alpha=ALPHA / BETA, fit_intercept=intercept, solver="svd").fit(x, y)
    np.testing.assert_allclose(model.coef_, ridge.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, ridge.intercept_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.predict(x), ridge.predict(x), rtol=1e-9)


def test_posterior_and_evidence_with_any_gaussian_prior():
    x, y = table()
    rng = np.random.default_rng(1)
    mean, root = rng.normal(size=4), rng.normal(size=(4, 4))
    covariance = root @ root.T + 0.1 * np.eye(4)
    model = BayesianLinearRegression(
        prior_mean=mean, prior_covariance=covariance, noise_precision=BETA, fit_intercept=False
    ).fit(x, y)

    prior = GaussianBelief.from_precision(torch.from_numpy(mean), torch.from_numpy(np.linalg.inv(covariance)))
    exact = LinearGaussian(prior, torch.from_numpy(x), torch.zeros(60, dtype=torch.float64), BETA)
    posterior = exact.posterior(torch.from_numpy(y))
    np.testing.assert_allclose(model.coef_, posterior.mean, rtol=1e-9)
    np.testing.assert_allclose(model.sigma_, posterior.covariance, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(model.posterior.precision, posterior.precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.log_evidence_, exact.log_evidence(torch.from_numpy(y)), rtol=1e-10)
    np.testing.assert_allclose(model.log_evidence_, exact.marginal.log_prob(torch.from_numpy(y)), rtol=1e-9)
    assert model.weight_precision_ == 1.0


@pytest.mark.parametrize("intercept", [True, False])
def test_log_evidence_is_the_marginal_log_density_of_the_targets(intercept):
    x, y = table()
    features = x - x.mean(0) if intercept else x
    center = y.mean() if intercept else 0.0
    covariance = np.eye(60) / BETA + features @ features.T / ALPHA
    marginal = MultivariateNormal(torch.full((60,), center, dtype=torch.float64), torch.from_numpy(covariance))
    model = known(fit_intercept=intercept).fit(x, y)
    np.testing.assert_allclose(model.log_evidence_, marginal.log_prob(torch.from_numpy(y)), rtol=1e-10)
    np.testing.assert_allclose(model.lower_bound_, model.log_evidence_, rtol=1e-14)  # nothing was to be learned


def test_predictive_matches_the_textbook_formula():
    x, y = table()
    new = table(seed=1)[0]
    model = known(Polynomial(2, include_bias=True), fit_intercept=False).fit(x, y)
    phi, phi_new = Polynomial(2, include_bias=True)(x), Polynomial(2, include_bias=True)(new)
    s = np.linalg.inv(ALPHA * np.eye(9) + BETA * phi.T @ phi)
    p = model.predict_dist(new)
    np.testing.assert_allclose(p.mean, BETA * phi_new @ s @ phi.T @ y, rtol=1e-7)
    np.testing.assert_allclose(p.variance, 1 / BETA + np.einsum("ni,ij,nj->n", phi_new, s, phi_new), rtol=1e-7)
    np.testing.assert_allclose(p.aleatoric, 1 / BETA, rtol=1e-12)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_array_equal(mean, p.mean)
    np.testing.assert_array_equal(std, p.std)
    np.testing.assert_allclose(model.predict(new), mean, rtol=1e-12)


def test_flat_intercept_is_the_limit_of_a_wide_prior_on_a_constant():
    x, y = table()
    new = table(seed=1)[0]
    flat = known().fit(x, y).predict_dist(new)
    # the wide prior shifts the answer by its precision over that of the data, about 1e-10 / (60 · 4)
    wide = BayesianLinearRegression(
        lambda x: np.hstack([np.ones((len(x), 1)), x]),
        prior_covariance=np.diag([1e10, *[1 / ALPHA] * 4]),
        noise_precision=BETA,
        fit_intercept=False,
    )
    proper = wide.fit(x, y).predict_dist(new)
    np.testing.assert_allclose(flat.mean, proper.mean, rtol=1e-7)
    np.testing.assert_allclose(flat.variance, proper.variance, rtol=1e-7)


def test_std_exceeds_that_of_scikit_learn_by_the_intercept():
    x, y = table()
    options = {"tol": 1e-12, "max_iter": 10_000}
    theirs = BayesianRidge(**options).fit(x, y)
    model = BayesianLinearRegression(weight_precision=float(theirs.lambda_), noise_precision=float(theirs.alpha_)).fit(
        x, y
    )
    new = table(seed=1)[0]
    missing = 1 / (60 * theirs.alpha_)
    _, std = theirs.predict(new, return_std=True)
    np.testing.assert_allclose(model.predict_dist(new).variance, std**2 + missing, rtol=1e-8)
    np.testing.assert_allclose(model.sigma_, theirs.sigma_, rtol=1e-8, atol=1e-12)


@settings(max_examples=20)
@given(cuts=st.sets(st.integers(1, 59), max_size=5), intercept=st.booleans())
def test_rows_in_any_number_of_pieces(cuts, intercept):
    x, y = table()
    batch = known(fit_intercept=intercept).fit(x, y)
    pieces = known(fit_intercept=intercept)
    for rows in np.split(np.arange(60), sorted(cuts)):
        pieces.partial_fit(x[rows], y[rows])
    np.testing.assert_allclose(pieces.coef_, batch.coef_, rtol=1e-9)
    np.testing.assert_allclose(pieces.sigma_, batch.sigma_, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(pieces.log_evidence_, batch.log_evidence_, rtol=1e-11)


def test_posterior_as_prior_of_the_next_fit():
    x, y = table()
    first = known(fit_intercept=False).fit(x[:20], y[:20])
    second = BayesianLinearRegression(
        prior_mean=first.coef_, prior_covariance=first.sigma_, noise_precision=BETA, fit_intercept=False
    ).fit(x[20:], y[20:])
    both = known(fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(second.coef_, both.coef_, rtol=1e-8)
    np.testing.assert_allclose(second.sigma_, both.sigma_, rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(first.log_evidence_ + second.log_evidence_, both.log_evidence_, rtol=1e-9)


def test_large_offsets_lose_no_digits():
    x, y = table()
    x, y = np.round(x * 2**20) / 2**20, np.round(y * 2**20) / 2**20  # so that the shifts below are exact
    plain = BayesianLinearRegression().fit(x, y)
    shifted = BayesianLinearRegression().fit(x + 1e8, y + 1e8)
    # the mean of numbers of size 1e8 is rounded by about 1e-8, and so are the centered values, whose size is 1
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(shifted.noise_precision_, plain.noise_precision_, rtol=1e-6)
    np.testing.assert_allclose(shifted.predict(x + 1e8) - 1e8, plain.predict(x), rtol=0, atol=1e-6)


def test_columns_of_different_size_lose_no_digits():
    x, y = table()
    sizes = np.array([1e-7, 1e-2, 1e3, 1e7])
    prior = np.diag(1 / (ALPHA * sizes**2))  # the same belief in the other units
    same = BayesianLinearRegression(prior_covariance=prior, noise_precision=BETA).fit(x * sizes, y)
    plain = known().fit(x, y)
    np.testing.assert_allclose(same.coef_ * sizes, plain.coef_, rtol=1e-8)
    np.testing.assert_allclose(same.log_evidence_, plain.log_evidence_, rtol=1e-10)
    ours, theirs = known().fit(x * sizes, y), Ridge(alpha=ALPHA / BETA, solver="svd").fit(x * sizes, y)
    # an SVD resolves a column to 1e-16 of the largest, whose size is 1e14 times that of the smallest
    np.testing.assert_allclose(ours.predict(x * sizes), theirs.predict(x * sizes), rtol=1e-2)
    np.testing.assert_allclose(ours.coef_[1:], theirs.coef_[1:], rtol=1e-5)


def test_draws_have_the_moments_of_the_posterior():
    x, y = table()
    model = known(random_state=0).fit(x, y)
    n = 20_000
    draws = model.sample(n)
    assert draws.coef.shape == (n, 4)
    assert draws.intercept.shape == (n,)
    error = np.sqrt(np.diag(model.sigma_) / n)
    assert (np.abs(draws.coef.mean(0) - model.coef_) < 5 * error).all()
    scale = np.sqrt(np.outer(np.diag(model.sigma_), np.diag(model.sigma_)))
    # the standard error of a covariance of n Gaussian pairs is at most √(2/n) of its scale
    assert (np.abs(np.cov(draws.coef.T) - model.sigma_) < 5 * math.sqrt(2 / n) * scale).all()

    functions = model.sample_y(x, n)
    np.testing.assert_allclose(functions, x @ draws.coef.T + draws.intercept, rtol=1e-9)
    p = model.predict_dist(x)
    assert (np.abs(functions.mean(1) - p.mean.numpy()) < 5 * np.sqrt(p.epistemic.numpy() / n)).all()
    np.testing.assert_allclose(functions.var(1), p.epistemic, rtol=5 * math.sqrt(2 / n))


def test_draws_are_reproducible_and_keep_the_global_random_state():
    x, y = table()
    model = known(random_state=3).fit(x, y)
    before = torch.get_rng_state()
    first, again = model.sample(5), model.sample(5)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first.coef, again.coef)
    assert not np.array_equal(model.set_params(random_state=4).sample(5).coef, first.coef)


def test_intervals_cover_new_observations_for_any_intercept():
    """Weights from the prior, any intercept: then 90 % intervals cover 90 %, from four rows on."""
    rng = np.random.default_rng(0)
    simulations, rows, covered = 400, 4, 0
    model = known()
    for _ in range(simulations):
        w, b = rng.normal(size=2) / math.sqrt(ALPHA), 100 * rng.normal()
        x = rng.normal(size=(rows + 1, 2)) + 2.0
        y = x @ w + b + rng.normal(size=rows + 1) / math.sqrt(BETA)
        lower, upper = model.fit(x[:rows], y[:rows]).predict_dist(x[rows:]).interval(0.9)
        covered += int(lower[0] < y[rows] < upper[0])
    assert abs(covered / simulations - 0.9) < 4 * math.sqrt(0.9 * 0.1 / simulations)


def test_posterior_passes_simulation_based_calibration():
    basis = GaussianBasis(3, scale=0.5)
    x = np.linspace(0.0, 1.0, 6)[:, None]
    phi = torch.from_numpy(GaussianBasis([0.0, 0.5, 1.0], scale=0.5)(x))

    def posterior(y, n, generator):
        seed = int(torch.randint(2**31, (), generator=generator))
        return torch.from_numpy(known(basis, fit_intercept=False, random_state=seed).fit(x, y.numpy()).sample(n).coef)

    ranks = simulation_based_calibration(
        lambda g: torch.randn(3, generator=g, dtype=torch.float64) / math.sqrt(ALPHA),
        lambda w, g: phi @ w + torch.randn(6, generator=g, dtype=torch.float64) / math.sqrt(BETA),
        posterior,
        simulations=400,
    )
    assert ranks.p_values().min() > 1e-3 / 3


def test_plotted_band_shows_the_epistemic_part():
    x = np.linspace(0.0, 1.0, 8)[:, None]
    p = known("gaussian").fit(x, x[:, 0] ** 2).predict_dist(x)
    lower, upper = draw_band(p, 0.6827)
    np.testing.assert_allclose((upper - lower) / 2, p.epistemic.sqrt(), rtol=1e-4)  # the level is one std to 4 digits
    np.testing.assert_allclose((upper + lower) / 2, p.mean, rtol=1e-9, atol=1e-12)


def test_evidence_over_polynomial_order_has_its_expected_mean():
    """Bishop, Figure 3.14: α = 0.005; the mean over data sets against E log N(y | 0, C) for y = sin 2πx + ε."""
    alpha, noise, rows, sets = 5e-3, 0.3, 10, 60
    x = np.linspace(0.0, 1.0, rows)[:, None]
    truth = np.sin(2 * np.pi * x[:, 0])
    rng = np.random.default_rng(0)
    targets = truth + noise * rng.normal(size=(sets, rows))
    means = []
    for order in (0, 1, 3, 9):
        basis = Polynomial(order, include_bias=True)
        model = BayesianLinearRegression(basis, weight_precision=alpha, noise_precision=noise**-2, fit_intercept=False)
        evidence = np.array([model.fit(x, y).log_evidence_ for y in targets])
        covariance = noise**2 * np.eye(rows) + basis(x) @ basis(x).T / alpha
        inverse = np.linalg.inv(covariance)
        quadratic = truth @ inverse @ truth + noise**2 * np.trace(inverse)
        expected = -0.5 * (rows * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1] + quadratic)
        assert abs(evidence.mean() - expected) < 4 * evidence.std(ddof=1) / math.sqrt(sets)
        means.append(expected)
    assert np.argmax(means) == 2
