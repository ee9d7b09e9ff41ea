"""The linear-Gaussian identities, each by two routes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from credo.conjugate import GaussianBelief, LinearGaussian, condition
from credo.errors import InputError
from credo.testing import simulation_based_calibration

M, D = 3, 5
TINY = 1e-12  # rounding of matrices of this size in float64, which are well conditioned


def _random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _precision(size, seed):
    factor = _random(size, size, seed=seed)
    return factor @ factor.mT + torch.eye(size, dtype=torch.float64)


PRIOR = GaussianBelief.from_precision(_random(M, seed=0), _precision(M, 1))
NOISES = {"one number": 2.0, "diagonal": _random(D, seed=2).square() + 0.5, "full": _precision(D, 3)}


@pytest.fixture(params=NOISES, ids=lambda name: name.replace(" ", "-"))
def model(request):
    return LinearGaussian(PRIOR, _random(D, M, seed=4), _random(D, seed=5), NOISES[request.param])


def _joint(model):
    """The joint Gaussian of (x, y), computed from covariances instead of precisions."""
    noise = torch.as_tensor(model.noise_precision, dtype=torch.float64)
    matrix = noise if noise.ndim == 2 else torch.diag(noise.expand(D))
    cov_x = torch.linalg.inv(PRIOR.precision)
    cov_xy = cov_x @ model.matrix.mT
    cov_y = model.matrix @ cov_xy + torch.linalg.inv(matrix)
    return cov_x, cov_xy, cov_y


def test_marginal_equals_joint_marginal(model):
    _, _, cov_y = _joint(model)
    expected = MultivariateNormal(model.matrix @ PRIOR.mean + model.offset, cov_y)
    torch.testing.assert_close(model.marginal.mean, expected.mean, rtol=TINY, atol=TINY)
    torch.testing.assert_close(model.marginal.covariance_matrix, cov_y, rtol=TINY, atol=TINY)


def test_posterior_equals_joint_conditional(model):
    cov_x, cov_xy, cov_y = _joint(model)
    y = _random(7, D, seed=6)
    gain = cov_xy @ torch.linalg.inv(cov_y)
    posterior = model.posterior(y)
    residual = y - model.marginal.mean
    torch.testing.assert_close(posterior.mean, PRIOR.mean + residual @ gain.mT, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(posterior.covariance, cov_x - gain @ cov_xy.mT, rtol=1e-10, atol=1e-10)


def test_log_evidence_equals_marginal_log_density(model):
    y = _random(7, D, seed=7)
    torch.testing.assert_close(model.log_evidence(y), model.marginal.log_prob(y), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.log_evidence(y[0]), model.log_evidence(y)[0], rtol=TINY, atol=TINY)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_log_evidence_is_accurate_with_little_noise(far):
    """By the part of y that A reaches and the part that it does not, which have closed forms of their own.

    Rounding of y, 1e-16 of ``far``, moves √β times it by far · 1e-16 · √β standard deviations.
    """
    beta, matrix = 1e10, _random(D, M, seed=4)
    prior = GaussianBelief(far * _random(M, seed=0), torch.eye(M, dtype=torch.float64))
    innovation = matrix @ _random(M, seed=7) + _random(D, seed=8) / beta**0.5
    y = matrix @ prior.mean + innovation
    q, r = torch.linalg.qr(matrix)
    reached = MultivariateNormal(torch.zeros(M).double(), r @ r.mT + torch.eye(M) / beta).log_prob(q.mT @ innovation)
    left = innovation - q @ (q.mT @ innovation)
    noise = 0.5 * (D - M) * math.log(beta / (2.0 * math.pi)) - 0.5 * beta * left.square().sum()
    found = LinearGaussian(prior, matrix, torch.zeros(D).double(), beta).log_evidence(y)
    torch.testing.assert_close(found, reached + noise, rtol=0.0, atol=1e-8 + 50 * far * 1e-16 * beta**0.5)


def test_bayes_rule_holds_at_any_x(model):
    x, y = _random(M, seed=8), _random(D, seed=9)
    noise = torch.as_tensor(model.noise_precision, dtype=torch.float64)
    precision = noise if noise.ndim == 2 else torch.diag(noise.expand(D))
    likelihood = MultivariateNormal(model.matrix @ x + model.offset, precision_matrix=precision).log_prob(y)
    posterior = model.posterior(y).distribution.log_prob(x)
    expected = PRIOR.distribution.log_prob(x) + likelihood - posterior
    torch.testing.assert_close(model.log_evidence(y), expected, rtol=1e-10, atol=1e-10)


def test_conditioning_in_batches_equals_conditioning_at_once():
    rows, targets = _random(20, M, seed=10), _random(20, seed=11)
    whole = condition(PRIOR, rows.mT @ rows, rows.mT @ targets)
    piecewise = PRIOR
    for part in torch.randperm(20, generator=torch.Generator().manual_seed(0)).split(3):
        piecewise = condition(piecewise, rows[part].mT @ rows[part], rows[part].mT @ targets[part])
    torch.testing.assert_close(piecewise.mean, whole.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(piecewise.precision, whole.precision, rtol=1e-10, atol=1e-10)


def test_moments_of_a_gaussian_belief():
    draws = PRIOR.sample(100_000, torch.Generator().manual_seed(0))
    error = PRIOR.covariance.diagonal().sqrt() / 100_000**0.5
    assert ((draws.mean(0) - PRIOR.mean).abs() < 4.0 * error).all()
    directions = _random(4, M, seed=12)
    along = (directions @ PRIOR.covariance * directions).sum(-1)
    torch.testing.assert_close(PRIOR.variance_along(directions), along, rtol=TINY, atol=TINY)
    # the variance of a Gaussian's sample variance is 2σ⁴/n
    assert ((draws @ directions.mT).var(0) / along - 1.0).abs().max() < 4.0 * (2.0 / 100_000) ** 0.5
    torch.testing.assert_close(PRIOR.log_det_precision, torch.logdet(PRIOR.precision), rtol=TINY, atol=TINY)
    torch.testing.assert_close(PRIOR.quadratic, PRIOR.mean @ PRIOR.precision @ PRIOR.mean, rtol=TINY, atol=TINY)


def test_linear_gaussian_posterior_is_calibrated():
    model = LinearGaussian(PRIOR, _random(D, M, seed=4), _random(D, seed=5), NOISES["full"])

    def simulate(x, generator):
        noise = torch.randn(D, generator=generator, dtype=torch.float64)
        spread = torch.linalg.solve_triangular(torch.linalg.cholesky(NOISES["full"]).mT, noise[:, None], upper=True)
        return model.matrix @ x + model.offset + spread[:, 0]

    ranks = simulation_based_calibration(
        lambda generator: PRIOR.sample(1, generator)[0],
        simulate,
        lambda y, n, generator: model.posterior(y).sample(n, generator),
    )
    assert (ranks.p_values() > 0.001 / M).all()


def test_bad_precision_matrix_or_offset_raises():
    with pytest.raises(InputError, match="not positive definite"):
        GaussianBelief.from_precision(torch.zeros(2), torch.ones(2, 2))
    with pytest.raises(InputError, match=r"matrix must have shape \[D, 3\]"):
        LinearGaussian(PRIOR, torch.ones(D, 2, dtype=torch.float64), torch.zeros(D), 1.0)
    with pytest.raises(InputError, match="offset"):
        LinearGaussian(PRIOR, torch.ones(D, M, dtype=torch.float64), torch.zeros(D + 1), 1.0)
