"""Precisions learned by evidence maximization and variational inference."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.linalg import LinAlgWarning
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import gamma
from sklearn.linear_model import BayesianRidge
from torch.distributions import MultivariateNormal

from credo.errors import InputError
from credo.linear import BayesianLinearRegression, GaussianBasis, Polynomial
from credo.linear._algebra import Spectrum, decompose
from credo.linear._evidence import PrecisionPrior, Precisions, maximize_evidence

from .tables import TABLES, sparse, table, table_of

PRECISE = {"tol": 1e-12, "max_iter": 100_000}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("intercept", [True, False])
def test_precisions_match_bayesian_ridge(name, intercept):
    x, y = TABLES[name]()
    theirs = BayesianRidge(fit_intercept=intercept, **PRECISE).fit(x, y)
    priors = {"weight_prior": (1e-6, 1e-6), "noise_prior": (1e-6, 1e-6)}
    for model in (
        BayesianLinearRegression(fit_intercept=intercept).fit(x, y),
        BayesianLinearRegression(fit_intercept=intercept, **priors).fit(x, y),
    ):
        np.testing.assert_allclose(model.weight_precision_, theirs.lambda_, rtol=1e-4)
        np.testing.assert_allclose(model.noise_precision_, theirs.alpha_, rtol=1e-4)
        np.testing.assert_allclose(model.predict(x), theirs.predict(x), rtol=1e-4, atol=1e-4 * np.std(y))


@pytest.mark.parametrize("name", TABLES)
def test_gradient_of_the_evidence_vanishes(name):
    x, y = TABLES[name]()
    model = BayesianLinearRegression(fit_intercept=False).fit(x, y)
    logs = torch.tensor([model.weight_precision_, model.noise_precision_]).double().log().requires_grad_()
    phi = torch.from_numpy(x)
    covariance = torch.eye(len(y), dtype=torch.float64) / logs[1].exp() + phi @ phi.T / logs[0].exp()
    evidence = MultivariateNormal(torch.zeros(len(y), dtype=torch.float64), covariance).log_prob(torch.from_numpy(y))
    np.testing.assert_allclose(model.log_evidence_, evidence.item(), rtol=1e-9)
    (gradient,) = torch.autograd.grad(evidence, logs)
    # The last step gained about 1e-12 nats, and the curvature in log α and log β is at most N/2; ten such steps remain
    # at most.
    assert gradient.abs().max() < 10 * math.sqrt(2 * 1e-12 * len(y) / 2)


def test_effective_parameters_count_the_determined_weights():
    x, y = sparse(rows=5000)
    # each of 10 weights lacks α/βλ of 1, about 0.3² / 5000 over the mean square of the weights, 0.5
    assert 10 - 2e-3 < BayesianLinearRegression().fit(x, y).effective_parameters_ < 10
    model = BayesianLinearRegression(fit_intercept=False).fit(x[:20], y[:20])
    hat = model.noise_precision_ * x[:20] @ model.sigma_ @ x[:20].T
    np.testing.assert_allclose(model.effective_parameters_, np.trace(hat), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_iteration_finds_the_maximum_of_a_general_optimizer(seed):
    x, y = table(rows=8 + 4 * seed, columns=6, noise=2.0, seed=seed)
    model = BayesianLinearRegression(noise_prior=(1.0, 1.0), weight_prior=(1.0, 1.0)).fit(x, y)
    lower = np.diff(model.lower_bounds_)
    assert lower.min() > -1e-9 * abs(model.lower_bound_)

    def negative(logs):
        alpha, beta = np.exp(logs)
        fixed = BayesianLinearRegression(weight_precision=alpha, noise_precision=beta).fit(x, y)
        return -(fixed.log_evidence_ + logs.sum() - alpha - beta)  # log Gam(1, 1) of α and β, in their logarithms

    found = minimize(negative, np.log([model.weight_precision_, model.noise_precision_]) + 0.1, tol=1e-12)
    np.testing.assert_allclose(found.fun, -model.lower_bound_, rtol=1e-8)


def test_no_step_of_the_iteration_lowers_the_evidence():
    """From random starts, for any rank, residual and priors."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows, columns = rng.integers(2, 14, size=2)
        scales = np.where(np.arange(columns) < rows, np.exp(rng.normal(scale=3.0, size=columns)), 0.0)
        targets = np.where(scales > 0, rng.normal(size=columns) * np.exp(rng.normal(scale=2.0, size=columns)), 0.0)
        residual = float(rng.exponential()) if rows > columns else 0.0
        spectrum = Spectrum(int(rows), scales, targets, residual)
        priors = [PrecisionPrior(*np.exp(rng.uniform(-15.0, 1.0, size=2))) for _ in range(2)]
        start = Precisions(*np.exp(rng.uniform(-8.0, 8.0, size=2)))
        fit = maximize_evidence(spectrum, *priors, [start], tolerance=1e-12, max_iter=1000)
        assert np.diff(fit.bounds).min() > -1e-12 * max(abs(b) for b in fit.bounds)


@pytest.mark.parametrize("given", ["weight_precision", "noise_precision"])
def test_fixed_precision_stays_and_the_other_is_learned(given):
    x, y = table()
    for way in ("evidence", "variational"):
        model = BayesianLinearRegression(hyperparameters=way, **{given: 0.3}).fit(x, y)
        assert getattr(model, f"{given}_") == 0.3
    around = [
        BayesianLinearRegression(**{given: 0.3, other: factor * getattr(model, f"{other}_")}).fit(x, y).log_evidence_
        for other in {"weight_precision", "noise_precision"} - {given}
        for factor in (0.99, 1.0, 1.01)
    ]
    assert np.argmax(around) == 1


def test_fit_is_equivariant_to_units():
    x, y = table()
    plain = BayesianLinearRegression().fit(x, y)
    other = BayesianLinearRegression().fit(1e-6 * x, 1e9 * y)
    np.testing.assert_allclose(1e-15 * other.coef_, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(1e18 * other.noise_precision_, plain.noise_precision_, rtol=1e-6)


def test_partial_fit_equals_fit_on_all_rows():
    x, y = table()
    for way in ("evidence", "variational", "ard"):
        batch = BayesianLinearRegression(hyperparameters=way).fit(x, y)
        pieces = BayesianLinearRegression(hyperparameters=way)
        for rows in (slice(0, 2), slice(2, 30), slice(30, 80)):
            pieces.partial_fit(x[rows], y[rows])
        np.testing.assert_allclose(pieces.weight_precision_, batch.weight_precision_, rtol=1e-5)
        np.testing.assert_allclose(pieces.coef_, batch.coef_, rtol=1e-5)
        np.testing.assert_allclose(pieces.lower_bound_, batch.lower_bound_, rtol=1e-9)


def test_partial_fit_with_another_basis_raises():
    x, y = table()
    model = BayesianLinearRegression().fit(x, y).set_params(basis=Polynomial(2))
    with pytest.raises(InputError, match="call fit instead"):
        model.partial_fit(x, y)


def test_variational_bound_rises_and_stays_below_the_exact_evidence():
    """log p(y) by a sum over a grid of (log α, log β), on which the closed form log p(y | α, β) is exact."""
    x, y = table(rows=25, columns=3, noise=1.0)
    priors = {"weight_prior": (2.0, 1.0), "noise_prior": (2.0, 0.5)}
    spectrum = decompose(table_of(x, y))[1]
    logs = np.linspace(-8.0, 5.0, 261)
    evidence = np.array([[spectrum.posterior(*np.exp([a, b])).log_evidence for b in logs] for a in logs])
    log_prior = [gamma.logpdf(np.exp(logs), a, scale=1 / b) + logs for a, b in priors.values()]
    weights = 2.0 * math.log(logs[1] - logs[0])
    exact = logsumexp(evidence + log_prior[0][:, None] + log_prior[1]) + weights

    model = BayesianLinearRegression(hyperparameters="variational", fit_intercept=False, **priors).fit(x, y)
    assert np.diff(model.lower_bounds_).min() > -1e-9 * abs(model.lower_bound_)
    assert exact - 0.5 < model.lower_bound_ < exact
    assert model.log_evidence_ is None


def test_variational_posterior_satisfies_its_update_equations():
    x, y = table(rows=25, columns=3, noise=1.0)
    (a, b), (c, d) = (2.0, 1.0), (3.0, 0.5)
    model = BayesianLinearRegression(
        hyperparameters="variational", weight_prior=(a, b), noise_prior=(c, d), fit_intercept=False, tol=1e-14
    ).fit(x, y)
    m, s = model.coef_, model.sigma_
    alpha = (a + 1.5) / (b + (m @ m + np.trace(s)) / 2)
    beta = (c + 12.5) / (d + (((y - x @ m) ** 2).sum() + np.trace(x.T @ x @ s)) / 2)
    np.testing.assert_allclose(model.weight_precision_, alpha, rtol=1e-5)
    np.testing.assert_allclose(model.noise_precision_, beta, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.inv(s), alpha * np.eye(3) + beta * x.T @ x, rtol=1e-5)


def test_variational_bound_equals_the_evidence_for_fixed_precisions():
    x, y = table()
    known = {"weight_precision": 0.7, "noise_precision": 4.0}
    bound = BayesianLinearRegression(hyperparameters="variational", **known).fit(x, y).lower_bound_
    np.testing.assert_allclose(bound, BayesianLinearRegression(**known).fit(x, y).log_evidence_, rtol=1e-12)


def test_log_density_of_precision_priors():
    assert PrecisionPrior(fixed=2.0).mode(10.0, 1.0) == 2.0
    assert PrecisionPrior(fixed=2.0).log_density(2.0) == 0.0
    density = gamma.logpdf(0.3, 2.0, scale=1 / 5.0) + math.log(0.3)
    assert PrecisionPrior(2.0, 5.0).log_density(0.3) == pytest.approx(density, rel=1e-12)


@pytest.mark.parametrize("way", ["evidence", "variational", "ard"])
def test_degenerate_tables_have_finite_results(way):
    x, y = table(rows=20, columns=3)
    rng = np.random.default_rng(0)
    cases = {
        "repeated columns": (np.hstack([x, x]), y),
        "constant column": (np.hstack([x, np.full((20, 1), 1e8 / 3)]), y),
        "nothing but constants": (np.ones((20, 2)), y),
        "constant target": (x, np.full(20, 1 / 3)),
        "target 0": (x, np.zeros(20)),
        "exact fit": (x, x @ [1.0, 2.0, 3.0]),
        "exact fit, repeated columns": (np.hstack([x, x]), x @ [1.0, 2.0, 3.0]),
        "more columns than rows": (rng.normal(size=(8, 30)), y[:8]),
        "only noise": (x, rng.normal(size=20)),
        "two rows": (x[:2], y[:2]),
    }
    for name, (features, targets) in cases.items():
        model = BayesianLinearRegression(hyperparameters=way).fit(features, targets)
        p = model.predict_dist(features)
        assert np.isfinite(model.sigma_).all(), name
        assert bool(p.mean.isfinite().all() & (p.std > 0).all()), name
        assert math.isfinite(model.lower_bound_), name


def test_constant_targets_give_a_tiny_positive_noise():
    x, _ = table(rows=50)
    model = BayesianLinearRegression().fit(x, np.full(50, 4.0))
    np.testing.assert_allclose(model.predict(x), 4.0, rtol=1e-9)
    # the hyperprior's 2·10⁻¹² observations of a target of size 4 are all that is left
    bound = 2e-12 * 4.0**2 / 50
    assert bound / 2 < 1 / model.noise_precision_ < 2 * bound


def test_higher_of_two_maxima_of_the_evidence_is_found():
    """Columns of very different size: shrinking all but the largest is a maximum too, but a poor one."""
    x, y = table(noise=0.1)
    sizes = np.array([1e-6, 1.0, 1e3, 1e6, 1e8])
    model = BayesianLinearRegression().fit(x * sizes, y)
    assert model.score(x * sizes, y) > 0.99


@pytest.mark.parametrize("seed", [51, 66, 72])  # an iteration from a single start ends 5 to 9 nats below the maximum
@pytest.mark.parametrize("given", [{}, {"weight_precision": 1e-3}, {"noise_precision": 0.3}])
def test_highest_maximum_is_found_with_columns_in_different_units(seed, given):
    """Against the evidence on a fine grid of (log α, log β)."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(5, 60)), int(rng.integers(1, 8))
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-4, 4, columns)
    y = x @ (rng.normal(size=columns) / x.std(0)) + 3.0 * rng.normal()
    y = y + 10.0 ** rng.uniform(-2, 1) * rng.normal(size=rows)
    model = BayesianLinearRegression(fit_intercept=False, **given).fit(x, y)
    left, scales, _ = np.linalg.svd(x, full_matrices=False)
    squares = np.square(left.T @ y)
    alphas, betas = np.exp(np.linspace(-30.0, 40.0, 701))[:, None], np.exp(np.linspace(-12.0, 12.0, 241))
    alphas = given.get("weight_precision", alphas)
    betas = given.get("noise_precision", betas)
    evidence = rows * np.log(betas / (2.0 * math.pi)) - betas * (y @ y - squares.sum())
    for scale, square in zip(scales, squares, strict=True):
        gain = betas / alphas * scale**2
        evidence = evidence - np.log1p(gain) - betas * square / (1.0 + gain)
    # the weak priors of the precisions take 1e-5 nats at most, of precisions far from the usual
    assert model.log_evidence_ > 0.5 * evidence.max() - 1e-5


def test_noise_is_not_zero_if_any_targets_can_be_fitted_exactly():
    """With an intercept and more columns than rows the evidence has no bound; the proper maximum is taken."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 60)) * np.geomspace(1.0, 0.01, 60)
    y = x @ rng.normal(size=60) + 0.5 * rng.normal(size=30)
    noise = 1.0 / BayesianLinearRegression().fit(x, y).noise_precision_
    # the relative standard error of a variance from 30 rows less γ, at most 29 − 10, is √(2/10) or less
    assert abs(noise / 0.25 - 1.0) < 4 * math.sqrt(2 / 10)


def exact_log_evidence(phi: np.ndarray, y: np.ndarray, alpha: float, beta: float, intercept: bool) -> float:
    """In rational numbers, without rounding but for the last logarithm."""
    table = [[Fraction(v) for v in (*row, target)] for row, target in zip(phi.tolist(), y.tolist(), strict=True)]
    if intercept:
        means = [sum(column) / len(table) for column in zip(*table, strict=True)]
        table = [[v - mean for v, mean in zip(row, means, strict=True)] for row in table]
    columns = list(zip(*table, strict=True))
    gram = [[Fraction(beta) * sum(a * b for a, b in zip(u, v, strict=True)) for v in columns] for u in columns]
    for j in range(phi.shape[1]):
        gram[j][j] += Fraction(alpha)
    pivots = []
    for j, top in enumerate(gram[:-1]):
        pivots.append(top[j])
        for row in gram[j + 1 :]:
            share = row[j] / top[j]
            row[j:] = [a - share * b for a, b in zip(row[j:], top[j:], strict=True)]
    log_dets = sum(math.log(alpha) - math.log(p.numerator) + math.log(p.denominator) for p in pivots)
    return 0.5 * (log_dets + len(y) * math.log(beta / (2.0 * math.pi)) - float(gram[-1][-1]))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("low", "high", "degree"), [(0.0, 10.0, 12), (0.0, 100.0, 12), (2.0, 5.0, 9)])
def test_evidence_of_powers_of_large_numbers_loses_no_digits(low, high, degree, intercept):
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, size=(40, 1))
    y = np.sin(6.0 * (x[:, 0] - low) / (high - low)) + 0.1 * rng.normal(size=40)
    phi, known = Polynomial(degree)(x), {"weight_precision": 1e-3, "noise_precision": 100.0}
    model = BayesianLinearRegression(Polynomial(degree), fit_intercept=intercept, **known).fit(x, y)
    exact = exact_log_evidence(phi, y, 1e-3, 100.0, intercept)
    # rounding moves each singular value of columns of length 1 by 2.2e-16, a share of their condition number, and the
    # evidence is at most a few nats per relative change of one of them
    columns = phi - intercept * phi.mean(0)
    condition = np.linalg.cond(columns / np.linalg.norm(columns, axis=0))
    assert model.log_evidence_ == pytest.approx(exact, abs=4 * degree * condition * 2.2e-16)


def test_nearly_collinear_features_warn():
    year = np.linspace(1990.0, 2020.0, 60)[:, None]
    y = np.sin((year[:, 0] - 1990.0) / 5.0)
    with pytest.warns(LinAlgWarning, match=r"may change the log evidence by .* nats.*: scale the inputs"):
        BayesianLinearRegression(Polynomial(9), weight_precision=1e-3).fit(year, y)
    BayesianLinearRegression(Polynomial(9), weight_precision=1e-3).fit((year - 2005.0) / 15.0, y)
    BayesianLinearRegression(weight_precision=1e-3).fit(np.hstack([year, year, year]), y)  # exactly alike: well defined


def test_noise_precision_is_recovered_with_a_large_basis():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(40, 1))
    truth = np.sin(2 * np.pi * x[:, 0])
    model = BayesianLinearRegression(GaussianBasis(20)).fit(x, truth + 0.2 * rng.normal(size=40))
    grid = np.linspace(0.05, 0.95, 50)[:, None]
    error = model.predict(grid) - np.sin(2 * np.pi * grid[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.2
    # the relative standard error of a noise variance from 40 rows less γ is √(2/(40 − γ))
    free = 40 - model.effective_parameters_
    assert abs(1 / model.noise_precision_ / 0.2**2 - 1) < 4 * math.sqrt(2 / free)
