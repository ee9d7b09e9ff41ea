"""The continuous ranked probability score: closed forms, Monte Carlo, and the two routes against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from credo import metrics
from credo.likelihoods import Gaussian, Poisson, StudentT
from credo.metrics import scoring_rules
from credo.predictive import Predictive
from metrics.predictions import F64, own_targets, prediction, unequal_weights, widened_gaussian

QUADRATURE = 3e-4  # the error that the docstring admits, in standard deviations of the prediction


def test_crps_of_one_gaussian() -> None:
    z = torch.linspace(-6, 6, 25, dtype=F64)
    for scale in (1e-3, 1.0, 1e3):
        p = Gaussian(scale).predictive(torch.full((1, 25), 7.0, dtype=F64))
        cdf, density = stats.norm.cdf(z), stats.norm.pdf(z)
        expected = scale * (z.numpy() * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi))  # Gneiting & Raftery 2007
        assert metrics.crps(p, 7 + scale * z) == pytest.approx(expected.mean(), rel=1e-9)
        for n in (0, 12, 20):
            assert metrics.crps(p[n], 7 + scale * z[n : n + 1]) == pytest.approx(expected[n], rel=1e-9)


def test_crps_of_a_point_is_the_absolute_error() -> None:
    p = Gaussian(1e-9).predictive(torch.tensor([[0.0, 1.0]], dtype=F64))
    assert metrics.crps(p, torch.tensor([2.0, 0.5], dtype=F64)) == pytest.approx(1.25, rel=1e-8)


def test_crps_of_a_weighted_mixture_matches_its_definition() -> None:
    p = unequal_weights(Gaussian(0.7), rows=4)
    y = own_targets(p, seed=0)
    w, draws = [1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6], p.draws.tolist()

    def distance(mean: float, variance: float) -> float:
        return float(stats.foldnorm.mean(abs(mean) / math.sqrt(variance), scale=math.sqrt(variance)))

    expected = 0.0
    for n in range(4):
        for s in range(5):
            expected += w[s] * distance(draws[s][n] - float(y[n]), 0.49)
            for r in range(5):
                expected -= 0.5 * w[s] * w[r] * distance(draws[s][n] - draws[r][n], 0.98)
    assert metrics.crps(p, y) == pytest.approx(expected / 4, rel=1e-9)


@pytest.mark.parametrize("likelihood", [Gaussian("heteroscedastic"), StudentT(5.0, 0.7), Poisson()], ids=str)
def test_crps_of_a_mixture_matches_monte_carlo(likelihood: Gaussian | StudentT | Poisson) -> None:
    p = prediction(likelihood, 6, 3, 2)
    y = own_targets(p, seed=5)
    n = 40_000
    x, other = p.sample(n, seed=1), p.sample(n, seed=2)
    score = ((x - y).abs() - 0.5 * (x - other).abs()).flatten(1).mean(1)
    error = float(score.std()) / math.sqrt(n)
    assert abs(metrics.crps(p, y) - float(score.mean())) < 4 * error


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 7, 30]), st.floats(0, 30), st.floats(-20, 20))
def test_closed_form_and_quadrature_agree_for_gaussians(seed: int, draws: int, spread: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    means, scales = torch.randn(2, draws, 5, generator=generator, dtype=F64)
    p = Gaussian("heteroscedastic").predictive(torch.stack([spread * means, scales], -1))
    y = shift + own_targets(p, seed)
    exact = scoring_rules._gaussian_mixture(p.components, None, y)
    integral = scoring_rules._integrated(p, p.components, y)
    assert bool(((exact - integral).abs() < QUADRATURE * p.std).all())


def test_crps_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian, student = prediction(Gaussian(0.7), 9, 20, 2), prediction(StudentT(4.0, 0.7), 9, 20, 2)
    y = own_targets(gaussian, seed=0)
    whole = metrics.crps(gaussian, y), metrics.crps(student, y)
    monkeypatch.setattr(scoring_rules, "chunk_size", lambda device, cost: max(600 // max(cost, 1), 1))
    assert (metrics.crps(gaussian, y), metrics.crps(student, y)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.7, 12.0, 300.0, 1e4])
def test_crps_of_one_poisson(rate: float) -> None:
    y = torch.tensor([0.0, 1.0, round(rate), round(3 * rate) + 5], dtype=F64)
    p = Poisson().predictive(torch.full((1, 4), math.log(rate), dtype=F64))
    k = y.numpy()
    # Wei & Held 2014; I the modified Bessel functions, scaled
    expected = (k - rate) * (2 * stats.poisson.cdf(k, rate) - 1) + 2 * rate * stats.poisson.pmf(k, rate)
    expected -= rate * (special.ive(0, 2 * rate) + special.ive(1, 2 * rate))
    scores = np.array([metrics.crps(p[n], y[n : n + 1]) for n in range(4)])
    # every count is summed up to 256 of them; beyond, the sum is interpolated
    tolerance = 1e-9 * (1 + np.abs(k - rate)) if rate < 100 else QUADRATURE * math.sqrt(rate)
    assert (np.abs(scores - expected) < tolerance).all()


@pytest.mark.parametrize("df", [1.5, 2.0, 4.0, 30.0])
def test_crps_of_one_student_t(df: float) -> None:
    z = torch.linspace(-8, 8, 9, dtype=F64)
    p = StudentT(df, 1.0).predictive(torch.zeros(1, 9, dtype=F64))
    t = z.numpy()
    # Jordan, Krüger & Lerch 2019
    expected = t * (2 * stats.t.cdf(t, df) - 1) + 2 * stats.t.pdf(t, df) * (df + t**2) / (df - 1)
    expected -= 2 * math.sqrt(df) / (df - 1) * special.beta(0.5, df - 0.5) / special.beta(0.5, df / 2) ** 2
    assert metrics.crps(p, z) == pytest.approx(expected.mean(), abs=QUADRATURE)


def test_crps_of_a_recalibrated_prediction_uses_its_distribution() -> None:
    recalibrated, same = widened_gaussian(rows=20)
    y = own_targets(same, seed=0)
    assert metrics.crps(recalibrated, y) == pytest.approx(
        metrics.crps(same, y), abs=QUADRATURE * float(same.std.mean())
    )
    assert metrics.coverage(recalibrated, y, 0.5) == metrics.coverage(same, y, 0.5)
    assert metrics.width(recalibrated) == pytest.approx(metrics.width(same), rel=1e-9)


def test_float32_predictions_are_accurate() -> None:
    means = 1e3 + torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    y = 1e3 + torch.randn(50, generator=torch.Generator().manual_seed(1))
    double = metrics.crps(Gaussian(0.5).predictive(means.double()), y.double())
    # the noise 0.5 is rounded to float32 too
    assert metrics.crps(Gaussian(0.5).predictive(means), y) == pytest.approx(double, rel=1e-6)
    student: list[Predictive] = [StudentT(4.0, 0.5).predictive(m) for m in (means, means.double())]
    # a node near 1000 is rounded by 3e-5, half of a unit in its last place, at either end of an interval
    assert metrics.crps(student[0], y) == pytest.approx(metrics.crps(student[1], y.double()), abs=1e-4)
