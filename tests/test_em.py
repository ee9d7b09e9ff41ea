"""The EM loop: what it returns, when it stops, and what it raises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from credo.em import ROUNDING, EMFit, Expectation, fit_em
from credo.errors import BoundError, CredoError, DivergenceError, InputError


def through(bounds):
    """Steps whose parameters are the iteration number, with the given bounds."""
    values = list(bounds)
    return {
        "start": lambda _: 0,
        "e_step": lambda step: Expectation(step, values[step]),
        "m_step": lambda step: step + 1,
    }


def halving(start: float = 1.0):
    """A bound that rises from −start to 0, halving the difference in every step."""
    return {
        "start": lambda number: start * (number + 1),
        "e_step": lambda rest: Expectation(rest, -rest),
        "m_step": lambda rest: rest / 2,
    }


def test_bounds_match_the_parameters():
    fit = fit_em(**halving(), tolerance=0.1, max_iter=50)
    assert fit.bounds == (-1.0, -0.5, -0.25, -0.125, -0.0625)
    assert fit.parameters == 0.0625
    assert fit.bound == fit.bounds[-1] == fit.expectation.bound == -fit.parameters
    assert fit.expectation.statistics == fit.parameters
    assert fit.n_iter == 4
    assert fit.converged
    assert fit.start == 0


def test_max_iter_stops_unconverged():
    fit = fit_em(**halving(), tolerance=0.0, max_iter=3)
    assert fit.n_iter == 3
    assert not fit.converged


def test_gain_equal_to_the_tolerance_stops():
    assert fit_em(**halving(), tolerance=0.25).n_iter == 2
    assert fit_em(**halving(), tolerance=np.nextafter(0.25, 0)).n_iter == 3


def test_tolerance_is_per_row():
    assert fit_em(**halving(), tolerance=0.1, rows=1).n_iter == 4
    assert fit_em(**halving(), tolerance=0.01, rows=10).n_iter == 4
    assert fit_em(**halving(), tolerance=0.1, rows=10).n_iter == 1


def test_zero_tolerance_continues_while_the_bound_rises():
    fit = fit_em(**through([-3.0, -2.0, -1.0, -1.0]), tolerance=0.0)
    assert fit.converged
    assert fit.bounds == (-3.0, -2.0, -1.0, -1.0)


def test_best_restart_is_returned():
    """Each start improves by the same factor, so that the order of the final bounds is that of the starts."""
    heights = [5.0, 1.0, 3.0]
    fit = fit_em(
        lambda number: heights[number],
        lambda rest: Expectation(rest, -rest),
        lambda rest: rest / 2,
        restarts=3,
        tolerance=0.0,
        max_iter=4,
    )
    assert fit.start == 1
    assert fit.bounds[0] == -1.0


def test_first_of_equal_restarts_is_returned():
    fit = fit_em(lambda number: number, lambda _: Expectation(None, -1.0), lambda _: 0, restarts=4)
    assert fit.start == 0


def test_bounds_of_restarts_are_not_compared():
    """A second start that begins far below the end of the first does not raise."""
    fit = fit_em(**halving(), restarts=2, tolerance=0.01)
    assert fit.start == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_diverging_start_is_skipped(value, caplog):
    heights = [3.0, value, 1.0]
    steps = {"e_step": lambda rest: Expectation(rest, -rest), "m_step": lambda rest: rest / 2}
    with caplog.at_level("INFO", logger="credo"):
        fit = fit_em(lambda number: heights[number], **steps, restarts=3, tolerance=0.0, max_iter=4)
    assert fit.start == 2
    assert "start 2 of 3 was skipped: the bound is" in caplog.text
    with pytest.raises(DivergenceError, match="after 0 steps"):
        fit_em(lambda _: value, **steps, restarts=3)


def test_callback_is_called_after_every_e_step_of_every_start():
    seen = []
    fit_em(
        **halving(),
        restarts=2,
        max_iter=2,
        tolerance=0.0,
        callback=lambda iteration, parameters, expectation: seen.append((iteration, parameters, expectation.bound)),
    )
    assert seen == [(0, 1.0, -1.0), (1, 0.5, -0.5), (2, 0.25, -0.25), (0, 2.0, -2.0), (1, 1.0, -1.0), (2, 0.5, -0.5)]


def test_steps_alternate():
    calls = []

    def e_step(x):
        calls.append("E")
        return Expectation(x, -x)

    def m_step(x):
        calls.append("M")
        return x / 2

    fit_em(lambda _: 1.0, e_step, m_step, max_iter=3, tolerance=0.0)
    assert "".join(calls) == "EMEMEME"


def test_falling_bound_raises():
    with pytest.raises(BoundError, match=r"fell from -1 to -1.5 in step 2: .* one objective"):
        fit_em(**through([-2.0, -1.0, -1.5, -1.2]), tolerance=0.0)
    assert issubclass(BoundError, CredoError)
    assert issubclass(BoundError, ArithmeticError)


@pytest.mark.parametrize(("bound", "rows"), [(-1.0, 1), (-1e12, 1), (1e-3, 1), (-1e-3, 10**6)])
def test_only_falls_larger_than_rounding_raise(bound, rows):
    allowed = ROUNDING * max(abs(bound), rows)
    fit = fit_em(**through([bound, bound - 0.9 * allowed]), tolerance=0.0, rows=rows)
    assert fit.converged
    with pytest.raises(BoundError):
        fit_em(**through([bound, bound - 1.2 * allowed]), tolerance=0.0, rows=rows)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_non_finite_bound_raises(value, when):
    bounds = [-3.0, -2.0, -1.0]
    bounds[when] = value
    with pytest.raises(DivergenceError, match=f"after {when} steps"):
        fit_em(**through(bounds), tolerance=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be an integer of at least 1, got 0"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, got 0"),
        ({"restarts": -1}, "restarts must be an integer of at least 1, got -1"),
        ({"tolerance": -0.1}, r"tolerance \(tol of an estimator\) must be a number of at least 0, got -0.1"),
        ({"tolerance": math.nan}, r"tolerance \(tol of an estimator\) must be a number of at least 0, got nan"),
    ],
)
def test_bad_arguments_raise_before_any_step(options, message):
    def never(_):
        raise AssertionError

    with pytest.raises(InputError, match=message):
        fit_em(never, never, never, **options)


def test_mixture_of_two_coins():
    """Two coins, each tossed ten times: EM converges to a point where the gradient of the likelihood is 0."""
    heads = np.array([5, 9, 8, 4, 7])

    def log_joint(theta):
        return np.log(0.5) + heads[:, None] * np.log(theta) + (10 - heads[:, None]) * np.log1p(-theta)

    def e_step(theta):
        joint = log_joint(theta)
        evidence = np.logaddexp(joint[:, 0], joint[:, 1])
        shares = np.exp(joint - evidence[:, None])
        return Expectation((shares.T @ heads, 10 * shares.sum(0)), float(evidence.sum()))

    fit = fit_em(
        lambda _: np.array([0.6, 0.5]), e_step, lambda sums: sums[0] / sums[1], rows=5, tolerance=1e-13, max_iter=500
    )
    assert isinstance(fit, EMFit)
    assert fit.converged
    assert all(b >= a for a, b in itertools.pairwise(fit.bounds))
    step = 1e-4
    slopes = [
        (e_step(fit.parameters + d).bound - e_step(fit.parameters - d).bound) / (2 * step) for d in step * np.eye(2)
    ]
    np.testing.assert_allclose(slopes, 0.0, atol=1e-3)


def test_e_step_without_expectation_raises():
    with pytest.raises(InputError, match=r"e_step must return Expectation\(statistics, bound\), got tuple"):
        fit_em(lambda k: 0.0, lambda p: (p, 0.0), lambda s: s)
