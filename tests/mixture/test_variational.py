"""The variational mixture: its bound, scikit-learn's steps, and the exact evidence of one component."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from scipy.special import digamma, gammaln, multigammaln, xlogy
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo.conjugate import NormalWishart
from credo.errors import InputError
from credo.mixture import KMeans, VariationalGaussianMixture

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@parametrize_with_checks([VariationalGaussianMixture(), VariationalGaussianMixture(3)])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def two_clusters(rows: int = 200, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = np.where(rng.random((rows, 1)) < 0.4, [[-2.0, -1.5]], [[2.0, 1.5]])
    return centers + rng.normal(size=(rows, 2)) @ np.array([[0.8, 0.3], [0.0, 0.5]])


class FromLabels(BayesianGaussianMixture):
    """scikit-learn's mixture, initialized with every row in the cluster of its label."""

    def initialize_with(self, labels: np.ndarray) -> FromLabels:
        self._begin = np.eye(self.n_components)[labels]
        return self

    def _initialize_parameters(self, X, random_state, xp=None):
        self._initialize(X, self._begin)


@pytest.mark.parametrize("concentration", [None, 1e-3, 50.0])
@pytest.mark.parametrize("components", [1, 2, 5])
@pytest.mark.parametrize("data", [load_iris, load_wine])
def test_bound_gains_and_posterior_match_scikit_learn(data, components, concentration, monkeypatch):
    X = data().data[:, :4]
    options = {"weight_concentration_prior": concentration, "tol": 1e-9, "reg_covar": 0.0, "max_iter": 30}
    centers = X[np.random.default_rng(0).choice(len(X), components, replace=False)]
    monkeypatch.setattr(
        VariationalGaussianMixture, "_initial_centers", lambda self, rows, seed: torch.from_numpy(centers)
    )
    labels = ((X[:, None] - centers) ** 2).sum(-1).argmin(1)
    theirs = FromLabels(
        n_components=components, weight_concentration_prior_type="dirichlet_distribution", **options
    ).initialize_with(labels)
    ours, theirs = VariationalGaussianMixture(components, **options).fit(X), theirs.fit(X)
    gains, wanted = np.diff(ours.lower_bounds_[1:]), np.diff(theirs.lower_bounds_)
    steps = min(len(gains), len(wanted))
    assert steps >= (10 if components > 1 else 0)
    assert_allclose(gains[:steps], wanted[:steps], atol=1e-6)
    for name in ("weight_concentration_", "mean_precision_", "degrees_of_freedom_", "means_", "covariances_"):
        assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-6)
    for name in ("weights_", "precisions_", "precisions_cholesky_"):
        assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-6)
    for name in ("weight_concentration", "mean_precision", "mean", "degrees_of_freedom", "covariance"):
        assert_allclose(getattr(ours, f"{name}_prior_"), getattr(theirs, f"{name}_prior_"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("features", [1, 4])
def test_bound_of_one_component_is_the_exact_log_evidence(features):
    X = load_iris().data[:, :features]
    model = VariationalGaussianMixture(mean_precision_prior=0.5, degrees_of_freedom_prior=features + 2.0).fit(X)
    prior = NormalWishart(model.mean_prior_, 0.5, features + 2.0, model.covariance_prior_)
    assert model.lower_bound_ == pytest.approx(float(prior.log_evidence(X)), rel=1e-12)
    posterior = prior.update(X)
    assert_allclose(model.covariances_[0] * model.degrees_of_freedom_[0], posterior.inverse_scale, rtol=1e-10)
    new = torch.from_numpy(X[:20] + 0.5)
    assert_allclose(model.score_samples(new.numpy()), posterior.predictive.log_prob(new), rtol=1e-10)


def test_bound_is_the_sum_of_its_terms():
    """Equations 10.71–10.77 of Bishop (2006), term by term, at convergence of q(z)."""
    X = two_clusters()
    model = VariationalGaussianMixture(3, max_iter=2000, tol=0.0, random_state=0, weight_concentration_prior=0.7)
    model.fit(X)
    rows, size = X.shape
    a0, b0, v0 = model.weight_concentration_prior_, model.mean_precision_prior_, model.degrees_of_freedom_prior_
    m0, inverse0 = model.mean_prior_, model.covariance_prior_
    a, b, v, m = model.weight_concentration_, model.mean_precision_, model.degrees_of_freedom_, model.means_
    W = model.precisions_ / v[:, None, None]
    log_weights = digamma(a) - digamma(a.sum())
    log_det = digamma(0.5 * (v[:, None] - np.arange(size))).sum(1) + size * np.log(2.0) + np.linalg.slogdet(W)[1]
    gaps = X[:, None] - m
    distances = v * np.einsum("nki,kij,nkj->nk", gaps, W, gaps)
    log_rho = log_weights + 0.5 * (log_det - size * np.log(2.0 * np.pi) - size / b - distances)
    r = np.exp(log_rho - np.logaddexp.reduce(log_rho, axis=1)[:, None])
    N = r.sum(0)

    def log_b(inverse, freedom):
        log_norm = 0.5 * freedom * size * np.log(2.0) + multigammaln(0.5 * freedom, size)
        return 0.5 * freedom * np.linalg.slogdet(inverse)[1] - log_norm

    likelihood = 0.5 * (r * (log_det - size / b - distances - size * np.log(2.0 * np.pi))).sum()
    p_z, q_z = (r * log_weights).sum(), xlogy(r, r).sum()
    p_weights = gammaln(3 * a0) - 3 * gammaln(a0) + (a0 - 1.0) * log_weights.sum()
    q_weights = ((a - 1.0) * log_weights).sum() + gammaln(a.sum()) - gammaln(a).sum()
    p_parameters = q_parameters = 0.0
    for k in range(3):
        quadratic = b0 * v[k] * (m[k] - m0) @ W[k] @ (m[k] - m0)
        p_parameters += 0.5 * (size * np.log(b0 / (2.0 * np.pi)) + log_det[k] - size * b0 / b[k] - quadratic)
        p_parameters += log_b(inverse0, v0) + 0.5 * (v0 - size - 1) * log_det[k]
        p_parameters -= 0.5 * v[k] * np.trace(inverse0 @ W[k])
        entropy = -log_b(np.linalg.inv(W[k]), v[k]) - 0.5 * (v[k] - size - 1) * log_det[k] + 0.5 * v[k] * size
        q_parameters += 0.5 * log_det[k] + 0.5 * size * np.log(b[k] / (2.0 * np.pi)) - 0.5 * size - entropy
    total = likelihood + p_z + p_weights + p_parameters - q_z - q_weights - q_parameters
    assert model.lower_bound_ == pytest.approx(total, abs=1e-6)
    assert_allclose(a, a0 + N, atol=1e-5)
    assert rows == pytest.approx(N.sum())


def test_small_concentration_empties_components():
    X = two_clusters()
    options = {"random_state": 0, "max_iter": 500}
    few = VariationalGaussianMixture(6, weight_concentration_prior=1e-3, **options).fit(X)
    many = VariationalGaussianMixture(6, weight_concentration_prior=100.0, **options).fit(X)
    assert few.effective_components_ == 2
    assert (np.sort(few.weights_)[:4] < 1e-4).all()
    assert_allclose(np.sort(few.weights_)[4:], [0.4, 0.6], atol=0.1)
    assert (many.weights_ > 0.05).all()
    assert set(few.predict(X)) == set(np.argsort(few.weights_)[4:])


def test_bound_is_highest_at_the_true_number_of_clusters():
    X = two_clusters(rows=500)
    bounds = [
        VariationalGaussianMixture(k, weight_concentration_prior=1.0, n_init=3, random_state=0).fit(X).lower_bound_
        for k in (1, 2, 4)
    ]
    assert np.argmax(bounds) == 1


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random", "random_from_data"])
def test_bound_never_falls_and_chunks_match_the_array(init_params):
    X = two_clusters(rows=2000)
    model = VariationalGaussianMixture(4, init_params=init_params, random_state=0, max_iter=30)
    whole = model.fit(X)
    bounds, means = np.array(whole.lower_bounds_), whole.means_
    assert (np.diff(bounds) >= -1e-9 * len(X)).all()
    chunked = model.fit(lambda: iter(np.array_split(X, 7)))
    assert_allclose(chunked.lower_bounds_, bounds, rtol=1e-9)
    assert_allclose(chunked.means_, means, atol=1e-6)


def test_predictive_density_integrates_to_one_and_samples_follow_it():
    X = two_clusters(rows=30)[:, :1]
    model = VariationalGaussianMixture(2, random_state=0).fit(X)
    mass, _ = quad(lambda x: np.exp(model.score_samples([[x]])[0]), -np.inf, np.inf, limit=200)
    assert mass == pytest.approx(1.0, abs=1e-5)
    draws, labels = model.sample(3000)
    share = np.bincount(labels, minlength=2) / len(labels)
    assert (np.abs(share - model.weights_) < 4.5 * np.sqrt(model.weights_ / len(labels))).all()
    for k in range(2):
        freedom, b = model.degrees_of_freedom_[k], model.mean_precision_[k]
        scale = np.sqrt(model.covariances_[k, 0, 0] * (1.0 + 1.0 / b))
        law = stats.t(freedom, loc=model.means_[k, 0], scale=scale)
        assert stats.kstest(draws[labels == k, 0], law.cdf).pvalue > 1e-4


def test_predict_proba_matches_the_predictive_density():
    X = two_clusters()
    model = VariationalGaussianMixture(3, random_state=0).fit(X)
    weighted = []
    for k in range(3):
        freedom, b = model.degrees_of_freedom_[k] - 1.0, model.mean_precision_[k]
        shape = model.covariances_[k] * model.degrees_of_freedom_[k] * (1.0 + b) / (freedom * b)
        weighted.append(np.log(model.weights_[k]) + stats.multivariate_t(model.means_[k], shape, freedom).logpdf(X))
    total = np.logaddexp.reduce(weighted, axis=0)
    assert_allclose(model.score_samples(X), total, rtol=1e-10)
    assert_allclose(model.predict_proba(X), np.exp(np.array(weighted) - total).T, atol=1e-10)


@pytest.mark.parametrize("case", ["collinear", "constant", "copies", "outlier", "all_equal"])
def test_singular_data_have_a_proper_prior(case):
    X = two_clusters()
    data = {
        "collinear": np.column_stack([X, X[:, 0] * 3.0]),
        "constant": np.column_stack([X, np.full(len(X), 7.0)]),
        "copies": np.repeat(X[:3], 20, axis=0),
        "outlier": np.vstack([X, [[1e4, 1e4]]]),
        "all_equal": np.ones((20, 2)),
    }[case]
    model = VariationalGaussianMixture(5, random_state=0).fit(data)
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_", "lower_bounds_"):
        assert np.isfinite(getattr(model, name)).all()
    assert np.isfinite(model.score_samples(data)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_components": 201}, "as many rows as there are components"),
        ({"covariance_type": "diag"}, "unknown covariance_type 'diag': choose from full"),
        ({"weight_concentration_prior_type": "dirichlet_process"}, "unknown weight_concentration_prior_type"),
        ({"weight_concentration_prior": 0.0}, "weight_concentration_prior must be a positive number"),
        ({"mean_precision_prior": -1.0}, "mean_precision_prior must be a positive number"),
        ({"mean_prior": [0.0]}, r"mean_prior must be finite numbers of shape \(2,\)"),
        ({"degrees_of_freedom_prior": 1.0}, "degrees_of_freedom_prior must be above .* 1, got 1"),
        ({"covariance_prior": -np.eye(2)}, "covariance_prior is singular"),
        ({"covariance_prior": [[1.0, 0.5], [0.0, 1.0]]}, "covariance_prior must be symmetric"),
        ({"reg_covar": 0.0, "n_components": 2}, "covariance_prior is singular"),
    ],
)
def test_bad_arguments_raise(arguments, words):
    X = two_clusters()
    X = np.column_stack([X[:, 0], X[:, 0]]) if "reg_covar" in arguments else X
    with pytest.raises(InputError, match=words):
        VariationalGaussianMixture(**arguments).fit(X)


def test_initial_assignment_is_kmeans():
    """The first q(z) is the clustering: its bound is that of the counts, means and scatters of the clusters."""
    X = two_clusters()
    model = VariationalGaussianMixture(2, random_state=0, max_iter=1, tol=0.0).fit(X)
    labels = KMeans(2, n_init=5, random_state=0).fit(X).labels_
    bound = gammaln(1.0) - gammaln(1.0 + len(X))
    for k in range(2):
        mine = X[labels == k]
        bound += gammaln(0.5 + len(mine)) - gammaln(0.5)
        prior = NormalWishart(model.mean_prior_, 1.0, 2.0, model.covariance_prior_)
        bound += float(prior.log_evidence(mine))
    assert model.lower_bounds_[0] == pytest.approx(bound, abs=1e-6)


def three_clusters(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(center, 1.0, (400, 2)) for center in ((0.0, 0.0), (6.0, 0.0), (0.0, 6.0))])


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(8))
def test_default_settings_converge_to_the_number_of_clusters(seed):
    model = VariationalGaussianMixture(8, weight_concentration_prior=1e-3, random_state=seed).fit(three_clusters(seed))
    assert model.converged_
    assert model.effective_components_ == 3


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_default_tolerance_does_not_stop_on_a_plateau():
    """The bound can rise by less than 1e-3 nats per iteration, and by 13 nats when a component is emptied later."""
    X = load_iris().data
    early = VariationalGaussianMixture(8, tol=1e-3, random_state=2).fit(X)
    model = VariationalGaussianMixture(8, random_state=2).fit(X)
    assert model.effective_components_ < early.effective_components_
    assert model.lower_bound_ > early.lower_bound_ + 10.0


def test_unconverged_fit_warns():
    model = VariationalGaussianMixture(8, max_iter=20, random_state=0)
    with pytest.warns(ConvergenceWarning, match="VariationalGaussianMixture has not converged after 20 iterations"):
        model.fit(three_clusters(0))
