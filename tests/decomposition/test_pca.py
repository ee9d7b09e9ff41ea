"""PCA against scikit-learn's, and the density of its Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA as Reference

from credo.decomposition import PCA
from credo.errors import InputError
from decomposition.tables import spread_table

LEARNED = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")


def assert_same(found: PCA, reference: Reference, count: int) -> None:
    for name in LEARNED:
        ours, theirs = getattr(found, name), getattr(reference, name)
        part = slice(None) if name == "mean_" else slice(count)
        # at offset 10⁶ a value has 10 digits after the point, of which the mean over N rows keeps all
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize(("rows", "columns"), [(300, 6), (7, 6), (5, 9), (2, 3), (40, 1)])
def test_attributes_match_scikit_learn(rows, columns, offset):
    table = spread_table(rows, columns, offset)
    found, reference = PCA().fit(table), Reference(svd_solver="full").fit(table)
    assert found.n_components_ == reference.n_components_ == min(rows, columns)
    # N rows span N − 1 directions; the last component of N ≤ D is arbitrary
    assert_same(found, reference, min(rows - 1, columns))


@pytest.mark.parametrize("n_components", [1, 3, 0.5, 0.9, 0.999, np.int64(2), np.float64(0.5)])
def test_n_components_matches_scikit_learn(n_components):
    table = spread_table()
    found, reference = PCA(n_components).fit(table), Reference(n_components, svd_solver="full").fit(table)
    assert found.n_components_ == reference.n_components_
    assert_same(found, reference, found.n_components_)
    assert found.noise_variance_ == pytest.approx(reference.noise_variance_, rel=1e-10)


@pytest.mark.parametrize("whiten", [False, True])
def test_transform_and_inverse_transform(whiten):
    table = spread_table()
    found, reference = PCA(4, whiten=whiten).fit(table), Reference(4, whiten=whiten, svd_solver="full").fit(table)
    coordinates = found.transform(table)
    np.testing.assert_allclose(coordinates, reference.transform(table), atol=1e-10)
    np.testing.assert_allclose(
        found.inverse_transform(coordinates), reference.inverse_transform(coordinates), atol=1e-10
    )
    whole = PCA(whiten=whiten).fit(table)
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(table)), table, atol=1e-12)
    if whiten:
        np.testing.assert_allclose(np.cov(coordinates.T), np.eye(4), atol=1e-12)


@pytest.mark.parametrize("n_components", [1, 3, 5, 6])
def test_density_matches_scikit_learn(n_components):
    table = spread_table()
    found, reference = PCA(n_components).fit(table), Reference(n_components, svd_solver="full").fit(table)
    np.testing.assert_allclose(found.get_covariance(), reference.get_covariance(), atol=1e-12)
    np.testing.assert_allclose(found.get_precision(), reference.get_precision(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.score_samples(table), reference.score_samples(table), rtol=1e-10)
    assert found.score(table) == pytest.approx(reference.score(table), rel=1e-10)


def test_noise_with_fewer_rows_than_columns_matches_the_density():
    table = spread_table(rows=8, columns=20)
    found = PCA(3).fit(table)
    assert np.trace(found.get_covariance()) == pytest.approx(np.trace(np.cov(table.T)))
    expected = multivariate_normal(found.mean_, found.get_covariance()).logpdf(table)
    np.testing.assert_allclose(found.score_samples(table), expected, rtol=1e-10)


def test_samples_have_the_moments_of_the_model():
    found = PCA(3).fit(spread_table(offset=5.0))
    drawn, n = found.sample(20_000, random_state=0), 20_000
    covariance = found.get_covariance()
    variance = np.diag(covariance)
    assert (np.abs(drawn.mean(0) - found.mean_) < 5.0 * np.sqrt(variance / n)).all()
    error = np.sqrt((covariance**2 + np.outer(variance, variance)) / n)
    assert (np.abs(np.cov(drawn.T) - covariance) < 5.0 * error).all()


def test_precision_is_kept_with_drifting_rows():
    """The blocks of this table have means 10⁸ apart from the first to the last, and a direction without drift."""
    rng = np.random.default_rng(0)
    table = np.column_stack([np.linspace(0.0, 1e8, 50_000), rng.normal(size=50_000)])
    found = PCA().fit(table)
    assert found.explained_variance_[1] == pytest.approx(table[:, 1].var(ddof=1), rel=1e-3)


@pytest.mark.parametrize("bad", [0, -1, 7, 1.0, 0.0, -0.5, 1.5, True, "mle", [2]])
def test_bad_n_components_raises(bad):
    with pytest.raises(InputError, match="n_components must be"):
        PCA(bad).fit(spread_table(columns=6))


def test_constant_columns_and_repeated_rows_add_no_direction():
    table = np.column_stack([spread_table(columns=3), np.full(300, 7.0)])
    found = PCA().fit(table)
    np.testing.assert_allclose(found.components_[:3, 3], 0.0, atol=1e-12)
    np.testing.assert_allclose(found.explained_variance_[3], 0.0, atol=1e-12)
    assert np.isfinite(PCA(2).fit(table).score(table))
    with pytest.raises(InputError, match="fewer components"):
        found.score(table)
    twice = PCA(2).fit(np.repeat(table, 2, axis=0))
    np.testing.assert_allclose(twice.components_, PCA(2).fit(table).components_, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9])
def test_no_variance_raises(value):
    with pytest.raises(InputError, match="no variance"):
        PCA().fit(np.full((20, 3), value))


def test_values_whose_squares_overflow_raise():
    with pytest.raises(InputError, match="too large to be squared"):
        PCA().fit(1e200 * spread_table())
