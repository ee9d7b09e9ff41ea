"""Draws of a mean-field Gaussian: independent, or in antithetic pairs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import credo


def model(antithetic: bool, dtype: torch.dtype = torch.float32) -> credo.BayesByBackprop:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)
    found = credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.2)
    found.posterior.antithetic = antithetic
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_antithetic_draws_are_mirror_images(dtype: torch.dtype) -> None:
    """w₂ₖ + w₂ₖ₊₁ = 2μ up to rounding; pairs differ from each other."""
    posterior = model(True, dtype).posterior
    mean = posterior.mean()
    for name, drawn in posterior.sample(6, seed=0).items():
        drawn = drawn.double()
        tolerance = 4 * torch.finfo(dtype).eps * float(drawn.abs().max())
        torch.testing.assert_close(
            drawn[0::2] + drawn[1::2], (2 * mean[name].double()).expand(3, *mean[name].shape), rtol=0, atol=tolerance
        )
        assert not torch.allclose(drawn[0], drawn[2])
        assert not torch.allclose(drawn[0], drawn[1])


@pytest.mark.parametrize("antithetic", [False, True])
def test_a_draw_depends_on_its_number_alone(antithetic: bool) -> None:
    posterior = model(antithetic).posterior
    drawn = posterior.sample(7, seed=3)
    sampler = posterior.sampler(3)
    for numbers in ([5], [0, 1, 2], [1], [3, 4], [6], [0]):
        for s, draw in zip(numbers, sampler(numbers), strict=True):
            for name, value in draw.items():
                assert torch.equal(value, drawn[name][s]), (numbers, s, name)


@pytest.mark.parametrize("antithetic", [False, True])
@torch.no_grad()
def test_draws_have_the_moments_of_the_posterior(antithetic: bool) -> None:
    """Means within five of √(σ²/n); variances within five of √(2σ⁴/m), m the number of independent draws."""
    posterior, n = model(antithetic).posterior, 4000
    scale, mean = posterior.scale(), posterior.mean()
    independent = n // 2 if antithetic else n
    for name, drawn in posterior.sample(n, seed=0).items():
        assert float(((drawn.mean(0) - mean[name]) / scale[name]).abs().max()) < 5 * n**-0.5
        ratio = (drawn - mean[name]).square().mean(0) / scale[name].square()
        assert float((ratio - 1).abs().max()) < 5 * (2 / independent) ** 0.5


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
def test_the_predictive_mean_of_a_linear_network_is_exact_with_pairs(vectorize: str) -> None:
    """For f linear in w the two draws of a pair average to f(μ); the population variance of pairs is then unbiased."""
    torch.manual_seed(0)
    net, x = nn.Linear(3, 1), torch.randn(5, 3)
    linear = credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.5)
    linear.posterior.antithetic = True
    p = linear.predict(x, samples=4000, seed=0, vectorize=vectorize)
    with torch.no_grad():
        torch.testing.assert_close(p.mean, net(x), rtol=0, atol=1e-5)
        scale = linear.posterior.scale()
        variance = x.square() @ scale["weight"].square().T + scale["bias"].square()
    assert float((p.epistemic / variance - 1).abs().max()) < 5 * (2 / 2000) ** 0.5
