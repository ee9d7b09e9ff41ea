"""Detectors and selective prediction against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from credo import metrics
from credo.errors import InputError
from credo.likelihoods import Categorical
from metrics.predictions import F64, own_targets, prediction

# few distinct values, so that ties abound
SCORES = st.lists(st.sampled_from([-2.0, 0.0, 0.5, 0.9, 1.0, 3.0, 250.0, 300.0]), min_size=1, max_size=25)
LOSSES = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.1, 0.2, 0.3])), min_size=1, max_size=7)


@settings(max_examples=100)
@given(SCORES, SCORES)
def test_detection_scores_match_their_definitions(inside: list[float], outside: list[float]) -> None:
    wins = sum((o > i) + 0.5 * (o == i) for i in inside for o in outside)
    assert metrics.auroc(inside, outside) == pytest.approx(wins / (len(inside) * len(outside)), rel=1e-12)

    scores, labels = np.array(inside + outside), np.array([0] * len(inside) + [1] * len(outside))
    assert metrics.auroc(inside, outside) == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)
    area, recall = 0.0, 0.0
    for threshold in sorted(set(inside + outside), reverse=True):
        hits = sum(o >= threshold for o in outside)
        flagged = hits + sum(i >= threshold for i in inside)
        area += (hits / len(outside) - recall) * hits / flagged
        recall = hits / len(outside)
    assert metrics.aupr(inside, outside) == pytest.approx(area, rel=1e-12)
    assert metrics.aupr(inside, outside) == pytest.approx(average_precision_score(labels, scores), rel=1e-12)

    catching = [t for t in outside if 100 * sum(o >= t for o in outside) >= 95 * len(outside)]
    flagged_inside = sum(i >= max(catching) for i in inside)
    assert metrics.fpr95(inside, outside) == pytest.approx(flagged_inside / len(inside), rel=1e-12)


def test_detection_scores_depend_on_the_direction() -> None:
    inside, outside = torch.linspace(0, 1, 50), torch.linspace(2, 3, 20)
    assert (metrics.auroc(inside, outside), metrics.fpr95(inside, outside)) == (1, 0)
    assert metrics.aupr(inside, outside) == pytest.approx(1)
    assert (metrics.auroc(outside, inside), metrics.fpr95(outside, inside)) == (0, 1)


def test_large_scores_keep_their_order() -> None:
    # torchmetrics would take these for logits: in float32 their sigmoids are all 1, and the area ½
    assert metrics.auroc([100.0, 150.0], [200.0, 300.0]) == 1
    assert metrics.aupr([100.0, 150.0], [200.0, math.inf]) == pytest.approx(1)
    assert metrics.auroc([-math.inf, 1.0], [2.0, math.inf]) == 1


def test_misclassification_detects_wrong_rows() -> None:
    p = prediction(Categorical(), 5, 300, 4)
    y = own_targets(p, seed=0)
    wrong = p.mode != y
    uncertainties = {
        "entropy": p.entropy,
        "mutual_information": p.mutual_information,
        "aleatoric": p.aleatoric,
        "confidence": 1 - p.mean.amax(1),
    }
    for name, uncertainty in uncertainties.items():
        found = metrics.misclassification(p, y, name)
        parts = uncertainty[~wrong], uncertainty[wrong]
        assert found == metrics.Detection(metrics.auroc(*parts), metrics.aupr(*parts), metrics.fpr95(*parts))
    assert metrics.misclassification(p, y) == metrics.misclassification(p, y, "entropy")
    assert metrics.misclassification(p, y).auroc > 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_misclassification_is_nan_if_all_predictions_are_alike(label: int) -> None:
    p = Categorical().predictive(torch.tensor([[[2.0, 1.0], [3.0, 1.0], [5.0, 0.0]]], dtype=F64))
    y = torch.full((3,), label)
    found = metrics.misclassification(p, y)
    assert all(math.isnan(value) for value in (found.auroc, found.aupr, found.fpr95))
    scores = {score.name: score for score in metrics.scores(p, y, resamples=10)}
    undefined = scores["misclassification_auroc"]
    assert all(math.isnan(value) for value in (undefined.value, undefined.lower, undefined.upper))
    assert (scores["accuracy"].value, scores["aurc"].value) == (1 - label, label)


@settings(max_examples=60)
@given(LOSSES)
def test_risk_averages_over_the_order_of_ties(rows: list[tuple[float, float]]) -> None:
    loss, uncertainty = (list(column) for column in zip(*rows, strict=True))
    curves = [
        np.cumsum([loss[n] for n in order]) / np.arange(1, len(rows) + 1)
        for order in itertools.permutations(range(len(rows)))
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order))
    ]
    expected = np.mean(curves, axis=0)
    curve = metrics.risk_coverage(loss, uncertainty)
    np.testing.assert_allclose(curve.risk, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(rows) + 1) / len(rows))
    assert metrics.aurc(loss, uncertainty) == pytest.approx(expected.mean(), rel=1e-12, abs=1e-15)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 9), st.sampled_from([0.0, 0.5, 2.0])), min_size=1, max_size=200), st.randoms())
def test_row_order_does_not_matter(rows: list[tuple[float, float]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    loss, uncertainty = (list(column) for column in zip(*rows, strict=True))
    other_loss, other_uncertainty = (list(column) for column in zip(*shuffled, strict=True))
    area = metrics.aurc(loss, uncertainty)
    assert metrics.aurc(other_loss, other_uncertainty) == pytest.approx(area, rel=1e-9, abs=1e-12)
    risk = metrics.risk_coverage(loss, uncertainty).risk
    torch.testing.assert_close(metrics.risk_coverage(other_loss, other_uncertainty).risk, risk, rtol=1e-9, atol=1e-12)
    assert area == pytest.approx(float(risk.mean()), rel=1e-9, abs=1e-12)


def test_sorting_by_loss_is_best_and_a_constant_gives_the_mean() -> None:
    loss = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=F64)
    areas = [metrics.aurc(loss, by) for by in (loss, torch.zeros(200), -loss)]
    assert areas == sorted(areas)
    assert areas[1] == pytest.approx(float(loss.mean()), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_sparsification_error_of_evenly_spaced_losses(n: int, unit: float) -> None:
    """For losses 1 … N the risk of the k lowest is (k + 1)/2, of the k highest N − (k − 1)/2, and of all (N + 1)/2.

    So the areas are (N + 3)/4 and (3N + 1)/4, and AUSE is 0 for the best order, (N − 1)/(2(N + 1)) for a constant
    uncertainty and (N − 1)/(N + 1) for the worst order, in any unit.
    """
    loss = unit * torch.arange(1.0, n + 1, dtype=F64)
    assert metrics.ause(loss, 5.0 * loss) == pytest.approx(0.0, abs=1e-12)
    assert metrics.ause(loss, torch.ones(n)) == pytest.approx((n - 1) / (2 * (n + 1)), rel=1e-9, abs=1e-12)
    assert metrics.ause(loss, -loss) == pytest.approx((n - 1) / (n + 1), rel=1e-9, abs=1e-12)


def test_sparsification_error_is_the_area_between_the_two_curves() -> None:
    generator = torch.Generator().manual_seed(0)
    loss, uncertainty = torch.rand(50, generator=generator), torch.rand(50, generator=generator)
    curve, best = metrics.risk_coverage(loss, uncertainty).risk, metrics.risk_coverage(loss, loss).risk
    assert metrics.ause(loss, uncertainty) == pytest.approx(float((curve - best).mean() / curve[-1]), rel=1e-9)


def test_sparsification_error_without_losses_and_with_invalid_ones() -> None:
    assert math.isnan(metrics.ause([0.0, 0.0], [1.0, 2.0]))
    for loss in ([1.0, -1.0], [1.0, math.inf]):
        with pytest.raises(InputError, match="finite numbers of at least 0"):
            metrics.ause(loss, [1.0, 2.0])
    with pytest.raises(InputError, match="one number per row, got 2 and 3"):
        metrics.ause([1.0, 2.0], [1.0, 2.0, 3.0])


def test_a_prediction_in_place_of_a_loss_raises() -> None:
    p = Categorical().predictive(torch.zeros(1, 3, 2))
    with pytest.raises(InputError, match="loss must hold one number per row, got a prediction"):
        metrics.aurc(p, torch.zeros(3))  # type: ignore[arg-type]
