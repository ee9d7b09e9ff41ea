"""Ratios of gamma functions against sums of logarithms, and where the plain difference is lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credo.conjugate._special import log_multinomial_coefficient, log_rising, log_sequence_probability


def rising(start, steps):
    return log_rising(torch.tensor(start, dtype=torch.float64), torch.tensor(steps, dtype=torch.float64)).item()


@given(start=st.floats(1e-8, 1e15), steps=st.integers(0, 200))
def test_log_rising_is_the_sum_of_logarithms(start, steps):
    expected = math.fsum(math.log(start + step) for step in range(steps))
    # relative to the terms that are added, of about log Γ(16) = 28 and steps·log(start + steps)
    size = 30.0 + steps * (1.0 + abs(math.log(start + steps)))
    assert rising(start, steps) == pytest.approx(expected, rel=0, abs=8 * torch.finfo(torch.float64).eps * size)


@pytest.mark.parametrize("start", [0.3, 15.999999, 16.0, 16.000001, 40.0, 1e3])
@pytest.mark.parametrize("steps", [0.0, 0.5, 3.7, 1e4])
def test_log_rising_of_parts_of_a_step_is_the_difference_of_log_gamma(start, steps):
    difference = math.lgamma(start + steps) - math.lgamma(start)
    rounding = 4 * torch.finfo(torch.float64).eps * (abs(math.lgamma(start + steps)) + abs(math.lgamma(start)) + 1.0)
    assert rising(start, steps) == pytest.approx(difference, rel=0, abs=rounding)


def test_log_rising_keeps_what_the_difference_of_log_gamma_loses():
    assert rising(1e15, 1.0) == pytest.approx(math.log(1e15), rel=1e-15)
    assert abs(math.lgamma(1e15 + 1) - math.lgamma(1e15) - math.log(1e15)) > 0.1


def test_log_rising_has_gradients_on_both_sides_of_the_switch():
    start = torch.tensor([1e-3, 0.5, 15.9, 16.1, 1e9], dtype=torch.float64, requires_grad=True)
    log_rising(start, torch.full_like(start, 2.0)).sum().backward()
    x = start.detach()
    torch.testing.assert_close(start.grad, 1 / x + 1 / (x + 1), rtol=1e-10, atol=0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_multinomial_coefficient_counts_sequences(counts):
    exact = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    found = log_multinomial_coefficient(torch.tensor(counts, dtype=torch.float64)).item()
    assert found == pytest.approx(math.log(exact), rel=1e-13, abs=1e-13)


def test_huge_counts_keep_small_probabilities():
    """One more head after 10¹² tosses, half of them heads, has probability ½; one tail among 10¹² has 10¹² places."""
    alpha = torch.tensor([5e11, 5e11], dtype=torch.float64)
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert log_sequence_probability(alpha, one).item() == pytest.approx(math.log(0.5), rel=1e-14)
    lopsided = torch.tensor([1e12, 1.0], dtype=torch.float64)
    assert log_multinomial_coefficient(lopsided).item() == pytest.approx(math.log(1e12 + 1), rel=1e-14)
