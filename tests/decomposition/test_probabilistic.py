"""Probabilistic PCA: closed form, EM, scikit-learn's PCA and the Gaussian identities agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA as Reference
from sklearn.exceptions import ConvergenceWarning

from credo.conjugate import GaussianBelief, LinearGaussian
from credo.decomposition import PCA, ProbabilisticPCA
from credo.errors import InputError
from credo.testing import simulation_based_calibration
from decomposition.tables import planted_table, spread_table, with_missing


def generative(model: ProbabilisticPCA) -> LinearGaussian:
    """The fitted model, built from its learned attributes."""
    loading = torch.tensor(model.components_.T)
    prior = GaussianBelief.isotropic(loading.shape[1], 1.0, like=loading)
    return LinearGaussian(prior, loading, torch.tensor(model.mean_), 1.0 / model.noise_variance_)


@pytest.mark.parametrize("n_components", [1, 2, 5])
def test_closed_form_spans_the_principal_subspace(n_components):
    table = spread_table()
    found, pca = ProbabilisticPCA(n_components).fit(table), PCA(n_components).fit(table)
    assert subspace_angles(found.components_.T, pca.components_.T).max() < 1e-7  # √ε: an angle is found by its cosine
    assert (np.sum(found.components_ * pca.components_, axis=1) > 0.0).all()
    # N against N − 1
    np.testing.assert_allclose(found.explained_variance_, pca.explained_variance_ * 299 / 300, rtol=1e-12)
    assert found.noise_variance_ == pytest.approx(pca.noise_variance_ * 299 / 300, rel=1e-12)


@pytest.mark.parametrize("rows", [7, 20, 300])
def test_log_likelihood_matches_scikit_learn_with_rescaled_variances(rows):
    """Its covariance is c = N/(N − 1) times ours, so with q the squared distance of a row, log p = ours − ½(D log c +
    q/c − q); over the training rows q averages to D, and the means differ by ½D(log c + 1/c − 1) ≥ 0."""
    table, columns = spread_table(rows, 5), 5
    found, reference = ProbabilisticPCA(2).fit(table), Reference(2, svd_solver="full").fit(table)
    c = rows / (rows - 1)
    centered = table - table.mean(0)
    distance = np.einsum("nd,de,ne->n", centered, found.get_precision(), centered)
    assert distance.mean() == pytest.approx(columns, rel=1e-10)
    expected = found.score_samples(table) - 0.5 * (columns * math.log(c) + distance / c - distance)
    np.testing.assert_allclose(reference.score_samples(table), expected, rtol=1e-10)
    gap = 0.5 * columns * (math.log(c) + 1.0 / c - 1.0)
    assert found.score(table) - reference.score(table) == pytest.approx(gap, abs=1e-10)


@pytest.mark.parametrize("method", ["closed_form", "em"])
def test_log_likelihood_is_the_sum_over_rows(method):
    table = spread_table()
    found = ProbabilisticPCA(2, method=method, random_state=0).fit(table)
    marginal = generative(found).marginal
    rows = marginal.log_prob(torch.tensor(table)).numpy()
    np.testing.assert_allclose(found.score_samples(table), rows, rtol=1e-10)
    assert found.log_likelihood_ == pytest.approx(rows.sum(), rel=1e-10)
    assert found.lower_bound_ == found.lower_bounds_[-1] == found.log_likelihood_
    np.testing.assert_allclose(found.get_covariance(), marginal.covariance_matrix, atol=1e-12)
    np.testing.assert_allclose(found.get_precision(), marginal.precision_matrix, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_components", [1, 3])
def test_em_converges_to_the_closed_form(n_components, seed):
    table = spread_table(offset=100.0)
    exact = ProbabilisticPCA(n_components).fit(table)
    found = ProbabilisticPCA(n_components, method="em", tol=1e-12, random_state=seed).fit(table)
    assert found.converged_
    assert found.log_likelihood_ <= exact.log_likelihood_ + 1e-8
    assert found.log_likelihood_ == pytest.approx(exact.log_likelihood_, abs=1e-4)
    assert found.noise_variance_ == pytest.approx(exact.noise_variance_, rel=1e-4)
    assert subspace_angles(found.components_.T, exact.components_.T).max() < 1e-4
    np.testing.assert_allclose(found.components_, exact.components_, atol=1e-3)
    assert np.diff(found.lower_bounds_).min() >= -1e-9 * abs(found.lower_bound_)


@pytest.mark.parametrize("noise", [1e-4, 1e-5])
def test_em_converges_to_the_closed_form_with_small_noise(noise):
    """The bound never falls by more than rounding, and the noise is that of the closed form."""
    table = planted_table(60, 5, 2, noise=noise)
    found = ProbabilisticPCA(2, method="em", random_state=0).fit(table)
    exact = ProbabilisticPCA(2).fit(table)
    # the scatter has 16 digits, of which the smallest eigenvalue keeps 16 less those of its share
    assert found.noise_variance_ == pytest.approx(exact.noise_variance_, rel=1e-14 / noise**2 + 1e-3)


def test_em_with_default_settings_is_close_to_the_closed_form():
    table = planted_table(1000, 12, 4)
    exact, found = ProbabilisticPCA(4).fit(table), ProbabilisticPCA(4, method="em", random_state=0).fit(table)
    assert found.log_likelihood_ == pytest.approx(exact.log_likelihood_, rel=1e-4)
    assert found.noise_variance_ == pytest.approx(exact.noise_variance_, rel=1e-4)


def test_posterior_matches_linear_gaussian_model():
    table = spread_table()
    found = ProbabilisticPCA(2).fit(table)
    expected = generative(found).posterior(torch.tensor(table))
    belief = found.posterior(table)
    torch.testing.assert_close(belief.mean, expected.mean)
    torch.testing.assert_close(belief.covariance, expected.covariance)
    np.testing.assert_allclose(found.transform(table), expected.mean, atol=1e-12)
    # Tipping & Bishop: z has the covariance I on average, which the posterior variances make up for
    total = np.cov(found.transform(table).T, ddof=0) + belief.covariance.numpy()
    np.testing.assert_allclose(total, np.eye(2), atol=1e-10)


def test_inverse_transform_is_the_mean_of_x_at_z():
    found = ProbabilisticPCA(2).fit(spread_table(offset=3.0))
    np.testing.assert_allclose(found.inverse_transform(np.zeros((1, 2)))[0], found.mean_)
    step = found.inverse_transform([[1.0, 0.0]]) - found.mean_
    np.testing.assert_allclose(step[0], found.components_[0])
    with pytest.raises(InputError, match="one column for each of the 2 components, got 3"):
        found.inverse_transform(np.zeros((1, 3)))


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_posterior_of_the_latent_variable_is_calibrated(share):
    found = ProbabilisticPCA(2).fit(planted_table(200, 5, 2))
    missing = np.arange(5) < share * 5

    def simulate(z: torch.Tensor, generator: torch.Generator) -> np.ndarray:
        noise = torch.randn(5, generator=generator, dtype=torch.float64).numpy()
        x = found.inverse_transform(z[None].numpy())[0] + math.sqrt(found.noise_variance_) * noise
        return np.where(missing, np.nan, x)

    ranks = simulation_based_calibration(
        lambda generator: torch.randn(2, generator=generator, dtype=torch.float64),
        simulate,
        lambda x, n, generator: found.posterior(x[None]).sample(n, generator).squeeze(1),
        simulations=400,
    )
    assert min(ranks.p_values()) > 1e-3


def test_samples_have_the_moments_of_the_model():
    found = ProbabilisticPCA(2).fit(spread_table())
    drawn, covariance = found.sample(20_000, random_state=0), found.get_covariance()
    variance = np.diag(covariance)
    error = np.sqrt((covariance**2 + np.outer(variance, variance)) / 20_000)
    assert (np.abs(np.cov(drawn.T) - covariance) < 5.0 * error).all()


def test_random_state_is_reproducible_and_leaves_torch_generator_alone():
    before = torch.get_rng_state()
    table = with_missing(spread_table())
    first, again = (ProbabilisticPCA(2, method="em", random_state=3).fit(table) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first.components_, again.components_)
    other = ProbabilisticPCA(2, method="em", random_state=4).fit(table)
    assert other.lower_bounds_[0] != first.lower_bounds_[0]


def test_unconverged_em_warns():
    with pytest.warns(ConvergenceWarning, match="not converged after 2 iterations"):
        found = ProbabilisticPCA(2, method="em", max_iter=2, random_state=0).fit(spread_table())
    assert not found.converged_
    assert found.n_iter_ == 2


@pytest.mark.parametrize("bad", [0, -1, 6, 7, 1.0, True, "mle"])
def test_n_components_that_leaves_no_noise_raises(bad):
    with pytest.raises(InputError, match="n_components must be an integer between 1 and 5"):
        ProbabilisticPCA(bad).fit(spread_table(columns=6))


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (10, 1)])
def test_too_few_rows_or_columns_raise(rows, columns):
    with pytest.raises(InputError, match="at least 2 columns and 3 rows"):
        ProbabilisticPCA().fit(spread_table(rows, columns))


@pytest.mark.parametrize("method", ["closed_form", "em"])
def test_table_without_noise_raises(method):
    flat = spread_table(columns=2) @ np.random.default_rng(0).normal(size=(2, 6))
    with pytest.raises(InputError, match="no variance is left for the noise"):
        ProbabilisticPCA(2, method=method, random_state=0).fit(flat)
    assert ProbabilisticPCA(1, method=method, random_state=0).fit(flat).noise_variance_ > 0.0
    with pytest.raises(InputError, match="no variance"):
        ProbabilisticPCA(2, method=method).fit(np.ones((20, 4)))


def test_unknown_method_raises():
    with pytest.raises(InputError, match="did you mean 'closed_form'"):
        ProbabilisticPCA(2, method="closed-form").fit(spread_table())
