"""Synthetic data: known moments, fixed seeds and published formulas."""

import pytest
import torch

from credo import datasets
from credo.errors import InputError

CURVES = [datasets.sine_with_gap, datasets.heteroscedastic_sine, datasets.blundell_curve]


@pytest.mark.parametrize("make", CURVES)
def test_curve_is_reproducible_and_keeps_global_random_state(make):
    before = torch.get_rng_state()
    first, second, other = make(n=50, seed=3), make(n=50, seed=3), make(n=50, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.y, second.y)
    assert not torch.equal(first.y, other.y)
    assert first.x.shape == first.y.shape == (50, 1)
    assert first.x.dtype == first.y.dtype == torch.float32
    assert first.x_grid.min() < first.x.min()
    assert first.x_grid.max() > first.x.max()


@pytest.mark.parametrize("make", [datasets.sine_with_gap, datasets.heteroscedastic_sine])
def test_residuals_of_a_curve_have_its_noise(make):
    """Standardized residuals are N(0, 1): their mean and mean square within 5 standard errors."""
    n = 20_000
    curve = make(n=n, seed=1)
    z = (curve.y - curve.function(curve.x)) / curve.noise(curve.x)
    assert abs(z.mean()) < 5 / n**0.5
    assert abs(z.square().mean() - 1) < 5 * (2 / n) ** 0.5


def test_gap_has_no_inputs_and_lies_between_the_data():
    curve = datasets.sine_with_gap(n=500)
    low, high = curve.gap
    assert not ((curve.x > low) & (curve.x < high)).any()
    assert (curve.x <= low).any()
    assert (curve.x >= high).any()


def test_blundell_curve_is_the_published_formula():
    curve = datasets.blundell_curve(n=100, seed=5)
    generator = torch.Generator().manual_seed(5)
    torch.rand(100, 1, generator=generator)
    e, x, pi = 0.02 * torch.randn(100, 1, generator=generator), curve.x, torch.pi
    y = x + 0.3 * torch.sin(2 * pi * (x + e)) + 0.3 * torch.sin(4 * pi * (x + e)) + e
    torch.testing.assert_close(curve.y, y)
    assert curve.x.min() >= 0.0
    assert curve.x.max() <= 0.5


def test_blundell_noise_is_the_slope_of_the_function():
    x = torch.linspace(0.0, 0.5, 20)[:, None].requires_grad_()
    curve = datasets.blundell_curve()
    (slope,) = torch.autograd.grad(curve.function(x).sum(), x)
    torch.testing.assert_close(curve.noise(x), 0.02 * slope.abs())


@pytest.mark.parametrize("make", CURVES)
def test_curve_without_points_raises(make):
    with pytest.raises(InputError, match="n must be an integer of at least 1, got 0"):
        make(n=0)
