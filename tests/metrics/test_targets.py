"""Wrong arguments are answered by one sentence that says what to do."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from credo import metrics
from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Poisson

NUMBERS = Gaussian(0.5).predictive(torch.zeros(2, 3))
COLUMN = Gaussian(0.5).predictive(torch.zeros(2, 3, 1))
COUNTS = Poisson().predictive(torch.zeros(2, 3))
CLASSES = Categorical().predictive(torch.zeros(2, 3, 4))
COINS = Bernoulli().predictive(torch.zeros(2, 3))
Y, LABELS = torch.zeros(3), torch.zeros(3, dtype=torch.long)

WITH_NUMBERS: list[Callable[..., object]] = [
    metrics.nll,
    metrics.rmse,
    metrics.r2,
    metrics.crps,
    metrics.coverage,
    metrics.pit,
    metrics.calibration_curve,
    metrics.quantile_calibration_error,
    metrics.scores,
]
WITH_CLASSES: list[Callable[..., object]] = [
    metrics.nll,
    metrics.accuracy,
    metrics.brier,
    metrics.ece,
    metrics.reliability,
    metrics.misclassification,
    metrics.scores,
]


@pytest.mark.parametrize("metric", WITH_NUMBERS)
def test_bad_real_targets_raise(metric: Callable[..., object]) -> None:
    with pytest.raises(InputError, match=r"y has shape \[3, 1\].*\[3\].*squeeze"):
        metric(NUMBERS, Y[:, None])
    with pytest.raises(InputError, match=r"y has shape \[3\].*\[3, 1\].*y\[:, None\]"):
        metric(COLUMN, Y.numpy())
    with pytest.raises(InputError, match="same number of rows, here 3 and 2"):
        metric(NUMBERS, Y[:2])
    with pytest.raises(InputError, match=r"1 value.* NaN"):
        metric(NUMBERS, np.array([0.0, math.nan, 1.0]))
    with pytest.raises(InputError, match="counts must be at least 0"):
        metric(COUNTS, Y - 1)
    with pytest.raises(InputError, match="must hold numbers"):
        metric(NUMBERS, ["a", "b", "c"])
    with pytest.raises(InputError, match="undefined for an empty prediction: predict at least one row"):
        metric(NUMBERS[:0], Y[:0])
    with pytest.raises(InputError, match=r"needs a Predictive.*got Tensor"):
        metric(Y, Y)


@pytest.mark.parametrize("metric", WITH_CLASSES)
def test_bad_class_targets_raise(metric: Callable[..., object]) -> None:
    with pytest.raises(InputError, match=r"call y.long\(\)"):
        metric(CLASSES, Y)
    with pytest.raises(InputError, match="the label 4"):
        metric(CLASSES, LABELS + 4)
    with pytest.raises(InputError, match="same number of rows"):
        metric(CLASSES, LABELS[:2])
    with pytest.raises(InputError, match="NaN"):
        metric(COINS, Y / 0)
    with pytest.raises(InputError, match="undefined for an empty prediction"):
        metric(CLASSES[:0], LABELS[:0])


def test_wrong_kind_of_prediction_raises() -> None:
    for metric in WITH_NUMBERS[1:-1]:
        with pytest.raises(InputError, match="is for real or count-valued targets"):
            metric(CLASSES, LABELS)
    with pytest.raises(InputError, match="width is for real or count-valued targets"):
        metrics.width(COINS)
    for metric in WITH_CLASSES[1:-1]:
        with pytest.raises(InputError, match="is for class-valued targets"):
            metric(NUMBERS, Y)


def test_bad_options_raise() -> None:
    for level in (0, 1, 95):
        for metric in (metrics.coverage, metrics.scores):
            with pytest.raises(InputError, match="level must be a number between 0 and 1"):
                metric(NUMBERS, Y, level)
        with pytest.raises(InputError, match="level must be a number between 0 and 1"):
            metrics.width(NUMBERS, level)
    for levels in ([], [0.5, 1.0], 0.5, [math.nan]):
        with pytest.raises(InputError, match="levels must be a list of numbers between 0 and 1"):
            metrics.quantile_calibration_error(NUMBERS, Y, levels)
    for bins in (0, 1.5, True):
        with pytest.raises(InputError, match="bins must be an integer"):
            metrics.ece(CLASSES, LABELS, bins)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown binning 'masss': did you mean 'mass'"):
        metrics.reliability(CLASSES, LABELS, binning="masss")
    with pytest.raises(InputError, match="unknown score 'entropie': did you mean 'entropy'"):
        metrics.misclassification(CLASSES, LABELS, "entropie")
    for resamples in (0, 2.5):
        with pytest.raises(InputError, match="resamples must be an integer"):
            metrics.scores(NUMBERS, Y, resamples=resamples)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed must be"):
        metrics.scores(NUMBERS, Y, seed=-1)


def test_empty_and_missing_scores_raise() -> None:
    for detector in (metrics.auroc, metrics.aupr, metrics.fpr95):
        with pytest.raises(InputError, match="outside is empty"):
            detector([0.1, 0.2], [])
        with pytest.raises(InputError, match="inside is empty"):
            detector(torch.zeros(0), [0.1])
        with pytest.raises(InputError, match=r"inside holds 1 value\(s\) that are NaN"):
            detector([math.nan, 1.0], [0.1])
        with pytest.raises(InputError, match=r"one number per row, \[N\], got shape \[2, 1\]"):
            detector([0.1], torch.zeros(2, 1))
    for area in (metrics.aurc, metrics.risk_coverage):
        with pytest.raises(InputError, match="got 2 and 3"):
            area([0.0, 1.0], [0.1, 0.2, 0.3])
        with pytest.raises(InputError, match="loss is empty"):
            area([], [])


def test_only_ignored_labels_raise() -> None:
    p = Categorical(ignore_index=-100).predictive(torch.zeros(2, 3, 4))
    with pytest.raises(InputError, match="every label is the ignore_index"):
        metrics.accuracy(p, LABELS - 100)


def test_import_is_light() -> None:
    code = (
        "import sys, credo.metrics\n"
        "assert not {'matplotlib', 'pandas', 'sklearn', 'scipy.stats', 'torchmetrics'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
