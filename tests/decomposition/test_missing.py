"""Probabilistic PCA with missing values: every row contributes its observed values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning

from credo._rows import Rows
from credo.decomposition import ProbabilisticPCA
from credo.decomposition._scatter import ScatterStatistics
from credo.decomposition.probabilistic import e_step_from_rows, e_step_from_scatter, m_step, random_start
from credo.errors import InputError
from decomposition.tables import planted_table, spread_table, with_missing


def as_rows(table: np.ndarray) -> Rows:
    return Rows((table,), torch.device("cpu"), lambda chunk: chunk)


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    return with_missing(planted_table(300, 6, 2))


@pytest.fixture(scope="module")
def fitted(table) -> ProbabilisticPCA:
    return ProbabilisticPCA(2, method="em", tol=1e-9, max_iter=5000, random_state=0).fit(table)


def test_bound_is_the_log_density_of_observed_values(fitted, table):
    covariance = fitted.get_covariance()
    expected = []
    for x in table:
        there = ~np.isnan(x)
        density = multivariate_normal(fitted.mean_[there], covariance[np.ix_(there, there)]) if there.any() else None
        expected.append(density.logpdf(x[there]) if density else 0.0)
    np.testing.assert_allclose(fitted.score_samples(table), expected, rtol=1e-10, atol=1e-10)
    assert fitted.log_likelihood_ == pytest.approx(sum(expected), rel=1e-10)


def test_likelihood_never_falls_and_converges_to_a_maximum(fitted, table):
    assert np.diff(fitted.lower_bounds_).min() >= -1e-9 * abs(fitted.lower_bound_)
    rng = np.random.default_rng(0)
    for _ in range(20):  # no step in any direction climbs further
        other = ProbabilisticPCA(2, method="em").fit(table)
        other.components_ = fitted.components_ + 1e-3 * rng.normal(size=fitted.components_.shape)
        other.mean_ = fitted.mean_ + 1e-3 * rng.normal(size=6)
        other.noise_variance_ = fitted.noise_variance_ * np.exp(1e-3 * rng.normal())
        assert other.score(table) < fitted.score(table)


def test_e_steps_from_rows_and_scatter_agree_without_missing_values():
    table = spread_table(500, 5, offset=10.0)
    statistics = ScatterStatistics.from_rows(as_rows(table))
    variances = statistics.scatter.diagonal() / statistics.count
    parameters = random_start(3, variances, torch.Generator().manual_seed(0))
    from_scatter = e_step_from_scatter(statistics, parameters)
    from_rows = e_step_from_rows(as_rows(table), statistics.mean, parameters)
    # a row of nothing must not change the sums, and gives every other row a precision of its own
    empty = np.vstack([table, np.full(5, np.nan)])
    from_missing = e_step_from_rows(as_rows(empty), statistics.mean, parameters)
    for found in (from_rows, from_missing):
        assert found.bound == pytest.approx(from_scatter.bound, rel=1e-12)
        assert found.statistics.n_values == from_scatter.statistics.n_values
        for d in range(5):
            torch.testing.assert_close(found.statistics.second[d], from_scatter.statistics.second[0])
        torch.testing.assert_close(found.statistics.cross, from_scatter.statistics.cross)
    ours, theirs = m_step(from_missing.statistics), m_step(from_scatter.statistics)
    torch.testing.assert_close(ours.loading, theirs.loading)
    assert ours.noise == pytest.approx(theirs.noise, rel=1e-10)


def test_rows_without_values_have_no_effect():
    table = spread_table()
    padded = np.insert(table, [0, 100, 300], np.nan, axis=0)
    with pytest.warns(ConvergenceWarning):
        whole, with_empty = (
            ProbabilisticPCA(2, method="em", tol=0.0, max_iter=30, random_state=0).fit(t) for t in (table, padded)
        )
    np.testing.assert_allclose(with_empty.components_, whole.components_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(with_empty.mean_, whole.mean_, atol=1e-10)
    assert with_empty.log_likelihood_ == pytest.approx(whole.log_likelihood_, rel=1e-10)
    empty = np.full((1, 6), np.nan)
    np.testing.assert_allclose(with_empty.transform(empty), 0.0)
    np.testing.assert_allclose(with_empty.impute(empty)[0], with_empty.mean_)
    assert with_empty.score_samples(empty) == pytest.approx(0.0)


def test_subspace_is_recovered_with_missing_values():
    complete = planted_table(2000, 8, 2)
    exact = ProbabilisticPCA(2).fit(complete)
    found = ProbabilisticPCA(2, method="em", random_state=0).fit(with_missing(complete, 0.3))
    # 5600 values for 24 parameters: directions are uncertain by about noise / √N ≈ 0.01
    assert subspace_angles(found.components_.T, exact.components_.T).max() < 0.05
    assert found.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.05)


def test_imputation_matches_gaussian_conditioning(fitted, table):
    filled, covariance = fitted.predict_missing(table), fitted.get_covariance()
    np.testing.assert_array_equal(filled.mean, fitted.impute(table))
    for i, x in enumerate(table):
        there, absent = ~np.isnan(x), np.isnan(x)
        np.testing.assert_array_equal(filled.mean[i, there], x[there])
        np.testing.assert_array_equal(filled.std[i, there], 0.0)
        gain = covariance[np.ix_(absent, there)] @ np.linalg.inv(covariance[np.ix_(there, there)])
        mean = fitted.mean_[absent] + gain @ (x[there] - fitted.mean_[there])
        spread = covariance[np.ix_(absent, absent)] - gain @ covariance[np.ix_(there, absent)]
        np.testing.assert_allclose(filled.mean[i, absent], mean, atol=1e-10)
        np.testing.assert_allclose(filled.std[i, absent], np.sqrt(np.diag(spread)), atol=1e-10)


def test_std_of_imputed_values_is_calibrated():
    complete = planted_table(2000, 8, 2)
    gappy = with_missing(complete, 0.2)
    filled = ProbabilisticPCA(2, method="em", random_state=0).fit(gappy).predict_missing(gappy)
    absent = np.isnan(gappy)
    covered = (np.abs(complete - filled.mean) < 1.96 * filled.std)[absent].mean()
    assert covered == pytest.approx(0.95, abs=4.0 * np.sqrt(0.95 * 0.05 / absent.sum()))


def test_closed_form_model_imputes_missing_values():
    table = planted_table(300, 6, 2)
    found, gappy = ProbabilisticPCA(2).fit(table), with_missing(table)
    assert np.isfinite(found.impute(gappy)).all()
    assert np.isfinite(found.score_samples(gappy)).all()
    assert found.posterior(gappy).cholesky.shape == (300, 2, 2)
    with pytest.raises(InputError, match="method='em'"):
        found.transform(gappy)
    with pytest.raises(InputError, match="choose method='em'"):
        ProbabilisticPCA(2).fit(gappy)


def test_chunks_match_the_array(table):
    whole = ProbabilisticPCA(2, method="em", random_state=0).fit(table)
    pieces = ProbabilisticPCA(2, method="em", random_state=0).fit(lambda: iter(np.array_split(table, 7)))
    np.testing.assert_allclose(pieces.components_, whole.components_, rtol=1e-8, atol=1e-10)
    assert pieces.n_iter_ == whole.n_iter_
    with pytest.raises(InputError, match="read only once"):
        ProbabilisticPCA(2, method="em").fit(iter(np.array_split(table, 7)))


def test_column_without_values_raises(table):
    hollow = table.copy()
    hollow[:, 3] = np.nan
    with pytest.raises(InputError, match="no value in column 3"):
        ProbabilisticPCA(2, method="em").fit(hollow)
    with pytest.raises(InputError, match="no variance"):
        ProbabilisticPCA(2, method="em").fit(np.where(np.isnan(table), np.nan, 1.0))


def test_partial_fit_with_missing_values_raises(table):
    found = ProbabilisticPCA(2, method="em", random_state=0)
    with pytest.raises(ValueError, match="NaN"):
        found.partial_fit(table)
    with pytest.raises(InputError, match="missing values"):
        ProbabilisticPCA(2, method="em", random_state=0).fit(table).partial_fit(planted_table(300, 6, 2))
