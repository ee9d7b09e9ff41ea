"""The standard scores: the same numbers as the metrics, and replicates that are those of resampled rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from credo import metrics
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, StudentT
from credo.metrics import summary
from credo.predictive import Predictive, RealPredictive
from metrics.predictions import F64, own_targets, prediction

LIKELIHOODS: list[Likelihood] = [Gaussian(0.7), StudentT(4.0, 0.7), Poisson(), Categorical(), Bernoulli()]
NUMBERS = ["nll", "rmse", "crps", "r2", "coverage", "width", "quantile_calibration_error"]
CLASSES = ["nll", "accuracy", "brier", "ece", "misclassification_auroc", "aurc"]


def a_case(likelihood: Likelihood, rows: int = 60) -> tuple[Predictive, torch.Tensor]:
    p = prediction(likelihood, 5, rows, *([3] if isinstance(likelihood, Categorical) else []))
    return p, own_targets(p, seed=1)


def by_the_metrics(p: Predictive, y: torch.Tensor, level: float) -> list[float]:
    if isinstance(p, RealPredictive):
        functions = [metrics.nll, metrics.rmse, metrics.crps, metrics.r2, metrics.quantile_calibration_error]
        nll, rmse, crps, r2, error = (function(p, y) for function in functions)
        return [nll, rmse, crps, r2, metrics.coverage(p, y, level), metrics.width(p, level), error]
    first = [metric(p, y) for metric in (metrics.nll, metrics.accuracy, metrics.brier, metrics.ece)]
    wrong = (p.mode != y).double()
    return [*first, metrics.misclassification(p, y).auroc, metrics.aurc(wrong, p.entropy)]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
def test_values_match_the_single_metrics(likelihood: Likelihood) -> None:
    p, y = a_case(likelihood)
    scores = metrics.scores(p, y, level=0.8, resamples=1)
    assert [score.name for score in scores] == (NUMBERS if isinstance(p, RealPredictive) else CLASSES)
    assert [score.value for score in scores] == pytest.approx(by_the_metrics(p, y, 0.8), rel=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
def test_replicates_match_scores_of_resampled_rows(likelihood: Likelihood) -> None:
    p, y = a_case(likelihood)
    estimates = summary._real_intervals(p, y, 0.8) if isinstance(p, RealPredictive) else summary._class_intervals(p, y)
    for seed in (0, 7):
        rows = torch.from_numpy(np.random.default_rng(seed).integers(len(p), size=len(p)))
        (weights,) = summary._resample(len(p), 1, seed)
        assert torch.equal(weights[0], rows.bincount(minlength=len(p)).double())
        found = [float(estimate.statistic(weights)) for estimate in estimates.values()]
        assert found == pytest.approx(by_the_metrics(p[rows], y[rows], 0.8), rel=1e-9)


def test_intervals_match_the_normal_approximation() -> None:
    p, y = a_case(Gaussian(0.7), rows=2000)
    row = {"nll": -p.log_prob(y), "coverage": metrics.pit(p, y).sub(0.5).abs().le(0.475).double()}
    resamples = 2000
    # An end is an order statistic of the replicates: its error in standard errors of the score is √(a(1−a)/R)/φ(z_a).
    noise = math.sqrt(0.025 * 0.975 / resamples) / stats.norm.pdf(1.96)
    # Skewness moves the ends by γ(2z² + 1)/6√N standard errors (Cornish–Fisher, studentized), a share by 1/2N.
    for score in metrics.scores(p, y, resamples=resamples):
        if score.name in row:
            values = row[score.name].numpy()
            error = values.std() / math.sqrt(2000)
            shift = abs(stats.skew(values)) * (2 * 1.96**2 + 1) / (6 * math.sqrt(2000)) * error + 1 / 2000
            for end, sign in ((score.lower, -1), (score.upper, 1)):
                assert abs(end - (values.mean() + sign * 1.96 * error)) < 4 * noise * error + shift


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Categorical()], ids=str)
def test_seed_is_reproducible_and_global_state_unchanged(
    likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, y = a_case(likelihood)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = metrics.scores(p, y, resamples=50, seed=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert metrics.scores(p, y, resamples=50, seed=3) == first
    assert metrics.scores(p, y, resamples=50, seed=4) != first
    monkeypatch.setattr(summary, "_MAX_WEIGHTS", 7 * len(p))  # resamples seven at a time
    for chunked, whole in zip(metrics.scores(p, y, resamples=50, seed=3), first, strict=True):
        assert (chunked.lower, chunked.upper) == pytest.approx((whole.lower, whole.upper), rel=1e-12)


def test_prediction_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("log_prob", "cdf", "interval"):
        method = getattr(RealPredictive, name)
        monkeypatch.setattr(
            RealPredictive, name, lambda self, *a, name=name, method=method: [calls.append(name), method(self, *a)][1]
        )
    p, y = a_case(Gaussian(0.7))
    metrics.scores(p, y, resamples=100)
    assert sorted(calls) == ["cdf", "interval", "log_prob"]


def test_every_score_has_a_description() -> None:
    assert set(metrics.DESCRIPTIONS) == {*NUMBERS, *CLASSES}
    for likelihood in (Gaussian(0.7), Categorical()):
        for score in metrics.scores(*a_case(likelihood), level=0.9, resamples=2):
            described = metrics.DESCRIPTIONS[score.name]
            assert (score.better, score.meaning) == (described.better, described.meaning)
            assert score.lower <= score.value <= score.upper
            assert "\n" not in score.meaning
    assert metrics.Score("coverage", 0.9, 0.8, 1.0, level=0.9).label == "coverage (90 %)"
    assert metrics.Score("rmse", 0.9, 0.8, 1.0).label == "RMSE"


def test_an_impossible_row_only_makes_its_resamples_infinite() -> None:
    log_p = torch.zeros(1, 40, 2, dtype=F64)
    log_p[0, 0, 1] = -math.inf
    p, y = Categorical().predictive(log_p), torch.ones(40, dtype=torch.long)
    nll = metrics.scores(p, y, resamples=200)[0]
    # about (1 − 1/40)^40 = 0.36 of the resamples are without it
    assert (nll.value, nll.lower, nll.upper) == (math.inf, pytest.approx(math.log(2)), math.inf)


def test_one_row_has_unknown_intervals() -> None:
    p = Gaussian(0.7).predictive(torch.zeros(3, 1, dtype=F64))
    scores = {score.name: score for score in metrics.scores(p, torch.zeros(1, dtype=F64), resamples=5)}
    assert math.isnan(scores["r2"].value)
    for name in ("nll", "rmse", "crps", "r2", "width", "quantile_calibration_error"):
        assert math.isnan(scores[name].lower)
        assert math.isnan(scores[name].upper)
    assert scores["rmse"].value == 0
    assert (scores["coverage"].lower, scores["coverage"].upper) == (pytest.approx(0.025), 1.0)


@pytest.mark.parametrize("rows", [2, 3])
def test_few_rows_have_infinite_ends(rows: int) -> None:
    p, y = a_case(Gaussian(0.7), rows=rows)
    scores = {score.name: score for score in metrics.scores(p, y)}
    assert (scores["nll"].lower, scores["nll"].upper) == (-math.inf, math.inf)
    assert (scores["rmse"].lower, scores["rmse"].upper) == (0, math.inf)
    assert math.isnan(scores["r2"].lower)  # of equal rows there is none, and too many resamples are of equal rows


def test_intervals_of_equal_rows_are_points() -> None:
    p = Gaussian(0.7).predictive(torch.zeros(1, 9, dtype=F64))
    scores = {score.name: score for score in metrics.scores(p, torch.full((9,), 0.2, dtype=F64), resamples=50)}
    for name in ("nll", "rmse", "crps", "width"):
        assert scores[name].lower == pytest.approx(scores[name].value, rel=1e-12)
        assert scores[name].upper == pytest.approx(scores[name].value, rel=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
def test_inference_mode_changes_nothing(likelihood: Likelihood) -> None:
    with torch.inference_mode():
        p, y = a_case(likelihood)
        inside = metrics.scores(p, y, resamples=20)
    outside = metrics.scores(*a_case(likelihood), resamples=20)
    assert [(s.value, s.lower, s.upper) for s in inside] == [(s.value, s.lower, s.upper) for s in outside]
