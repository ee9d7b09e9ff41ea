"""Special functions against arithmetic with 60 digits, over their whole range and in both tails."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from credo._special import log_negative_binomial, log_poisson, ndtr

F64 = torch.float64
mpmath.mp.dps = 60


def number(value: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def exact_log_poisson(count: int, log_rate: float) -> mpmath.mpf:
    rate = mpmath.exp(log_rate)
    return count * mpmath.mpf(log_rate) - rate - mpmath.loggamma(count + 1)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("rate", [1e-30, 1e-8, 0.01, 1.0, 15.9, 16.1, 100.0, 1e5, 1e7, 1e10, 1e15])
def test_poisson_keeps_its_digits_at_any_rate(rate: float, dtype: torch.dtype) -> None:
    log_rate = number(math.log(rate), dtype)
    near = {round(rate + z * math.sqrt(rate)) for z in (-10, -3, -1, 0, 1, 3, 10)}
    far = {round(rate * factor) for factor in (0.1, 0.8, 1.2, 10)} | {0, 1, 15, 16, 17}
    for count in (int(number(float(k), dtype)) for k in near | far if k >= 0):
        found = float(log_poisson(number(float(count), dtype), log_rate, log_rate.exp()))
        exact = exact_log_poisson(count, float(log_rate))
        # λ and k/λ are rounded, which log p turns into |k − λ| of it; then a few terms of its own size or 1
        size = abs(count - math.exp(float(log_rate))) + abs(float(exact)) + 1
        assert abs(float(found - exact)) < 8 * torch.finfo(dtype).eps * size, count


def test_poisson_has_the_gradient_count_minus_rate() -> None:
    log_rate = number(math.log(1e6)).requires_grad_()
    for count in (0.0, 3.0, 16.0, 9e5, 1e6, 1e6 + 1e3, 2e6):
        (gradient,) = torch.autograd.grad(
            log_poisson(number(count), log_rate, log_rate.exp()), log_rate, create_graph=True
        )
        (curvature,) = torch.autograd.grad(gradient, log_rate)
        assert gradient.item() == pytest.approx(count - 1e6, abs=1e-8)  # 40 eps of 1e6
        assert curvature.item() == pytest.approx(-1e6, rel=1e-12)


def test_poisson_at_rates_that_leave_the_range() -> None:
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
def test_negative_binomial_keeps_its_digits_at_any_shape(shape: float, scale: float) -> None:
    mean = shape * scale
    deviation = math.sqrt(mean * (1 + scale))
    counts = {round(mean + z * deviation) for z in (-2, 0, 1, 3)} | {0, 1, 15, 16, 17, round(mean / 3), round(5 * mean)}
    for count in (float(k) for k in counts if 0 <= k < 2**53):
        found = float(log_negative_binomial(number(count), number(shape), number(scale)))
        exact = exact_log_negative_binomial(count, shape, scale)
        # the mean is rounded, and below 16 the terms are counts of up to 16 times the logs of a and s
        size = abs(count - mean) / (1 + scale) + abs(float(exact)) + 16 + abs(math.log(shape)) + abs(math.log(scale))
        assert abs(float(found - exact)) < 8 * torch.finfo(F64).eps * size, count


def test_negative_binomial_without_events_or_scale() -> None:
    assert float(log_negative_binomial(number(0.0), number(3.0), number(0.0))) == 0
    assert float(log_negative_binomial(number(20.0), number(30.0), number(0.0))) == -math.inf
    arguments = tuple(number(x).requires_grad_() for x in (40.0, 2.0))
    count = number(70.0)
    assert torch.autograd.gradcheck(lambda a, s: log_negative_binomial(count, a, s), arguments)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_the_normal_distribution_function_keeps_its_digits_in_both_tails(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for z in (-37.0 if dtype == F64 else -12.0, -10.0, -5.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 5.0, 8.0):
        found, exact = float(ndtr(number(z, dtype))), mpmath.ncdf(float(number(z, dtype)))
        # z/√2 is rounded, which d log Φ/dz, about |z| below, turns into z² of it
        assert abs(float(found / exact - 1)) < 4 * eps * (1 + (z**2 if z < 0 else 0)), z
