"""Expectations by sampling and their standard errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, MultivariateNormal, Normal

from credo._estimate import Estimate
from credo.conjugate import NormalGamma, expectation
from credo.errors import InputError

STANDARD = Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def test_standard_error_matches_actual_error():
    """(estimate − truth) / standard error is a standard normal: its mean square over 200 runs is 1 ± √(2/200)."""
    runs = [expectation(torch.square, STANDARD, samples=1000, seed=seed) for seed in range(200)]
    z = torch.stack([(run.value - 1.0) / run.standard_error for run in runs])
    assert abs(z.square().mean() - 1.0) < 5 * math.sqrt(2 / 200)
    assert abs(z.mean()) < 5 / math.sqrt(200)


def test_standard_error_decreases_with_square_root_of_samples():
    few, many = (expectation(torch.sin, STANDARD, samples=n, seed=0).standard_error for n in (10_000, 1_000_000))
    # the standard error of a standard deviation is at most 1/√L of it here
    assert float(few / many) == pytest.approx(10.0, rel=5 / math.sqrt(10_000))


def test_importance_sampling_estimates_tail_probability():
    """P(z > 5) = 2.9e-7: plain sampling has no draws there."""
    truth = 0.5 * math.erfc(5 / math.sqrt(2))

    def tail(z):
        return (z > 5.0).double()

    plain = expectation(tail, STANDARD, seed=0)
    weighted = expectation(tail, STANDARD, seed=0, proposal=Normal(5.0, 1.0))
    assert float(plain) == 0.0
    assert abs(float(weighted) - truth) < 5 * weighted.standard_error
    assert weighted.standard_error < 0.03 * truth


def test_matrix_valued_function():
    z = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    moments = expectation(lambda x: x[:, :, None] * x[:, None, :], z, seed=0)
    assert ((moments.value - z.covariance_matrix).abs() < 5 * moments.standard_error).all()
    weighted = expectation(
        lambda x: x[:, :, None] * x[:, None, :],
        z,
        seed=0,
        proposal=MultivariateNormal(torch.zeros(2), 3 * torch.eye(2)),
    )
    assert ((weighted.value - z.covariance_matrix).abs() < 5 * weighted.standard_error).all()


def test_draws_may_be_named_tuples():
    belief = NormalGamma(1.0, 2.0, 3.0, 4.0).posterior
    variance = expectation(lambda theta: 1 / theta.precision, belief, seed=0)
    assert abs(float(variance) - 4.0 / (3.0 - 1.0)) < 5 * variance.standard_error


def test_seed_is_reproducible_and_keeps_global_state():
    before = torch.get_rng_state()
    first, again, other = (float(expectation(torch.exp, STANDARD, samples=10, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expectation(torch.exp, STANDARD, samples=1), "samples must be an integer of at least 2"),
        (lambda: expectation(torch.mean, STANDARD), r"one value per draw, shape \[10000, ...\], got \[\]"),
        (lambda: Estimate.from_samples(torch.tensor(1.0)), "at least two samples"),
        (lambda: Estimate.from_samples(torch.tensor([1.0])), "at least two samples"),
    ],
)
def test_bad_arguments_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_integer_values():
    estimate = expectation(lambda k: k, Categorical(torch.tensor([0.5, 0.5])), seed=0)
    assert abs(float(estimate) - 0.5) < 5 * estimate.standard_error


def test_undefined_function_values_raise():
    with pytest.raises(InputError, match="f returned NaN for"):
        expectation(torch.log, torch.distributions.Normal(0.0, 1.0), seed=0)
