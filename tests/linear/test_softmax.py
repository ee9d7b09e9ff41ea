"""Averages over Gaussian logits, and contrasts of classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from credo.linear._softmax import contrasts, expected_sigmoid, expected_softmax, expected_softplus


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1.999, 2.001, 5.0, 300.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.4, 6.0])
def test_expected_softplus_against_adaptive_quadrature(mean, scale):
    def integrand(z: float) -> float:
        return float(np.logaddexp(0.0, mean + scale * z)) * norm.pdf(z)

    turn = float(np.clip(-mean / scale, -10.0, 10.0)) if scale else 0.0  # where a wide softplus has its corner
    exact = (
        quad(integrand, -10, turn, epsabs=1e-12, limit=400)[0] + quad(integrand, turn, 10, epsabs=1e-12, limit=400)[0]
    )
    found = expected_softplus(*torch.tensor([[mean], [scale**2]], dtype=torch.float64))
    assert float(found) == pytest.approx(exact, abs=1e-9 * (1.0 + abs(mean) + scale))


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1.999, 2.001, 5.0, 300.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.4, 6.0])
def test_expected_sigmoid_against_adaptive_quadrature(mean, scale):
    # the two forms of the integral, each where scipy finds it easy
    if scale > 2.0:
        exact = quad(lambda t: expit(t) * expit(-t) * norm.cdf((mean - t) / scale), -40, 40, epsabs=1e-12, limit=200)[0]
    else:
        exact = quad(lambda z: expit(mean + scale * z) * norm.pdf(z), -10, 10, epsabs=1e-12, limit=200)[0]
    found = expected_sigmoid(*torch.tensor([[mean], [scale**2]], dtype=torch.float64))
    assert float(found) == pytest.approx(exact, abs=1e-9)


def test_expected_softmax_of_two_classes_is_the_sigmoid():
    mean, variance = torch.tensor([[0.3], [-2.0]], dtype=torch.float64), torch.tensor([2.0, 0.0], dtype=torch.float64)
    found = expected_softmax(mean, variance[:, None, None], contrasts(2, mean))
    # 512 points in one dimension: equidistribution to 1/512
    exact = expected_sigmoid(mean[:, 0], variance)
    torch.testing.assert_close(found, torch.stack((1.0 - exact, exact), 1), atol=1 / 512, rtol=0.0)


@pytest.mark.parametrize("classes", [3, 4, 7])
def test_contrasts_are_orthonormal_and_sum_to_zero(classes):
    g = contrasts(classes, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(g.mT @ g, torch.eye(classes - 1, dtype=torch.float64))
    torch.testing.assert_close(g.sum(0), torch.zeros(classes - 1, dtype=torch.float64))
