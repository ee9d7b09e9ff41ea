"""Scores of real and count-valued predictions against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import r2_score

from credo import metrics
from credo.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from metrics.predictions import F64, own_targets, prediction, unequal_weights

REAL: list[Likelihood] = [Gaussian(0.7), StudentT(3.0, 0.7), Poisson()]


def test_scores_of_one_gaussian_match_hand_calculation() -> None:
    mean, scale = torch.tensor([0.0, 1.0, -2.0], dtype=F64), 0.5
    y = torch.tensor([0.3, -0.4, -1.0], dtype=F64)
    p = Gaussian(scale).predictive(mean[None])
    exact = stats.norm(mean.numpy(), scale)
    assert metrics.nll(p, y) == pytest.approx(-exact.logpdf(y).mean(), rel=1e-12)
    assert metrics.rmse(p, y) == pytest.approx(math.sqrt((0.09 + 1.96 + 1.0) / 3), rel=1e-12)
    assert metrics.width(p, 0.8) == pytest.approx(2 * scale * stats.norm.ppf(0.9), rel=1e-12)
    assert metrics.coverage(p, y, 0.8) == pytest.approx(1 / 3)  # |z| = 0.6, 2.8 and 2, and 80 % is up to 1.28
    np.testing.assert_allclose(metrics.pit(p, y), exact.cdf(y), rtol=1e-12)


def test_r2_matches_scikit_learn() -> None:
    p = prediction(Gaussian(0.7), 4, 30, 3)
    y = own_targets(p, seed=1) + 5
    expected = r2_score(y, p.mean, multioutput="variance_weighted")
    assert metrics.r2(p, y) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(metrics.r2(p, torch.full_like(y, 0.1)))


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_a_row_with_several_outputs_is_one_datum(likelihood: Likelihood) -> None:
    p = prediction(likelihood, 4, 6, 2)
    y = own_targets(p, seed=0)
    flat, targets = likelihood.predictive(_outputs(4, 6, 2).flatten(1, 2)), y.flatten()
    for name in ("rmse", "crps", "coverage", "quantile_calibration_error"):
        metric = getattr(metrics, name)
        assert metric(p, y) == pytest.approx(metric(flat, targets), rel=1e-12)
    assert metrics.width(p) == pytest.approx(metrics.width(flat), rel=1e-12)
    assert metrics.nll(p, y) == pytest.approx(-float(p.log_prob(y).mean()), rel=1e-12)
    assert metrics.pit(p, y).shape == (6, 2)


def _outputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=F64)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from(REAL))
def test_calibration_curve_is_the_fraction_below_the_quantiles(seed: int, rows: int, model: Likelihood) -> None:
    p = prediction(model, 3, rows, seed=seed)
    y = own_targets(p, seed)
    levels = [0.1, 0.5, 0.8]
    curve = metrics.calibration_curve(p, y, levels)
    for q, observed in zip(levels, curve.observed.tolist(), strict=True):
        total = 0.0
        for n in range(rows):
            if isinstance(model, Poisson):
                before, upto = (float(p[n].cdf(y[n : n + 1] - k)) for k in (1, 0))
                total += min(max((q - before) / (upto - before), 0.0), 1.0)
            else:
                total += float(y[n] <= p[n].quantile(q))
        assert observed == pytest.approx(total / rows, abs=1e-9)
    error = sum(abs(o - q) for o, q in zip(curve.observed.tolist(), levels, strict=True)) / 3
    assert metrics.quantile_calibration_error(p, y, levels) == pytest.approx(error, abs=1e-12)
    assert 0 <= metrics.quantile_calibration_error(p, y) <= 0.5


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 30), st.sampled_from(REAL), st.floats(0.02, 0.97), st.floats(0.001, 0.02))
def test_coverage_and_width_rise_with_the_level(
    seed: int, rows: int, model: Likelihood, level: float, more: float
) -> None:
    p = prediction(model, 3, rows, seed=seed)
    y = own_targets(prediction(model, 2, rows, seed=seed + 1), seed)
    assert metrics.coverage(p, y, level) <= metrics.coverage(p, y, level + more)
    assert metrics.width(p, level) <= metrics.width(p, level + more)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 30), st.sampled_from(REAL))
def test_row_order_does_not_matter(seed: int, rows: int, model: Likelihood) -> None:
    p = prediction(model, 3, rows, seed=seed)
    y = own_targets(p, seed)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    for name in ("nll", "rmse", "r2", "crps", "coverage", "quantile_calibration_error"):
        metric = getattr(metrics, name)
        # A sum of N terms in another order differs by N roundings of its largest, here at most some hundred.
        assert metric(p[order], y[order]) == pytest.approx(metric(p, y), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_true_distribution_is_calibrated(likelihood: Likelihood) -> None:
    rows = 1500
    p = prediction(likelihood, 5, rows, seed=2)
    y = own_targets(p, seed=3)
    curve = metrics.calibration_curve(p, y)
    # The randomized transform has this standard error; its mean over the jumps, for counts, a smaller one.
    error = (curve.nominal * (1 - curve.nominal) / rows).sqrt()
    assert bool(((curve.observed - curve.nominal).abs() < 4 * error).all())
    assert metrics.quantile_calibration_error(p, y) < 4 * float(error.mean())
    assert stats.kstest(metrics.pit(p, y), "uniform").pvalue > 1e-4
    if not isinstance(likelihood, Poisson):
        assert abs(metrics.coverage(p, y, 0.9) - 0.9) < 4 * math.sqrt(0.09 / rows)


def test_pit_of_counts_is_inside_the_jump_and_reproducible() -> None:
    p = prediction(Poisson(), 3, 50)
    y = own_targets(p, seed=0)
    u = metrics.pit(p, y)
    assert bool(((p.cdf(y - 1) <= u) & (u <= p.cdf(y))).all())
    assert torch.equal(u, metrics.pit(p, y, seed=0))
    assert not torch.equal(u, metrics.pit(p, y, seed=1))


def test_draw_weights_are_used() -> None:
    p = unequal_weights(Gaussian(0.7), rows=10)
    y = own_targets(p, seed=0)
    w = np.array([1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6])[:, None]
    density = (w * stats.norm.pdf(y.numpy(), p.draws.numpy(), 0.7)).sum(0)
    assert metrics.nll(p, y) == pytest.approx(-np.log(density).mean(), rel=1e-12)
    assert metrics.rmse(p, y) == pytest.approx(np.sqrt(((y.numpy() - (w * p.draws.numpy()).sum(0)) ** 2).mean()))


def test_arrays_lists_and_other_dtypes_are_accepted() -> None:
    p = prediction(Poisson(), 3, 4)
    y = torch.tensor([0, 2, 1, 0])
    read_only = y.numpy().astype(np.uint16)
    read_only.flags.writeable = False
    for name in ("nll", "rmse", "crps", "quantile_calibration_error"):
        metric = getattr(metrics, name)
        for targets in (y.tolist(), y.to(torch.uint8), read_only, y.float()):
            assert metric(p, targets) == metric(p, y)
    single = Gaussian(0.5).predictive(torch.zeros(2, 3))
    assert metrics.rmse(single, np.array([1.0, 1.0, 1.0])) == 1.0


def test_predictions_with_gradients_return_floats() -> None:
    p = Gaussian(0.5).predictive(torch.zeros(2, 3, requires_grad=True))
    y = torch.ones(3)
    assert metrics.rmse(p, y) == 1.0
    assert not metrics.pit(p, y).requires_grad
    assert all(math.isfinite(score.value) for score in metrics.scores(p, y + torch.arange(3.0), resamples=3))
