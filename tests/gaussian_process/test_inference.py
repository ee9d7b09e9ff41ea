"""The evidence and its gradient against scikit-learn, torch and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor as Reference
from torch.distributions import MultivariateNormal

from credo.errors import DivergenceError
from credo.gaussian_process import _inference
from credo.gaussian_process._inference import evidence_gradient, maximize_evidence, solve
from credo.gaussian_process.kernels import RBF, Constant, Linear, White

from .pairs import NOISE, PAIRS, WHITE, by_name, points


def targets(x, seed=1):
    return np.sin(2.0 * x).sum(1) + NOISE * np.random.default_rng(seed).normal(size=len(x))


@pytest.mark.parametrize("name", PAIRS)
def test_evidence_and_gradient_equal_scikit_learn(name):
    ours, theirs = PAIRS[name]
    x = points(name)
    y = targets(x)
    reference = Reference(theirs + WHITE, alpha=0.0, optimizer=None).fit(x, y)
    expected, slope = reference.log_marginal_likelihood(reference.kernel_.theta, eval_gradient=True)

    observed, x, y = ours + White(NOISE), torch.from_numpy(x), torch.from_numpy(y)
    theta = observed.theta_like(x)
    solution = solve(observed, theta, x, y)
    assert solution.log_evidence == pytest.approx(expected, rel=1e-8)
    assert solution.jitter == 0.0
    *slope, noise = slope
    # scikit-learn's last is the logarithm of a variance, ours of a standard deviation
    wanted = [*np.array(slope)[by_name(theirs)], 2.0 * noise]
    if name == "linear":
        wanted[0] /= 2.0  # and its σ₀ is a standard deviation, our constant a variance
    np.testing.assert_allclose(evidence_gradient(observed, theta, x, solution), wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", PAIRS)
def test_evidence_is_the_density_of_the_targets(name):
    ours, _ = PAIRS[name]
    x = torch.from_numpy(points(name))
    y = torch.from_numpy(targets(x.numpy()))
    observed = ours + White(NOISE)
    density = MultivariateNormal(torch.zeros_like(y), observed(x)).log_prob(y).item()
    assert solve(observed, observed.theta_like(x), x, y).log_evidence == pytest.approx(density, rel=1e-10)


def test_blocks_do_not_change_the_result(monkeypatch):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(70, 2)))
    y = torch.from_numpy(targets(x.numpy()))
    kernel = 2.0 * RBF((0.5, 1.0)) * Linear() + White(NOISE)
    theta = kernel.theta_like(x)
    whole = solve(kernel, theta, x, y)
    slope = evidence_gradient(kernel, theta, x, whole)
    monkeypatch.setattr(_inference, "_CPU_BLOCK", 1)
    cut = solve(kernel, theta, x, y)
    torch.testing.assert_close(cut.cholesky, whole.cholesky)
    torch.testing.assert_close(evidence_gradient(kernel, theta, x, cut), slope)


def test_gradient_with_repeated_inputs():
    x = torch.from_numpy(np.repeat(np.random.default_rng(0).normal(size=(10, 2)), 3, axis=0))
    y = torch.from_numpy(targets(x.numpy()))
    for name in ("matern 1/2", "matern 3/2", "matern 5/2"):
        kernel = PAIRS[name][0] + White(NOISE)
        theta = kernel.theta_like(x)
        slope = evidence_gradient(kernel, theta, x, solve(kernel, theta, x, y))
        step = 1e-5
        for k, direction in enumerate(torch.eye(len(theta), dtype=theta.dtype)):
            up, down = (solve(kernel, theta + sign * step * direction, x, y).log_evidence for sign in (1, -1))
            # truncation of the central difference is of order step², rounding of order 1e-14/step
            assert slope[k].item() == pytest.approx((up - down) / (2.0 * step), rel=1e-6, abs=1e-6)


def test_jitter_only_if_the_factorization_fails():
    x = torch.zeros(5, 1, dtype=torch.float64)
    y = torch.ones(5, dtype=torch.float64)
    assert solve(RBF() + White(0.1), torch.log(torch.tensor([1.0, 0.1], dtype=torch.float64)), x, y).jitter == 0.0
    kernel = RBF()
    solution = solve(kernel, kernel.theta_like(x), x, y)
    assert 0.0 < solution.jitter <= 1e-8
    assert np.isfinite(solution.log_evidence)


def test_infinite_covariances_raise():
    x = torch.full((3, 1), 1e200, dtype=torch.float64)
    with pytest.raises(DivergenceError, match="not finite"):
        solve(Linear(), Linear().theta_like(x), x, torch.ones(3, dtype=torch.float64))


def test_search_finds_the_maximum_of_one_variance():
    # y ~ N(0, vI): the evidence is highest at the mean square
    x, y = torch.zeros(50, 1, dtype=torch.float64), torch.from_numpy(np.random.default_rng(0).normal(size=50))
    kernel = White(3.0)
    theta = maximize_evidence(kernel, x, y, [kernel.theta])
    assert np.exp(theta[0]) ** 2 == pytest.approx(y.square().mean().item(), rel=1e-5)


def test_unconverged_search_warns(monkeypatch):
    from scipy.optimize import minimize

    monkeypatch.setattr(
        _inference, "minimize", lambda *args, **options: minimize(*args, **options, options={"maxiter": 1})
    )
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 1)))
    kernel = Constant() * RBF(1.0) + White(0.1)
    with pytest.warns(ConvergenceWarning, match="may not be at its maximum after 1 step"):
        maximize_evidence(kernel, x, torch.from_numpy(targets(x.numpy())), [kernel.theta])
