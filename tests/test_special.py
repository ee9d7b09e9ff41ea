"""Special functions against arithmetic with 60 digits and against closed forms."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credo._special import (
    gaussian_points,
    log_dirichlet_categorical,
    log_dirichlet_multinomial,
    log_multinomial_given_sum,
    log_negative_binomial,
    log_poisson,
    log_rising,
    ndtr,
    normal_points,
    sobol_normal,
)

F64 = torch.float64
mpmath.mp.dps = 60


def number(value: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def exact_log_poisson(count: int, log_rate: float) -> mpmath.mpf:
    rate = mpmath.exp(log_rate)
    return count * mpmath.mpf(log_rate) - rate - mpmath.loggamma(count + 1)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("rate", [1e-30, 1e-8, 0.01, 1.0, 15.9, 16.1, 100.0, 1e5, 1e7, 1e10, 1e15])
def test_log_poisson_is_accurate_at_any_rate(rate: float, dtype: torch.dtype) -> None:
    log_rate = number(math.log(rate), dtype)
    near = {round(rate + z * math.sqrt(rate)) for z in (-10, -3, -1, 0, 1, 3, 10)}
    far = {round(rate * factor) for factor in (0.1, 0.8, 1.2, 10)} | {0, 1, 15, 16, 17}
    for count in (int(number(float(k), dtype)) for k in near | far if k >= 0):
        found = float(log_poisson(number(float(count), dtype), log_rate, log_rate.exp()))
        exact = exact_log_poisson(count, float(log_rate))
        # λ and k/λ are rounded, which log p turns into |k − λ| of it; then a few terms of its own size or 1
        size = abs(count - math.exp(float(log_rate))) + abs(float(exact)) + 1
        assert abs(float(found - exact)) < 8 * torch.finfo(dtype).eps * size, count


def test_log_poisson_gradient_is_count_minus_rate() -> None:
    log_rate = number(math.log(1e6)).requires_grad_()
    for count in (0.0, 3.0, 16.0, 9e5, 1e6, 1e6 + 1e3, 2e6):
        (gradient,) = torch.autograd.grad(
            log_poisson(number(count), log_rate, log_rate.exp()), log_rate, create_graph=True
        )
        (curvature,) = torch.autograd.grad(gradient, log_rate)
        assert gradient.item() == pytest.approx(count - 1e6, abs=1e-8)  # 40 eps of 1e6
        assert curvature.item() == pytest.approx(-1e6, rel=1e-12)


def test_log_poisson_when_rate_under_or_overflows() -> None:
    log_rate = torch.tensor([-math.inf, -200.0, 100.0], requires_grad=True)
    for count, expected in ((0.0, [0.0, 0.0, -math.inf]), (5.0, [-math.inf, -1000 - math.log(120), -math.inf])):
        found = log_poisson(torch.full((3,), count), log_rate, log_rate.exp())
        torch.testing.assert_close(found, torch.tensor(expected))
        (gradient,) = torch.autograd.grad(found.sum(), log_rate)
        torch.testing.assert_close(gradient, torch.tensor([count, count, -math.inf]))


def exact_log_negative_binomial(count: float, shape: float, scale: float) -> mpmath.mpf:
    k, a, s = (mpmath.mpf(x) for x in (count, shape, scale))
    ways = mpmath.loggamma(a + k) - mpmath.loggamma(a) - mpmath.loggamma(k + 1)
    return ways - a * mpmath.log1p(s) - (k * mpmath.log1p(1 / s) if k else 0)


@pytest.mark.parametrize("shape", [1e-6, 0.3, 15.9, 16.1, 1e4, 1e9, 1e15])
@pytest.mark.parametrize("scale", [1e-15, 1e-9, 1e-3, 1.0, 30.0, 1e6, 1e12])
def test_log_negative_binomial_is_accurate_at_any_shape(shape: float, scale: float) -> None:
    mean = shape * scale
    deviation = math.sqrt(mean * (1 + scale))
    counts = {round(mean + z * deviation) for z in (-2, 0, 1, 3)} | {0, 1, 15, 16, 17, round(mean / 3), round(5 * mean)}
    for count in (float(k) for k in counts if 0 <= k < 2**53):
        found = float(log_negative_binomial(number(count), number(shape), number(scale)))
        exact = exact_log_negative_binomial(count, shape, scale)
        # the mean is rounded, and below 16 the terms are counts of up to 16 times the logs of a and s
        size = abs(count - mean) / (1 + scale) + abs(float(exact)) + 16 + abs(math.log(shape)) + abs(math.log(scale))
        assert abs(float(found - exact)) < 8 * torch.finfo(F64).eps * size, count


def test_log_negative_binomial_at_zero_and_its_gradient() -> None:
    assert float(log_negative_binomial(number(0.0), number(3.0), number(0.0))) == 0
    assert float(log_negative_binomial(number(20.0), number(30.0), number(0.0))) == -math.inf
    arguments = tuple(number(x).requires_grad_() for x in (40.0, 2.0))
    count = number(70.0)
    assert torch.autograd.gradcheck(lambda a, s: log_negative_binomial(count, a, s), arguments)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_ndtr_is_accurate_in_both_tails(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for z in (-37.0 if dtype == F64 else -12.0, -10.0, -5.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 5.0, 8.0):
        found, exact = float(ndtr(number(z, dtype))), mpmath.ncdf(float(number(z, dtype)))
        # z/√2 is rounded, which d log Φ/dz, about |z| below, turns into z² of it
        assert abs(float(found / exact - 1)) < 4 * eps * (1 + (z**2 if z < 0 else 0)), z


def rising(start, steps):
    return log_rising(torch.tensor(start, dtype=torch.float64), torch.tensor(steps, dtype=torch.float64)).item()


@given(start=st.floats(1e-8, 1e15), steps=st.integers(0, 200))
def test_log_rising_equals_sum_of_logarithms(start, steps):
    expected = math.fsum(math.log(start + step) for step in range(steps))
    # relative to the terms that are added, of about log Γ(16) = 28 and steps·log(start + steps)
    size = 30.0 + steps * (1.0 + abs(math.log(start + steps)))
    assert rising(start, steps) == pytest.approx(expected, rel=0, abs=8 * torch.finfo(torch.float64).eps * size)


@pytest.mark.parametrize("start", [0.3, 15.999999, 16.0, 16.000001, 40.0, 1e3])
@pytest.mark.parametrize("steps", [0.0, 0.5, 3.7, 1e4])
def test_log_rising_with_fractional_steps_equals_difference_of_log_gamma(start, steps):
    difference = math.lgamma(start + steps) - math.lgamma(start)
    rounding = 4 * torch.finfo(torch.float64).eps * (abs(math.lgamma(start + steps)) + abs(math.lgamma(start)) + 1.0)
    assert rising(start, steps) == pytest.approx(difference, rel=0, abs=rounding)


def test_log_rising_does_not_cancel_for_large_arguments():
    assert rising(1e15, 1.0) == pytest.approx(math.log(1e15), rel=1e-15)
    assert abs(math.lgamma(1e15 + 1) - math.lgamma(1e15) - math.log(1e15)) > 0.1


def test_log_rising_gradient_below_and_above_the_switch():
    start = torch.tensor([1e-3, 0.5, 15.9, 16.1, 1e9], dtype=torch.float64, requires_grad=True)
    log_rising(start, torch.full_like(start, 2.0)).sum().backward()
    x = start.detach()
    torch.testing.assert_close(start.grad, 1 / x + 1 / (x + 1), rtol=1e-10, atol=0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_probability_of_counts_is_that_of_all_their_sequences(counts):
    exact = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    m = torch.tensor(counts, dtype=torch.float64)
    alpha = torch.linspace(0.3, 4.0, len(counts), dtype=torch.float64)
    found = (log_dirichlet_multinomial(alpha, m) - log_dirichlet_categorical(alpha, m)).item()
    assert found == pytest.approx(math.log(exact), rel=1e-12, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=0, max_size=4))
def test_log_multinomial_given_sum_is_ratio_of_coefficients(rows):
    def ways(counts):
        return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)

    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    exact = sum(math.log(ways(row)) for row in rows) - math.log(ways([int(m) for m in table.sum(0)]))
    assert log_multinomial_given_sum(table).item() == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_log_dirichlet_categorical_for_large_concentrations():
    """One more head after 10¹² tosses, half of them heads, has probability ½."""
    alpha = torch.tensor([5e11, 5e11], dtype=torch.float64)
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert log_dirichlet_categorical(alpha, one).item() == pytest.approx(math.log(0.5), rel=1e-14)


def test_sobol_normal_points_are_standard_normal_and_reproducible():
    points = sobol_normal(4096, 3, seed=1)
    assert points.dtype == F64
    assert torch.equal(points, sobol_normal(4096, 3, seed=1))
    # of independent draws the errors would be 1/√4096 = 0.016; quasi-random points do better
    assert points.mean(0).abs().max() < 0.016
    assert (torch.cov(points.T) - torch.eye(3, dtype=F64)).abs().max() < 0.016


@pytest.mark.parametrize("dimension", [1, 2, 5, 16, 30, 300])
@pytest.mark.parametrize("n", [2, 3, 100, 128])
def test_normal_points_have_exact_moments(n: int, dimension: int) -> None:
    points = normal_points(n, dimension)
    torch.testing.assert_close(points.mean(0), torch.zeros(dimension, dtype=F64), atol=1e-12, rtol=0.0)
    covariance = points.T @ points / n
    torch.testing.assert_close(covariance.diagonal(), torch.ones(dimension, dtype=F64))
    if n > 2 * dimension and dimension <= 16:
        torch.testing.assert_close(covariance, torch.eye(dimension, dtype=F64))


@pytest.mark.parametrize("dimension", [2, 20])
@pytest.mark.parametrize("n", [1, 2, 100])
def test_points_of_gaussians_have_their_means_and_variances(n: int, dimension: int) -> None:
    """Also of singular covariances, and of certain outputs; a single point is the mean."""
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(3, dimension, generator=source, dtype=F64)
    root = torch.randn(3, dimension, dimension, generator=source, dtype=F64)
    root[1] = root[1, :, :1] @ root[1, :1]
    root[2, 0] = 0.0
    for spread, variance in ((root, root.square().sum(-1)), (root[:, 0].abs(), root[:, 0].square())):
        points = gaussian_points(mean, spread, n)
        torch.testing.assert_close(points.mean(0), mean)
        found = points.var(0, correction=0)
        torch.testing.assert_close(found, torch.zeros_like(found) if n == 1 else variance)
