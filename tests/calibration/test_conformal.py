"""Conformal intervals: the guarantee exactly, in simulation, and where there are too few rows for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from credo.calibration import SplitConformal
from credo.errors import InputError
from credo.likelihoods import Gaussian, Poisson, StudentT
from credo.predictive import Predictive

from .cases import F64, coverage, skewed, wrong


def rank(n: int, level: float) -> int:
    return next(k for k in range(1, n + 2) if k / (n + 1) >= level - 1e-12)


@pytest.mark.parametrize("level", [0.5, 0.55, 0.81, 0.9, 0.95])
def test_of_n_plus_1_rows_each_in_turn_new_exactly_k_are_covered(level: float) -> None:
    """Exchangeability, enumerated: no model, no luck and no tolerance in it."""
    n = 39
    p, y = skewed(5.0, rows=n + 1)
    covered = 0
    for new in range(n + 1):
        others = torch.arange(n + 1) != new
        covered += coverage(SplitConformal().fit(p[others], y[others])(p[new]), y[new : new + 1], level) == 1
    assert covered == rank(n, level)
    assert level <= covered / (n + 1) < level + 1 / (n + 1) + 1e-12


@pytest.mark.parametrize(("n", "level"), [(19, 0.95), (30, 0.8), (60, 0.9)])
def test_coverage_of_a_bad_model_in_simulation(n: int, level: float) -> None:
    repeats, new = 150, 40
    p, y = skewed(10.0, rows=repeats * (n + new))  # ten times too sure, and the noise of another shape
    covers = []
    for i in range(repeats):
        start = i * (n + new)
        held_out, test = slice(start, start + n), slice(start + n, start + n + new)
        covers.append(coverage(SplitConformal().fit(p[held_out], y[held_out])(p[test]), y[test], level))
    error = float(np.std(covers, ddof=1)) / math.sqrt(repeats)
    exact = rank(n, level) / (n + 1)
    assert abs(float(np.mean(covers)) - exact) < 5 * error < 0.05
    assert level <= exact <= level + 1 / (n + 1)


def test_the_interval_is_a_rank_of_the_scores_and_the_rest_is_the_models() -> None:
    p, y = wrong(2.0, rows=50)
    q = SplitConformal().fit(p, y)(p)
    scores = ((y - p.mean).abs() / p.std).flatten().sort().values
    lower, upper = q.interval(0.9)
    torch.testing.assert_close(upper, p.mean + scores[45] * p.std)  # ⌈51 · 0.9⌉ = 46
    torch.testing.assert_close(lower, p.mean - scores[45] * p.std)
    for name in ("mean", "variance", "std", "aleatoric", "epistemic", "entropy", "mutual_information", "draws"):
        assert torch.equal(getattr(q, name), getattr(p, name))
    assert torch.equal(q.cdf(y), p.cdf(y))
    assert torch.equal(q.log_prob(y), p.log_prob(y))
    assert torch.equal(q.quantile([0.1, 0.8]), p.quantile([0.1, 0.8]))
    assert torch.equal(q.sample(3, seed=0), p.sample(3, seed=0))


def test_a_level_that_needs_more_rows_is_refused_in_a_sentence() -> None:
    p, y = wrong(2.0, rows=40)
    q = SplitConformal().fit(p, y)(p)
    with pytest.raises(
        InputError, match=r"level 0.99 needs 99 held-out rows or more.* fitted to 40: ask for at most 0.976"
    ):
        q.interval(0.99)
    with pytest.raises(InputError, match="level must lie between 0 and 1"):
        q.interval(95)
    assert bool(SplitConformal().fit(p[:19], y[:19])(p).interval(0.95).upper.isfinite().all())
    with pytest.raises(InputError, match="needs 19 held-out rows or more"):
        SplitConformal().fit(p[:18], y[:18])


def test_counts_are_covered_and_not_negative() -> None:
    log_rate = torch.linspace(-2, 3, 400, dtype=F64).expand(3, 400)
    p = Poisson().predictive(log_rate)
    y = Poisson().predictive(log_rate + 0.5).sample(1, seed=0)[0]
    mixed = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    held_out, new = mixed[:200], mixed[200:]
    q = SplitConformal().fit(p[held_out], y[held_out])(p[new])
    assert float(q.interval(0.9).lower.min()) >= 0
    assert coverage(q, y[new], 0.9) > 0.9 - 5 * math.sqrt(0.09 / 200 * 2)


def test_what_has_no_standard_deviation_is_refused() -> None:
    p: Predictive = StudentT(2.0, 0.5).predictive(torch.zeros(3, 30))
    with pytest.raises(InputError, match="use QuantileRecalibration"):
        SplitConformal().fit(p, torch.zeros(30))
    with pytest.raises(InputError, match=r"one output per row, \[B\] or \[B, 1\], got \[30, 2\]"):
        SplitConformal().fit(Gaussian(0.1).predictive(torch.zeros(3, 30, 2)), torch.zeros(30, 2))
