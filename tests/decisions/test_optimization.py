"""Thompson sampling finds minima with fewer evaluations than random search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.decisions import ThompsonOptimizer
from credo.errors import InputError
from credo.gaussian_process import GaussianProcessRegressor
from credo.gaussian_process.kernels import RBF
from credo.linear import BayesianLogisticRegression

BRANIN = [(-5.0, 10.0), (0.0, 15.0)]


def branin(x: Tensor) -> float:
    a, b = x.tolist()
    quadratic = b - 5.1 / (4 * math.pi**2) * a**2 + 5 / math.pi * a - 6
    return quadratic**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


def wave(x: Tensor) -> float:
    """Two minima on [−2, 2], the lower one near −0.52."""
    return float(torch.sin(3 * x[0]) + 0.3 * x[0] ** 2)


def slope(x: Tensor) -> float:
    """Lowest in a corner of [−1, 1]³."""
    return float(x.exp().sum() + (x[0] - x[1]) ** 2)


def gaussian_process() -> GaussianProcessRegressor:
    """With fixed hyperparameters, for standardized values of functions without noise on [−1, 1]."""
    return GaussianProcessRegressor(1.0 * RBF(0.5), noise=1e-3, optimizer=None)


def bayesian_network() -> credo.BayesByBackprop:
    net = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1))
    return credo.BayesByBackprop(net, credo.Gaussian(noise=0.1), initial_scale=0.05)


def random_search(function: Callable[[Tensor], float], bounds: Any, evaluations: int, seed: int) -> float:
    box = torch.tensor(bounds)
    unit = torch.rand(evaluations, len(box), generator=torch.Generator().manual_seed(seed))
    return min(function(point) for point in box[:, 0] + unit * (box[:, 1] - box[:, 0]))


def improvement(found: list[float], random: list[float]) -> tuple[float, float]:
    """The mean improvement on random search, and its standard error."""
    one, other = torch.tensor(found), torch.tensor(random)
    return float(other.mean() - one.mean()), math.sqrt(float(one.var() + other.var()) / len(one))


def test_a_gaussian_process_beats_random_search_on_branin() -> None:
    """30 evaluations in batches of 5, five seeds: the mean improvement is more than 3 standard errors above 0."""
    seeds = range(5)
    found = [
        ThompsonOptimizer(gaussian_process(), BRANIN, candidates=300, seed=seed).run(branin, 30, 5).y for seed in seeds
    ]
    gain, error = improvement(found, [random_search(branin, BRANIN, 30, seed) for seed in seeds])
    assert gain > 3 * error


@pytest.mark.slow
def test_a_bayesian_network_beats_random_search_in_three_dimensions() -> None:
    """24 evaluations in batches of 8, five seeds: the mean improvement is more than 2 standard errors above 0."""
    box, seeds = [(-1.0, 1.0)] * 3, range(5)
    options = {"epochs": 100, "lr": 3e-2, "optimizer": torch.optim.Adam}
    found = [
        ThompsonOptimizer(bayesian_network, box, candidates=300, fit_options=options, seed=seed).run(slope, 24, 8).y
        for seed in seeds
    ]
    gain, error = improvement(found, [random_search(slope, box, 24, seed) for seed in seeds])
    assert gain > 2 * error


def test_maximize_looks_for_the_maximum() -> None:
    high = ThompsonOptimizer(gaussian_process(), [(-2.0, 2.0)], maximize=True, candidates=100, seed=0)
    best = high.run(lambda x: -wave(x), 12, 4)
    assert best.y == float(high.y.max())
    assert best.y > 0.9  # the maximum is 0.923


def test_suggestions_are_in_the_box_diverse_and_reproducible() -> None:
    bounds = [(1.0, 2.0), (-300.0, -100.0)]
    state = torch.get_rng_state()
    runs = []
    for _ in range(2):
        optimizer = ThompsonOptimizer(gaussian_process(), bounds, candidates=100, seed=5)
        initial = optimizer.suggest(6)
        optimizer.observe(initial, initial[:, 0] + initial[:, 1] / 100)
        runs.append(optimizer.suggest(8))
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(torch.get_rng_state(), state)
    for points in (initial, runs[0]):
        assert bool(((points >= optimizer.bounds[:, 0]) & (points <= optimizer.bounds[:, 1])).all())
    assert len(initial.unique(dim=0)) == 6
    other = optimizer.suggest(8)
    assert not torch.equal(other, runs[0])


def test_own_evaluations_replace_the_initial_ones() -> None:
    optimizer = ThompsonOptimizer(gaussian_process(), [(-2.0, 2.0)], candidates=100, initial=3, seed=0)
    x = torch.linspace(-2, 2, 9)[:, None]
    optimizer.observe(x, [wave(point) for point in x])
    assert abs(float(optimizer.suggest()[0, 0]) + 0.52) < 0.5
    constant = ThompsonOptimizer(gaussian_process(), [(-2.0, 2.0)], candidates=100, initial=2, seed=0).observe(
        x, torch.ones(9)
    )
    assert constant.suggest(2).shape == (2, 1)


def test_networks_may_output_one_number_per_row_without_a_dimension() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    optimizer = ThompsonOptimizer(
        credo.BayesByBackprop(net, credo.Gaussian(0.1)), [(-1, 1)], fit_options={"epochs": 1}, seed=0
    )
    assert len(optimizer.observe([-0.5, 0.0, 0.1, 0.5], [0.0, 1.0, 2.0, 3.0]).suggest(2)) == 2


def test_wrong_arguments_are_sentences() -> None:
    for bounds, message in [
        ([(1.0, 0.0)], "lower < upper"),
        ([], "lower < upper"),
        ([(0.0, math.inf)], "must be finite"),
        ("ab", "bounds must hold numbers"),
        ([(0.0, 1.0), (0.0,)], "bounds must hold numbers"),
    ]:
        with pytest.raises(InputError, match=message):
            ThompsonOptimizer(gaussian_process(), bounds)
    optimizer = ThompsonOptimizer(gaussian_process(), [(0.0, 1.0)], seed=0)
    with pytest.raises(InputError, match="nothing has been evaluated yet"):
        _ = optimizer.best
    for x, y, message in [
        ([[0.5], [0.6]], [1.0], "one value per point, 2, got 1"),
        ([1.5], 1.0, "inside the bounds"),
        ([0.5], math.nan, "NaN or infinite"),
    ]:
        with pytest.raises(InputError, match=message):
            optimizer.observe(x, y)
    for value in (None, torch.ones(2), "high"):
        with pytest.raises(InputError, match="function must return one number for a point"):
            optimizer.run(lambda _, value=value: value, 1)  # type: ignore[misc]
    assert len(optimizer.y) == 0
    classes = ThompsonOptimizer(BayesianLogisticRegression(), [(0.0, 1.0)], initial=1, seed=0)
    classes.observe([[0.1], [0.9]], [0.0, 1.0])
    with pytest.raises(InputError):
        classes.suggest()
