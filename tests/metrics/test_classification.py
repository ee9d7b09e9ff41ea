"""Scores of class predictions against their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor

from credo import metrics
from credo.likelihoods import Bernoulli, Categorical
from credo.predictive import Predictive
from metrics.predictions import F64, own_targets, prediction, unequal_weights


def of_probabilities(rows: list[list[float]]) -> Predictive:
    return Categorical().predictive(torch.tensor([rows], dtype=F64).log())


def ece_by_hand(p: Tensor, y: Tensor, edges: list[float]) -> float:
    """Bins (edge, next edge], by two loops."""
    total = 0.0
    for low, high in itertools.pairwise(edges):
        gap = 0.0
        for row, label in zip(p.tolist(), y.tolist(), strict=True):
            if low < max(row) <= high:
                gap += (row.index(max(row)) == label) - max(row)
        total += abs(gap)
    return total / len(p)


def test_accuracy_and_brier_by_hand() -> None:
    p = of_probabilities([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]])
    y = torch.tensor([0, 2, 2])
    assert metrics.accuracy(p, y) == pytest.approx(2 / 3)
    assert metrics.brier(p, y) == pytest.approx((0.38 + 0.06 + 1.04) / 3)
    assert metrics.nll(p, y) == pytest.approx(-(math.log(0.5) + math.log(0.8) + math.log(0.2)) / 3)


def test_bernoulli_equals_two_class_categorical() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=F64)
    coin, pair = Bernoulli().predictive(logits), Categorical().predictive(torch.stack([0 * logits, logits], -1))
    y = own_targets(coin, seed=1)
    for metric in (metrics.nll, metrics.accuracy, metrics.brier, metrics.ece):
        assert metric(coin, y) == pytest.approx(metric(pair, y), rel=1e-9)
    for a, b in zip(metrics.scores(coin, y, resamples=20), metrics.scores(pair, y, resamples=20), strict=True):
        assert (a.value, a.lower, a.upper) == pytest.approx((b.value, b.lower, b.upper), rel=1e-9)
    probability = coin.mean.numpy()
    assert metrics.brier(coin, y) == pytest.approx(2 * brier_score_loss(y, probability))
    assert metrics.nll(coin, y) == pytest.approx(log_loss(y, probability))
    assert metrics.accuracy(coin, y) == accuracy_score(y, coin.mode)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 20), st.sampled_from([0.3, 3.0, 60.0]))
def test_ece_is_its_definition(seed: int, rows: int, bins: int, spread: float) -> None:
    p = prediction(Categorical(), 2, rows, 3, seed=seed, spread=spread)  # at 60, some confidences are exactly 1
    y = torch.randint(3, (rows,), generator=torch.Generator().manual_seed(seed))
    error = metrics.ece(p, y, bins)
    assert error == pytest.approx(ece_by_hand(p.mean, y, [*(k / bins for k in range(bins)), math.inf]), abs=1e-12)
    assert 0 <= error <= 1
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    for binning in ("width", "mass"):
        assert metrics.ece(p[order], y[order], bins, binning) == pytest.approx(metrics.ece(p, y, bins, binning))


def test_equal_mass_bins_have_equal_counts() -> None:
    p = prediction(Categorical(), 3, 60, 4)
    y = own_targets(p, seed=0)
    binned = metrics.reliability(p, y, bins=12, binning="mass")
    assert binned.count.tolist() == [5] * 12
    inner = p.mean.amax(1).sort().values[4:-1:5].tolist()
    assert metrics.ece(p, y, 12, "mass") == pytest.approx(ece_by_hand(p.mean, y, [0.0, *inner, math.inf]))
    # fewer rows than bins: every row has a bin of its own
    assert metrics.reliability(p[:4], y[:4], bins=15, binning="mass").count.sort().values.tolist() == [0] * 11 + [1] * 4


def test_equal_confidences_are_in_one_bin_in_any_order() -> None:
    p = of_probabilities([[0.6, 0.4]] * 10)
    y = torch.tensor([0] * 4 + [1] * 6)
    assert metrics.reliability(p, y, bins=5, binning="mass").count.tolist() == [10, 0, 0, 0, 0]
    assert metrics.ece(p, y, 5, "mass") == pytest.approx(0.2)
    assert metrics.ece(p, y.flip(0), 5, "mass") == pytest.approx(0.2)


def test_reliability_parts_sum_to_ece() -> None:
    p = prediction(Categorical(), 3, 200, 4)
    y = own_targets(p, seed=0)
    for binning in ("width", "mass"):
        binned = metrics.reliability(p, y, 10, binning)
        held = binned.count > 0
        assert int(binned.count.sum()) == 200
        assert bool(binned.confidence[~held].isnan().all())
        assert bool(binned.accuracy[~held].isnan().all())
        gaps = (binned.count * (binned.accuracy - binned.confidence).abs())[held].sum() / 200
        assert metrics.ece(p, y, 10, binning) == pytest.approx(float(gaps))
    inside = binned.confidence[held]
    assert bool((inside.diff() > 0).all())


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_true_distribution_is_calibrated(binning: str) -> None:
    p = prediction(Categorical(), 3, 2000, 4, spread=2.0)
    y = own_targets(p, seed=1)
    binned = metrics.reliability(p, y, 15, binning)
    held = binned.count > 0
    confidence, count = binned.confidence[held], binned.count[held]
    # A bin errs by √V, V at most n c(1 − c) as the c of its rows spread; E|error| ≤ √V, and its deviation too.
    variance = count * confidence * (1 - confidence)
    bound = float(variance.sqrt().sum() + 4 * variance.sum().sqrt()) / 2000
    assert metrics.ece(p, y, 15, binning) < bound
    rate = float(p.mean.amax(1).mean())
    assert abs(metrics.accuracy(p, y) - rate) < 4 * math.sqrt(rate * (1 - rate) / 2000)


def test_confidence_one_is_in_the_last_bin() -> None:
    p = of_probabilities([[1.0, 0.0], [0.97, 0.03]])
    y = torch.tensor([1, 0])
    assert metrics.ece(p, y) == pytest.approx(abs((1.0 + 0.97) / 2 - 0.5))
    assert metrics.nll(p, y) == math.inf


def test_pixels_are_counted_separately_and_ignored_ones_left_out() -> None:
    outputs = torch.randn(3, 8, 4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    p = Categorical(class_dim=1, ignore_index=255).predictive(outputs)
    y = torch.randint(4, (8, 5, 6), generator=torch.Generator().manual_seed(1))
    y[:, :2] = 255
    y[0] = 255
    kept = y != 255
    flat = Categorical().predictive(outputs.movedim(2, -1)[:, kept])
    for name in ("accuracy", "brier", "ece", "misclassification"):
        metric = getattr(metrics, name)
        assert metric(p, y) == metric(flat, y[kept])
    plain = {score.name: score.value for score in metrics.scores(flat, y[kept], resamples=1)}
    for score in metrics.scores(p, y, resamples=50):
        if score.name != "nll":  # of whole rows
            assert score.value == pytest.approx(plain[score.name], rel=1e-12)
        assert score.lower <= score.value <= score.upper


def test_draw_weights_are_used() -> None:
    p = unequal_weights(Bernoulli(), rows=12)
    y = own_targets(p, seed=0)
    w = torch.tensor([1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6], dtype=F64)
    probability = w @ p.draws
    assert metrics.brier(p, y) == pytest.approx(2 * float((probability - y).square().mean()))
    assert metrics.accuracy(p, y) == pytest.approx(float(((probability > 0.5) == y.bool()).double().mean()))
