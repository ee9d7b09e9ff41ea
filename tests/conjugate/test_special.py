"""Ratios of gamma functions against sums of logarithms, and where the plain difference is lost."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credo._special import log_rising
from credo.conjugate import BetaBinomial, DirichletMultinomial, GammaPoisson, NormalGamma
from credo.conjugate._special import log_dirichlet_multinomial, log_pooled_multinomial, log_sequence_probability

mpmath.mp.dps = 60


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
def test_counts_are_as_probable_as_all_their_sequences_together(counts):
    exact = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    m = torch.tensor(counts, dtype=torch.float64)
    alpha = torch.linspace(0.3, 4.0, len(counts), dtype=torch.float64)
    found = (log_dirichlet_multinomial(alpha, m) - log_sequence_probability(alpha, m)).item()
    assert found == pytest.approx(math.log(exact), rel=1e-12, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=0, max_size=4))
def test_rows_given_their_sum_are_a_ratio_of_multinomial_coefficients(rows):
    def ways(counts):
        return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)

    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    exact = sum(math.log(ways(row)) for row in rows) - math.log(ways([int(m) for m in table.sum(0)]))
    assert log_pooled_multinomial(table).item() == pytest.approx(exact, rel=1e-12, abs=1e-12)


def exact_dirichlet_multinomial(alpha, counts):
    a, m = ([mpmath.mpf(x) for x in values] for values in (alpha, counts))
    ways = mpmath.loggamma(sum(m) + 1) - sum(mpmath.loggamma(x + 1) for x in m)
    rising = sum(mpmath.loggamma(x + y) - mpmath.loggamma(x) for x, y in zip(a, m, strict=True))
    return float(ways + rising + mpmath.loggamma(sum(a)) - mpmath.loggamma(sum(a) + sum(m)))


@pytest.mark.parametrize(
    ("alpha", "counts"),
    [([1e12, 2e12, 0.5], [1e12, 2e12 - 1e6, 3.0]), ([0.5, 0.5], [5e14, 5e14]), ([1e15, 1e15], [20.0, 30.0])],
)
def test_huge_counts_keep_their_probabilities(alpha, counts):
    a, m = (torch.tensor(values, dtype=torch.float64) for values in (alpha, counts))
    exact = exact_dirichlet_multinomial(alpha, counts)
    assert log_dirichlet_multinomial(a, m).item() == pytest.approx(exact, rel=1e-13)
    pair = DirichletMultinomial(alpha, int(sum(counts)))
    assert pair.log_evidence([counts]).item() == pytest.approx(exact, rel=1e-13)
    assert pair.predictive.log_prob(m).item() == pytest.approx(exact, rel=1e-13)
    if len(alpha) == 2:
        assert BetaBinomial(*alpha, int(sum(counts))).predictive.log_prob(m[0]).item() == pytest.approx(
            exact, rel=1e-13
        )


@pytest.mark.parametrize(("shape", "rate"), [(1e15, 1e13), (1e12, 1e12), (5e9, 1e2)])
def test_events_at_huge_shapes_keep_their_probabilities(shape, rate):
    pair, mean = GammaPoisson(shape, rate), int(shape / rate)
    a, b = mpmath.mpf(shape), mpmath.mpf(rate)

    def exact(counts):
        events, rows = sum(counts), len(counts)
        found = mpmath.loggamma(a + events) - mpmath.loggamma(a) + a * mpmath.log(b / (b + rows))
        return float(found - events * mpmath.log(b + rows) - sum(mpmath.loggamma(k + 1) for k in counts))

    for count in (mean, mean + 7):
        found = pair.predictive.log_prob(torch.tensor(float(count), dtype=torch.float64)).item()
        assert found == pytest.approx(exact([count]), rel=1e-13)
    data = [mean, mean + 3, mean + 1]
    assert pair.log_evidence(data).item() == pytest.approx(exact(data), rel=1e-13)
    assert pair.log_evidence([]).item() == 0


def test_a_student_t_with_huge_degrees_of_freedom_is_the_normal_it_becomes():
    pair = NormalGamma(0.0, 1.0, 1e15, 1e15)  # scale² = 1 + 1/1
    expected = -0.5 * math.log(2 * math.pi * 2) - 0.25
    assert pair.predictive.log_prob(torch.tensor(1.0, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)


def test_one_more_head_after_many_tosses():
    """One more head after 10¹² tosses, half of them heads, has probability ½."""
    alpha = torch.tensor([5e11, 5e11], dtype=torch.float64)
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert log_sequence_probability(alpha, one).item() == pytest.approx(math.log(0.5), rel=1e-14)
