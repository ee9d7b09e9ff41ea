"""Confidence intervals of scores: exact where they can be, and in simulation what they say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from credo import metrics
from credo.likelihoods import Bernoulli, Categorical, Gaussian
from credo.metrics import _statistics as statistics
from credo.metrics._intervals import (
    LOG,
    LOG_COMPLEMENT,
    BinomialInterval,
    RankingInterval,
    ScoreInterval,
    StudentizedInterval,
)
from credo.predictive import Predictive
from metrics.predictions import F64

Case = Callable[[int, torch.Generator], tuple[Predictive, Tensor]]


def by_name(p: Predictive, y: Tensor, resamples: int = 200, seed: int = 0) -> dict[str, metrics.Score]:
    return {score.name: score for score in metrics.scores(p, y, resamples=resamples, seed=seed)}


def answers(right: int, wrong: int, confidence: float = 0.9) -> tuple[Predictive, Tensor]:
    """A classifier that is equally sure of every answer."""
    logit = math.log(confidence / (1 - confidence))
    y = torch.tensor([1] * right + [0] * wrong)
    return Bernoulli().predictive(torch.full((1, right + wrong), logit, dtype=F64)), y


@pytest.mark.parametrize(("right", "rows"), [(20, 20), (0, 20), (7, 10), (1, 1), (199, 200)])
def test_fractions_have_the_exact_binomial_interval(right: int, rows: int) -> None:
    exact = stats.binomtest(right, rows).proportion_ci(0.95, method="exact")
    score = by_name(*answers(right, rows - right), resamples=1)["accuracy"]
    assert (score.lower, score.upper) == (pytest.approx(exact.low, abs=1e-12), pytest.approx(exact.high, abs=1e-12))
    p = Gaussian(1.0).predictive(torch.zeros(1, rows, dtype=F64))
    y = torch.tensor([0.0] * right + [5.0] * (rows - right), dtype=F64)
    inside = by_name(p, y, resamples=1)["coverage"]
    assert (inside.lower, inside.upper) == (pytest.approx(exact.low, abs=1e-12), pytest.approx(exact.high, abs=1e-12))


@pytest.mark.parametrize("rows", [10, 20, 50])
def test_binomial_interval_has_95_percent_coverage(rows: int) -> None:
    """Enumerated. Percentiles of a bootstrap hold a coverage of 0.95 in 37 of 100 cases with 10 rows."""
    ends = [
        BinomialInterval(statistics.mean(torch.ones(rows)), rows, rows).bounds(k / rows, torch.empty(0))
        for k in range(rows + 1)
    ]
    for truth in np.linspace(0.01, 0.99, 99):
        held = [lower <= truth <= upper for lower, upper in ends]
        assert stats.binom.pmf(np.arange(rows + 1), rows, truth)[held].sum() >= 0.95


def test_dependent_targets_have_a_smaller_effective_count() -> None:
    stream = np.random.default_rng(0)
    hits = torch.from_numpy(stream.integers(0, 2, (40, 1))).double()
    per_row = by_name(*answers(int(hits.sum()), 40 - int(hits.sum())), resamples=1)["accuracy"]
    # eight copies of an answer are one answer, but for the t quantiles of 39 rows and of 320 targets
    same = BinomialInterval(statistics.mean(hits.expand(40, 8).mean(1)), 320, 40)
    wider = stats.t.ppf(0.975, 39) / stats.t.ppf(0.975, 319)
    found = same.bounds(float(hits.mean()), torch.empty(0))
    assert found.upper - found.lower == pytest.approx(wider * (per_row.upper - per_row.lower), rel=0.03)
    # independent ones are 320
    free = torch.from_numpy(stream.integers(0, 2, (40, 8))).double()
    lower, upper = BinomialInterval(statistics.mean(free.mean(1)), 320, 40).bounds(float(free.mean()), torch.empty(0))
    exact = stats.binomtest(int(free.sum()), 320).proportion_ci(0.95, method="exact")
    # the variance over 40 rows is known to a factor of 1 ± √(2/39)
    assert upper - lower == pytest.approx(exact.high - exact.low, rel=4 * math.sqrt(2 / 39) / 2)
    certain = BinomialInterval(statistics.mean(torch.ones(40, dtype=F64)), 320, 40).bounds(1.0, torch.empty(0))
    assert certain.lower == pytest.approx(stats.binomtest(40, 40).proportion_ci(0.95, method="exact").low)


def test_standard_errors_match_the_delta_method() -> None:
    stream = np.random.default_rng(0)
    values, y = torch.from_numpy(stream.exponential(size=50)), torch.from_numpy(stream.normal(size=(50, 1)))
    n = len(values)
    plain = float(values.std(correction=0)) / math.sqrt(n)
    _, error = statistics.mean(values).with_error(torch.ones(1, n, dtype=F64))
    assert float(error) == pytest.approx(plain, rel=1e-12)
    _, error = statistics.root_mean(values).with_error(torch.ones(1, n, dtype=F64))
    assert float(error) == pytest.approx(plain / (2 * math.sqrt(float(values.mean()))), rel=1e-12)
    # of a resample: the error of the rows written out as often as they count
    weights = torch.from_numpy(stream.multinomial(n, np.full(n, 1 / n), size=1)).double()
    written = values.repeat_interleave(weights[0].long())
    _, error = statistics.mean(values).with_error(weights)
    assert float(error) == pytest.approx(float(written.std(correction=0)) / math.sqrt(n), rel=1e-12)
    # of a ratio of means by the jackknife, which differs in the order 1/n
    r2 = statistics.explained_variance(values, y)
    _, error = r2.with_error(torch.ones(1, n, dtype=F64))
    left_out = r2(torch.ones(n, n, dtype=F64) - torch.eye(n, dtype=F64))
    jackknife = math.sqrt((n - 1) / n * float((left_out - left_out.mean()).square().sum()))
    assert float(error) == pytest.approx(jackknife, rel=0.1)


def test_studentized_interval_of_normal_rows_matches_the_t_interval() -> None:
    """For normal rows (θ* − θ̂)/s* is nearly Student's t: the classical interval of a mean."""
    rows, resamples = 30, 20_000
    values = torch.from_numpy(stats.norm.ppf((np.arange(rows) + 0.5) / rows) + 3)  # normal, and symmetric
    estimate = StudentizedInterval(statistics.mean(values))
    picked = np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    lower, upper = estimate.bounds(3.0, estimate.replicates(torch.from_numpy(picked).double()))
    half = stats.t.ppf(0.975, rows - 1) * float(values.std()) / math.sqrt(rows)
    # an end is an order statistic of t: its error in standard errors is √(a(1−a)/R)/φ(z_a), and t has kurtosis
    assert lower == pytest.approx(3 - half, abs=0.05 * half)
    assert upper == pytest.approx(3 + half, abs=0.05 * half)


@pytest.mark.parametrize("scale", [LOG, LOG_COMPLEMENT])
def test_log_scale_keeps_ends_in_range(scale: object) -> None:
    values = torch.tensor([1e-6, 1e-6, 2e-6, 3.0], dtype=F64)
    estimate = StudentizedInterval(statistics.mean(values / 4 if scale is LOG_COMPLEMENT else values), scale)  # type: ignore[arg-type]
    weights = torch.from_numpy(np.random.default_rng(0).multinomial(4, np.full(4, 0.25), size=500)).double()
    lower, upper = estimate.bounds(estimate.statistic.value, estimate.replicates(weights))
    assert lower <= estimate.statistic.value <= upper
    assert lower >= 0 if scale is LOG else upper <= 1


@pytest.mark.parametrize(("value", "m", "n"), [(0.8, 7, 20), (0.5, 3, 3), (1.0, 4, 16), (0.0, 1, 9), (0.97, 50, 500)])
def test_ranking_interval_solves_its_equation(value: float, m: int, n: int) -> None:
    lower, upper = RankingInterval(statistics.mean(torch.ones(m + n)), m, n).bounds(value, torch.empty(0))
    half = (m + n) / 2 - 1
    for end in (lower, upper):
        if end not in (0.0, 1.0):
            spread = end * (1 - end) * (1 + half * (1 - end) / (2 - end) + half * end / (1 + end)) / (m * n)
            assert abs(end - value) == pytest.approx(stats.norm.ppf(0.975) * math.sqrt(spread), rel=1e-6)
    assert lower < upper
    mirrored = RankingInterval(statistics.mean(torch.ones(m + n)), n, m).bounds(1 - value, torch.empty(0))
    assert (1 - mirrored.upper, 1 - mirrored.lower) == (pytest.approx(lower), pytest.approx(upper))


def test_intervals_are_not_points_if_all_predictions_are_correct() -> None:
    scores = by_name(*answers(20, 0))
    exact = stats.binomtest(20, 20).proportion_ci(0.95, method="exact").low
    assert scores["accuracy"].lower == pytest.approx(exact)
    assert (scores["aurc"].lower, scores["aurc"].upper) == (0, pytest.approx(1 - exact))
    assert scores["ece"].value == pytest.approx(0.1)
    assert (scores["ece"].lower, scores["ece"].upper) == (0, pytest.approx(0.1))  # more right answers there cannot be
    assert math.isnan(scores["misclassification_auroc"].lower)


def test_calibration_error_interval_reaches_0_for_calibrated_predictions() -> None:
    p = Gaussian(1.0).predictive(torch.zeros(1, 200, dtype=F64))
    z = torch.from_numpy(stats.norm.ppf((np.arange(200) + 0.5) / 200))
    assert by_name(p, z)["quantile_calibration_error"].lower == 0
    assert by_name(p, 3 * z)["quantile_calibration_error"].lower > 0.05


def numbers(factor: float) -> Case:
    def case(rows: int, stream: torch.Generator) -> tuple[Predictive, Tensor]:
        x, log_scale, noise = torch.randn(3, rows, generator=stream, dtype=F64)
        log_scale = 0.4 * log_scale
        p = Gaussian("heteroscedastic").predictive(torch.stack([2 * x, 2 * log_scale], -1)[None])
        return p, (2 * x + factor * log_scale.exp() * noise)[:, None]

    return case


def classes(factor: float) -> Case:
    def case(rows: int, stream: torch.Generator) -> tuple[Predictive, Tensor]:
        logits = 2 * torch.randn(rows, 3, generator=stream, dtype=F64)
        y = torch.multinomial(logits.softmax(-1), 1, generator=stream)[:, 0]
        return Categorical().predictive(factor * logits[None]), y

    return case


def held(case: Case, rows: int, repeats: int, calibrated: bool) -> dict[str, tuple[float, int]]:
    """How often each interval holds the score of very many rows, and in how many cases there was one."""
    stream = torch.Generator().manual_seed(0)
    truth = {score.name: score.value for score in metrics.scores(*case(100_000, stream), resamples=1)}
    if calibrated:
        truth |= {name: 0.0 for name in ("ece", "quantile_calibration_error") if name in truth}
    hits: dict[str, list[bool]] = {name: [] for name in truth}
    for repeat in range(repeats):
        for score in metrics.scores(*case(rows, stream), resamples=200, seed=repeat):
            if not math.isnan(score.value):
                hits[score.name].append(score.lower <= truth[score.name] <= score.upper)
    return {name: (float(np.mean(of_name)), len(of_name)) for name, of_name in hits.items()}


CASES = {
    "numbers": (numbers, 1.0),
    "classes": (classes, 1.0),
    "sure numbers": (numbers, 2.0),
    "sure classes": (classes, 2.0),
}


def check(name: str, rows: int, repeats: int) -> None:
    make, factor = CASES[name]
    for score, (share, count) in held(make(factor), rows, repeats, factor == 1.0).items():
        least = 0.87 if rows < 20 else 0.89 if rows < 50 else 0.91  # as the docstring of ``scores`` has it
        assert share > least - 4 * math.sqrt(least * (1 - least) / count), score


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_intervals_cover_the_true_score_in_simulation(name: str) -> None:
    check(name, rows=20, repeats=100)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 20, 50, 200])
@pytest.mark.parametrize("name", CASES)
def test_intervals_cover_the_true_score_in_longer_simulations(name: str, rows: int) -> None:
    check(name, rows, repeats=600)


def test_intervals_need_no_replicates_by_default() -> None:
    share: ScoreInterval = BinomialInterval(statistics.mean(torch.ones(5)), 5, 5)
    assert share.replicates(torch.ones(7, 5)).shape == (7, 0)
