"""Conformal intervals: the guarantee exactly, in simulation, and where there are too few rows for it."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import credo
from credo.calibration import Calibrator, SplitConformal
from credo.errors import InputError
from credo.likelihoods import Gaussian, Poisson, StudentT
from credo.predictive import Predictive

from .cases import F64, coverage, skewed, wrong


def rank(n: int, level: float) -> int:
    return next(k for k in range(1, n + 2) if k / (n + 1) >= level - 1e-12)


@pytest.mark.parametrize("level", [0.5, 0.55, 0.81, 0.9, 0.95])
def test_exactly_k_of_n_plus_1_rows_are_covered(level: float) -> None:
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
def test_bad_models_are_covered_in_simulation(n: int, level: float) -> None:
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


def test_interval_is_an_order_statistic_and_the_rest_unchanged() -> None:
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


def test_levels_that_need_more_rows_raise() -> None:
    p, y = wrong(2.0, rows=40)
    q = SplitConformal().fit(p, y)(p)
    with pytest.raises(
        InputError, match=r"level 0.99 needs at least 99 held-out rows.* fitted to 40: use a level of at most 0.976"
    ):
        q.interval(0.99)
    with pytest.raises(InputError, match="level must be a number between 0 and 1"):
        q.interval(95)
    assert bool(SplitConformal().fit(p[:19], y[:19])(p).interval(0.95).upper.isfinite().all())
    with pytest.raises(InputError, match="needs at least 19 held-out rows"):
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


def test_infinite_standard_deviation_raises() -> None:
    p: Predictive = StudentT(2.0, 0.5).predictive(torch.zeros(3, 30))
    with pytest.raises(InputError, match="use QuantileRecalibration"):
        SplitConformal().fit(p, torch.zeros(30))
    with pytest.raises(InputError, match=r"one output per row, \[B\] or \[B, 1\], got \[30, 2\]"):
        SplitConformal().fit(Gaussian(0.1).predictive(torch.zeros(3, 30, 2)), torch.zeros(30, 2))


def tied_prediction(name: str, rows: int, dtype: torch.dtype) -> Predictive:
    """The same prediction for every row, so that equal targets have equal scores."""
    if name == "Poisson":
        return Poisson().predictive(torch.full((3, rows), math.log(1.224), dtype=dtype))
    return Gaussian(0.37).predictive(torch.full((3, rows), 1.1, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["Poisson", "Gaussian"])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_tied_rows_are_covered_by_their_scores(name: str, level: float, dtype: torch.dtype) -> None:
    """Exchangeability with ties, enumerated, against scores in exact arithmetic."""
    n, p = 39, tied_prediction(name, 40, dtype)
    y = torch.poisson(torch.full((n + 1,), 1.224), generator=torch.Generator().manual_seed(0)).to(dtype)
    mean = Fraction(float(p.double().mean[0]))  # all rows have one std, so that distances rank as scores do
    distances = [abs(Fraction(int(target)) - mean) for target in y]
    covered = 0
    for new in range(n + 1):
        others = torch.arange(n + 1) != new
        limit = sorted(d for i, d in enumerate(distances) if i != new)[rank(n, level) - 1]
        inside = coverage(SplitConformal().fit(p[others], y[others])(p[new]), y[new : new + 1], level) == 1
        assert inside == (distances[new] <= limit)
        covered += inside
    assert covered / (n + 1) >= level


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["Poisson", "Gaussian"])
@pytest.mark.parametrize(("rate", "n", "level"), [(1.224, 99, 0.8), (1.224, 30, 0.5), (0.3, 99, 0.8)])
def test_coverage_of_counts_in_simulation(name: str, rate: float, n: int, level: float, dtype: torch.dtype) -> None:
    repeats, stream = 60, np.random.default_rng(0)
    covers = []
    for _ in range(repeats):
        y = torch.tensor(stream.poisson(rate, n), dtype=dtype)
        lower, upper = (
            SplitConformal().fit(tied_prediction(name, n, dtype), y)(tied_prediction(name, 1, dtype)).interval(level)
        )
        counts = np.arange(60)
        inside = (counts >= float(lower)) & (counts <= float(upper))
        covers.append(stats.poisson.pmf(counts[inside], rate).sum())  # exact, given the held-out rows
    error = float(np.std(covers, ddof=1)) / math.sqrt(repeats)
    assert float(np.mean(covers)) >= level - 5 * error


def test_integer_targets_and_loaded_calibrators_keep_ties() -> None:
    """Held-out rows predicted together, new ones alone, by a network whose output depends on the batch in rounding."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
    model, x = credo.MAP(net, Poisson()), torch.randn(1, 7)
    y = torch.poisson(torch.full((99,), 1.3), generator=torch.Generator().manual_seed(1)).long()
    calibrator = SplitConformal().fit(model.predict(x.expand(99, 7), samples=0), y)
    loaded = Calibrator.from_config(json.loads(json.dumps(calibrator.get_config())))
    assert loaded.get_config() == calibrator.get_config()
    assert calibrator.scores is not None
    for level in (0.5, 0.8, 0.95):
        limit = calibrator.scores[rank(99, level) - 1]
        held_out = model.predict(x.expand(99, 7), samples=0).double()
        distance = (y - held_out.mean).abs() / held_out.std
        tied = y[distance <= limit].unique()
        for rows in (1, 2, 5, 64, 300):
            lower, upper = loaded(model.predict(x.expand(rows, 7), samples=0)).interval(level)
            for target in tied.tolist():
                assert bool(((lower <= target) & (target <= upper)).all()), (level, rows, target)


def test_ends_are_rounded_outwards() -> None:
    for dtype in (torch.float32, F64):
        p, y = wrong(2.0, rows=50)
        p = Gaussian("heteroscedastic").predictive(
            torch.cat([p.components.mean, p.components.log_variance], -1).to(dtype)  # type: ignore[attr-defined]
        )
        q = SplitConformal().fit(p, y)(p)
        assert q.interval(0.9).lower.dtype == dtype
        exact = p.double()
        score = sorted(((y - exact.mean).abs() / exact.std).flatten().tolist())[45]
        for end, sign in ((q.interval(0.9).upper, 1), (q.interval(0.9).lower, -1)):
            beyond = sign * (end.double() - (exact.mean + sign * score * exact.std))
            size = torch.finfo(dtype).eps * (exact.mean.abs() + score * exact.std)
            assert bool(((beyond > 0) & (beyond < 5 * size)).all())
