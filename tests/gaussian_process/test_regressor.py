"""Gaussian process regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor as Reference
from sklearn.gaussian_process import kernels as theirs

from credo.conjugate import GaussianBelief, LinearGaussian
from credo.gaussian_process import GaussianProcessRegressor, _inference
from credo.gaussian_process.kernels import RBF, Constant, Linear, Matern, Periodic, White
from credo.testing import simulation_based_calibration

from .curve import KERNEL, curve, fixed
from .pairs import NOISE, PAIRS, WHITE, points


@pytest.mark.parametrize("normalize_y", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_predictions_equal_scikit_learn(name, normalize_y):
    ours, kernel = PAIRS[name]
    X, new = points(name), points(name, 11, seed=5)
    y = 3.0 + np.sin(2.0 * X).sum(1)
    scale = y.std() if normalize_y else 1.0
    gp = fixed(ours, noise=NOISE * scale, normalize_y=normalize_y).fit(X, y)
    reference = Reference(kernel + WHITE, alpha=0.0, optimizer=None, normalize_y=normalize_y).fit(X, y)

    mean, std = reference.predict(new, return_std=True)
    _, covariance = reference.predict(new, return_cov=True)
    exact = {"rtol": 1e-8, "atol": 1e-8}
    np.testing.assert_allclose(gp.predict(new), mean, **exact)
    np.testing.assert_allclose(gp.predict(new, return_std=True)[1], std, **exact)
    np.testing.assert_allclose(gp.predict(new, return_cov=True)[1], covariance, **exact)
    # scikit-learn's evidence is of the scaled targets, ours of the targets
    expected = reference.log_marginal_likelihood_value_ - len(y) * np.log(scale)
    assert gp.log_evidence_ == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(gp.L_, reference.L_, atol=1e-9)
    np.testing.assert_allclose(gp.alpha_, reference.alpha_, rtol=1e-6, atol=1e-8)
    assert gp.score(X, y) == pytest.approx(reference.score(X, y), rel=1e-8)


def test_linear_kernel_is_bayesian_linear_regression():
    random = np.random.default_rng(0)
    X, new = random.normal(size=(20, 3)), random.normal(size=(6, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.7 + NOISE * random.normal(size=20)
    gp = fixed(Linear((0.5, 1.0, 2.0)) + Constant(4.0)).fit(X, y)

    phi, phi_new = (torch.from_numpy(np.c_[points, np.ones(len(points))]) for points in (X, new))
    prior = GaussianBelief.from_precision(phi.new_zeros(4), torch.diag(phi.new_tensor([0.5, 1.0, 2.0, 4.0])).inverse())
    model = LinearGaussian(prior, phi, phi.new_zeros(20), NOISE**-2)
    belief = model.posterior(torch.from_numpy(y))
    p = gp.predict_dist(new)
    torch.testing.assert_close(p.mean, phi_new @ belief.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(p.epistemic, belief.variance_along(phi_new), rtol=1e-8, atol=1e-8)
    assert gp.log_evidence_ == pytest.approx(model.log_evidence(torch.from_numpy(y)).item(), rel=1e-8)


def test_uncertainty_is_split_into_function_and_noise():
    X, y = curve()
    gp = GaussianProcessRegressor().fit(X, y)
    near, far = gp.predict_dist(X[:1]), gp.predict_dist([[50.0]])
    for p in (near, far):
        assert p.aleatoric.item() == pytest.approx(gp.noise_**2)
        torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    assert near.epistemic < 0.1 * far.epistemic
    # far from all data there is nothing but the prior
    assert far.mean.item() == pytest.approx(y.mean())
    assert far.epistemic.item() == pytest.approx(gp.y_scale_**2 * gp.kernel_.left.value, rel=1e-6)


def test_white_in_the_kernel_is_part_of_the_function():
    X, y = curve()
    inside, beside = fixed(KERNEL + White(NOISE), noise=0.0).fit(X, y), fixed().fit(X, y)
    new = np.linspace(-3.0, 3.0, 7)[:, None]
    as_function, as_noise = inside.predict_dist(new), beside.predict_dist(new)
    torch.testing.assert_close(as_function.mean, as_noise.mean)
    torch.testing.assert_close(as_function.variance, as_noise.variance)
    torch.testing.assert_close(as_function.epistemic, as_noise.variance)
    assert inside.log_evidence_ == pytest.approx(beside.log_evidence_)


@pytest.mark.parametrize(("d", "scales"), [(1, 1.0), (3, (1.0, 1.0, 1.0))])
def test_evidence_reaches_that_of_scikit_learn_from_the_same_start(d, scales):
    X, y = curve(60, d)
    gp = GaussianProcessRegressor(Constant() * RBF(scales), noise=White(0.3, (1e-4, 1e2)), normalize_y=False).fit(X, y)
    start = theirs.ConstantKernel() * theirs.RBF(scales) + theirs.WhiteKernel(0.3**2, (1e-8, 1e4))
    reference = Reference(start, alpha=0.0).fit(X, y)
    assert gp.log_evidence_ >= reference.log_marginal_likelihood_value_ - 1e-4


def test_restarts_find_a_period_and_are_reproducible():
    X = np.random.default_rng(0).uniform(0.0, 10.0, size=(30, 1))
    y = np.sin(2.0 * np.pi * X[:, 0] / 1.7) + 0.1 * np.random.default_rng(1).normal(size=30)
    start = Periodic(1.0, period=0.6, length_scale_bounds=(0.5, 2.0), period_bounds=(0.5, 3.0))
    once = GaussianProcessRegressor(start).fit(X, y)
    first, again = (GaussianProcessRegressor(start, n_restarts_optimizer=9, random_state=0).fit(X, y) for _ in range(2))
    assert first.log_evidence_ > once.log_evidence_ + 1.0
    assert first.kernel_.period == pytest.approx(1.7, rel=0.01)
    assert first.kernel_ == again.kernel_


@pytest.mark.parametrize("seed", [10, 50])  # a search from one start ends 35 and more nats lower
def test_fast_functions_are_not_fitted_as_noise(seed):
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(8, 40)), int(rng.integers(1, 4))
    x = rng.uniform(-3.0, 3.0, (rows, columns))
    y = (
        np.sin(x[:, 0] * rng.uniform(0.5, 4.0))
        + 0.5 * x[:, -1]
        + 10.0 ** rng.uniform(-2.0, 0.0) * rng.normal(size=rows)
    )
    found = GaussianProcessRegressor().fit(x, y)
    searched = GaussianProcessRegressor(n_restarts_optimizer=5, random_state=0).fit(x, y)
    assert found.log_evidence_ > searched.log_evidence_ - 0.1
    assert found.noise_ < 0.5 * y.std()


def test_starts_are_compared_on_a_subset_of_the_rows(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, (60, 1))
    y = np.sin(6.0 * x[:, 0]) + 0.1 * rng.normal(size=60)
    whole = GaussianProcessRegressor().fit(x, y)
    monkeypatch.setattr(_inference, "START_ROWS", 40)
    # the same maximum, up to where L-BFGS-B stops
    assert GaussianProcessRegressor().fit(x, y).log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-3)


def test_learned_noise_is_in_units_of_the_targets():
    X, y = curve(400)
    for unit in (1.0, 1e-3, 1e4):
        gp = GaussianProcessRegressor().fit(X, unit * y)
        # the standard error of a standard deviation from n observations is σ/√2n
        assert gp.noise_ / unit == pytest.approx(NOISE, abs=4.0 * NOISE / np.sqrt(800))
    assert GaussianProcessRegressor(noise=0.5).fit(X[:50], y[:50]).noise_ == pytest.approx(0.5)
    kept = GaussianProcessRegressor(noise=White(0.5, (0.4, 0.6))).fit(X[:50], y[:50])
    assert kept.noise_ == pytest.approx(0.4)


def test_predictions_and_evidence_are_equivariant_to_units():
    X, y = curve()
    plain, scaled = (GaussianProcessRegressor(Constant() * RBF(1.0)).fit(X, unit * y + unit) for unit in (1.0, 100.0))
    np.testing.assert_allclose(scaled.predict(X), 100.0 * plain.predict(X) + 0.0, rtol=1e-6)
    assert scaled.log_evidence_ == pytest.approx(plain.log_evidence_ - len(y) * np.log(100.0))


def test_default_kernel_is_equivariant_to_units_without_normalization():
    X, y = curve()
    y = y - y.mean()
    expected = GaussianProcessRegressor().fit(X, y).log_evidence_
    for unit in (1.0, 1e-9):
        gp = GaussianProcessRegressor(normalize_y=False).fit(X, unit * y)
        assert gp.log_evidence_ + len(y) * np.log(unit) == pytest.approx(expected, abs=1e-3)


def test_log_marginal_likelihood_of_other_hyperparameters():
    X, y = curve()
    gp = GaussianProcessRegressor().fit(X, y)
    assert gp.log_marginal_likelihood() == pytest.approx(gp.log_evidence_)
    assert gp.log_marginal_likelihood(gp.kernel_.with_theta(gp.kernel_.theta + 0.5)) < gp.log_evidence_
    assert gp.log_marginal_likelihood(noise=2.0 * gp.noise_) < gp.log_evidence_
    assert fixed().fit(X, y).log_marginal_likelihood(Matern(0.5)) == pytest.approx(
        fixed(Matern(0.5)).fit(X, y).log_evidence_
    )


def test_means_of_the_terms_add_up():
    X, y = curve(40)
    gp = fixed(2.0 * RBF(2.0) + 0.5 * Periodic(1.0, period=0.8) + Linear(), normalize_y=True).fit(X, y)
    new = np.linspace(-3.0, 3.0, 9)[:, None]
    parts = gp.decompose(new)
    assert len(parts) == len(gp.kernel_.terms) == 3
    torch.testing.assert_close(sum(p.mean for p in parts) + gp.y_mean_, gp.predict_dist(new).mean)
    alone = GaussianProcessRegressor(gp.kernel_.terms[0]).kernel
    prior = gp.y_scale_**2 * alone(new).diagonal()
    assert (parts[0].epistemic < prior).all()


def test_leave_one_out_equals_refitting_without_the_row():
    X, y = curve(12)
    p = fixed().fit(X, y).leave_one_out()
    for row in range(len(X)):
        rest = np.arange(len(X)) != row
        other = fixed().fit(X[rest], y[rest]).predict_dist(X[[row]])
        torch.testing.assert_close(p[row].mean, other.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(p[row].epistemic, other.epistemic, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("noise", [False, True])
def test_draws_have_the_moments_of_the_posterior(fitted, noise):
    n, new = 4000, np.linspace(-2.0, 2.0, 4)[:, None]
    gp = fixed()
    mean, covariance = np.zeros(4), KERNEL(new).numpy() + NOISE**2 * np.eye(4)
    if fitted:
        mean, covariance = gp.fit(*curve(8)).predict(new, return_cov=True)
    covariance = covariance - (not noise) * NOISE**2 * np.eye(4)
    draws = gp.sample_y(new, n, random_state=1, noise=noise)
    assert draws.shape == (4, n)
    variance = covariance.diagonal()
    assert np.all(abs(draws.mean(1) - mean) < 4.0 * np.sqrt(variance / n))
    # Var of a sample covariance of Gaussians: (Σ_ij² + Σ_ii Σ_jj)/n
    error = np.sqrt((covariance**2 + np.outer(variance, variance)) / n)
    assert np.all(abs(np.cov(draws) - covariance) < 4.0 * error)


def test_draws_are_reproducible_and_keep_the_global_random_state():
    X, y = curve()
    gp, state = fixed().fit(X, y), torch.get_rng_state()
    first, again, other = (gp.sample_y(X, 3, random_state=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert GaussianProcessRegressor().sample_y(X, 2).shape == (25, 2)  # the default kernel, before any data


def test_smooth_draws_need_no_jitter():
    X = np.linspace(0.0, 1.0, 200)[:, None]
    assert np.isfinite(fixed(RBF(5.0)).sample_y(X, 3)).all()


def test_intervals_cover_data_from_the_prior():
    repeats, train, test, level = 200, 15, 5, 0.9
    inside = []
    for seed in range(repeats):
        X = np.random.default_rng(seed).uniform(-2.0, 2.0, size=(train + test, 2))
        y = fixed().sample_y(X, random_state=seed, noise=True)[:, 0]
        low, high = fixed().fit(X[:train], y[:train]).predict_dist(X[train:]).interval(level)
        inside.append(np.mean((y[train:] >= low.numpy()) & (y[train:] <= high.numpy())))
    # test rows of one repeat go together, so the error is that of the repeats
    assert np.mean(inside) == pytest.approx(level, abs=4.0 * np.std(inside) / np.sqrt(repeats))


def test_posterior_is_calibrated():
    places = np.random.default_rng(0).uniform(-2.0, 2.0, size=(9, 1))
    root = torch.linalg.cholesky(KERNEL(places))

    def observe(f, generator):
        return f + NOISE * torch.randn(len(f), generator=generator, dtype=torch.float64)

    def posterior(y, n, generator):
        seed = int(torch.randint(2**31, (), generator=generator))
        gp = fixed().fit(places[:6], y[:6].numpy())
        return torch.from_numpy(gp.sample_y(places, n, random_state=seed).T)

    ranks = simulation_based_calibration(
        lambda g: root @ torch.randn(9, generator=g, dtype=torch.float64), observe, posterior, simulations=400
    )
    assert ranks.p_values(bins=10).min() > 1e-3 / 9


def test_repeated_inputs_without_noise_warn_of_a_jitter():
    X, y = np.repeat(np.linspace(-1.0, 1.0, 5), 2)[:, None], np.repeat(np.linspace(-1.0, 1.0, 5), 2)
    with pytest.warns(UserWarning, match=r"not positive definite and 1.5e-\d+ was added"):
        gp = fixed(noise=0.0).fit(X, y)
    np.testing.assert_allclose(gp.predict(X), y, atol=1e-5)
    assert gp.jitter_ > 0.0
    with pytest.warns(UserWarning, match="was added"):
        assert gp.log_marginal_likelihood() == gp.log_evidence_
    assert fixed().fit(X, y).jitter_ == 0.0


def test_exact_observations_are_interpolated():
    X = np.linspace(-1.0, 1.0, 6)[:, None]
    p = fixed(Matern(0.5, nu=2.5), noise=0.0).fit(X, X[:, 0] ** 2).predict_dist(X)
    torch.testing.assert_close(p.mean, torch.from_numpy(X[:, 0] ** 2), rtol=1e-8, atol=1e-8)
    assert ((p.std > 0.0) & (p.std < 1e-5)).all()
    assert torch.isfinite(p.log_prob(p.mean)).all()


@pytest.mark.parametrize("y", [np.full(6, 0.1), np.zeros(1)])
def test_constant_targets_warn(y):
    X = np.arange(len(y), dtype=float)[:, None]
    with pytest.warns(UserWarning, match="the hyperparameters are not learned"):
        gp = GaussianProcessRegressor().fit(X, y)
    mean, std = gp.predict(X + 0.5, return_std=True)
    np.testing.assert_allclose(mean, y)
    assert (std > 0.1).all()


def test_fitted_kernel_at_a_bound_can_be_refitted():
    X, y = curve(30, 2)
    X[:, 1] = 1.0  # a constant feature says nothing: its length scale may go anywhere
    gp = GaussianProcessRegressor(Constant() * RBF((1.0, 1.0), (1e-2, 3.3))).fit(X, y)
    again = GaussianProcessRegressor(gp.kernel_, noise=White(gp.noise_)).fit(X, y)
    assert again.log_evidence_ == pytest.approx(gp.log_evidence_, abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_gives_the_result_of_the_cpu():
    X, y = curve(200, 3)
    here, there = (GaussianProcessRegressor(device=device).fit(X, y) for device in ("cpu", "cuda"))
    assert there.log_evidence_ == pytest.approx(here.log_evidence_, abs=1e-3)
    np.testing.assert_allclose(there.predict(X), here.predict(X), rtol=1e-4, atol=1e-4)
    assert there.predict_dist(X).mean.device.type == "cpu"
    assert np.isfinite(there.sample_y(X[:20], 3)).all()
    assert len(there.decompose(X)) == 1
    there.leave_one_out()
