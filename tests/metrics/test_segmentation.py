"""Metrics of pixel classes, against scikit-learn and by identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, jaccard_score, recall_score

from credo import metrics
from credo.errors import InputError
from credo.likelihoods import Categorical
from credo.metrics import SegmentationScores

from .predictions import prediction

VOID = 7


def pixels(classes=4, seed=0):
    """A prediction of 6 images of 5×8 pixels, and labels that agree with it more often than by chance."""
    p = prediction(Categorical(class_dim=1, ignore_index=VOID), 3, 6, classes, 5, 8, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    y = torch.where(torch.rand(6, 5, 8, generator=generator) < 0.4, p.mode, torch.randint(3, (6, 5, 8)))
    y[torch.rand(6, 5, 8, generator=generator) < 0.2] = VOID
    return p, y


def flat(p, y):
    seen = y != VOID
    return y[seen].numpy(), p.mode[seen].numpy()


def test_scores_equal_those_of_scikit_learn():
    torch.manual_seed(0)
    p, y = pixels()
    true, predicted = flat(p, y)
    scores = metrics.segmentation_scores(p, y)
    labels = np.arange(4)
    assert np.array_equal(scores.confusion, confusion_matrix(true, predicted, labels=labels))
    iou = jaccard_score(true, predicted, labels=labels, average=None)
    np.testing.assert_allclose(scores.iou, iou)
    np.testing.assert_allclose(metrics.mean_iou(p, y), iou.mean())
    np.testing.assert_allclose(
        metrics.class_accuracy(p, y)[:3], recall_score(true, predicted, labels=labels[:3], average=None)
    )
    assert scores.global_accuracy == pytest.approx(metrics.accuracy(p, y))


def test_classes_without_pixels_are_left_out_of_means():
    """Class 3 is predicted, so its IoU is 0; it has no pixels, so it has no accuracy."""
    confusion = torch.tensor([[6, 2, 0, 0], [0, 3, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    scores = SegmentationScores(confusion)
    assert scores.iou.tolist()[:2] == pytest.approx([6 / 8, 3 / 6])
    assert scores.iou[2].isnan()
    assert scores.iou[3] == 0
    assert scores.class_accuracy.tolist()[:2] == pytest.approx([6 / 8, 3 / 4])
    assert scores.class_accuracy[2:].isnan().all()
    assert scores.mean_iou == pytest.approx((6 / 8 + 3 / 6 + 0) / 3)
    assert scores.mean_class_accuracy == pytest.approx((6 / 8 + 3 / 4) / 2)
    assert scores.global_accuracy == pytest.approx(9 / 12)


def test_scores_of_batches_add_up():
    torch.manual_seed(0)
    p, y = pixels()
    whole = metrics.segmentation_scores(p, y)
    parts = metrics.segmentation_scores(p[:2], y[:2]) + metrics.segmentation_scores(p[2:], y[2:])
    assert torch.equal(parts.confusion, whole.confusion)
    assert torch.equal(
        sum(metrics.segmentation_scores(p[i : i + 1], y[i : i + 1]) for i in range(len(y))).confusion, whole.confusion
    )
    with pytest.raises(TypeError):
        whole + 1
    with pytest.raises(InputError, match="of 4 and of 2 classes cannot be added"):
        whole + SegmentationScores(torch.eye(2))


def test_accuracy_by_kept_is_one_minus_the_risk():
    torch.manual_seed(0)
    p, y = pixels()
    seen = y != VOID
    correct, uncertainty = (p.mode == y)[seen], p.entropy[seen]
    curve = metrics.risk_coverage((~correct).double(), uncertainty)
    n = int(seen.sum())
    kept = [1.0, 0.9, 1 / n, 0.25]
    found = metrics.accuracy_by_kept(correct, uncertainty, kept)
    count = [n, round(0.9 * n), 1, round(0.25 * n)]
    torch.testing.assert_close(found, 1 - curve.risk[torch.tensor(count) - 1])
    assert found[0].item() == pytest.approx(metrics.accuracy(p, y))


def test_accuracy_by_kept_sorts_by_uncertainty():
    """The two wrong pixels are the most uncertain ones: without them all are correct."""
    correct, uncertainty = np.array([1, 0, 1, 1, 0]), np.array([0.1, 0.9, 0.2, 0.3, 0.8])
    assert metrics.accuracy_by_kept(correct, uncertainty, [1.0, 0.8, 0.6]).tolist() == pytest.approx([0.6, 0.75, 1.0])
    assert metrics.accuracy_by_kept(correct, np.zeros(5), [0.2]).item() == pytest.approx(0.6)  # ties: the mean


def test_accuracy_by_kept_of_maps_raises():
    with pytest.raises(InputError, match=r"correct must hold one number per row, .* flatten\(\) it"):
        metrics.accuracy_by_kept(np.ones((2, 4, 4)), np.ones((2, 4, 4)))


@pytest.mark.parametrize("kept", [[0.0], [1.1], [0.5, -1.0], [float("nan")]])
def test_fractions_outside_0_and_1_raise(kept):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        metrics.accuracy_by_kept([1, 0], [0.1, 0.2], kept)


def test_one_fraction_raises():
    with pytest.raises(InputError, match=r"sequence of fractions, such as \[1.0, 0.9\], got 0.5"):
        metrics.accuracy_by_kept([1, 0], [0.1, 0.2], 0.5)


def test_void_everywhere_raises():
    p, y = pixels()
    with pytest.raises(InputError, match="every label is the ignore_index"):
        metrics.mean_iou(p, torch.full_like(y, VOID))
