"""Predictions of classes: are they right, and as often as they say?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError, unknown_name
from credo.metrics._answers import Answers
from credo.metrics._statistics import Statistic, binned_gap, mean
from credo.metrics._targets import Values
from credo.predictive import Predictive

BINNINGS = ("width", "mass")


@dataclass(frozen=True, eq=False)
class Reliability:
    """Mean confidence, share of right answers and number of answers in every bin, ``[bins]`` each; NaN where empty."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def accuracy(p: Predictive, y: Values) -> float:
    """The share of the targets whose most probable class, ``p.mode``, is right; higher is better."""
    answers = Answers.of(p, y, "accuracy")
    return answers.by_row(mean(answers.correct)).value


def brier(p: Predictive, y: Values) -> float:
    """The Brier score Σ_c (π_c − 1{y = c})², summed over all classes, averaged over targets; lower is better.

    A strictly proper score from 0 to 2 (Brier 1950). A Bernoulli prediction counts as two classes, so its score is
    twice the (π_1 − y)² that goes by the same name.

    References:
        G. W. Brier. Verification of forecasts expressed in terms of probability. Monthly Weather Review 1950.
    """
    answers = Answers.of(p, y, "brier")
    return answers.by_row(mean(answers.brier)).value


def ece(p: Predictive, y: Values, bins: int = 15, binning: str = "width") -> float:
    """The expected calibration error of the most probable class, from 0 to 1; lower is better.

        ECE = Σ_k (n_k / N) |accuracy_k − confidence_k|

    over bins of the confidence max_c π_c (Naeini et al. 2015, Guo et al. 2017). For N targets it is not 0 but of order
    √(bins/N) where the prediction is perfect, so compare it at equal N and bins.

    Args:
        p: the prediction of class-valued targets.
        y: the targets.
        bins: their number.
        binning: ``"width"``: bins (k/bins, (k+1)/bins], the usual choice; ``"mass"``: bins of equally many targets,
            equal confidences together (Nguyen & O'Connor 2015).

    References:
        M. P. Naeini, G. F. Cooper, M. Hauskrecht. Obtaining well calibrated probabilities using Bayesian binning. AAAI
        2015.
        C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
        K. Nguyen, B. O'Connor. Posterior calibration and exploratory analysis for natural language processing models.
        EMNLP 2015.
    """
    answers = Answers.of(p, y, "ece")
    return answers.by_row(calibration_gap(answers, bins, binning)).value


def reliability(p: Predictive, y: Values, bins: int = 15, binning: str = "width") -> Reliability:
    """Confidence and accuracy bin by bin, the parts of :func:`ece`, whose arguments it takes."""
    answers = Answers.of(p, y, "reliability")
    index = _bin_index(answers.confidence, bins, binning)
    count = torch.bincount(index, minlength=bins)
    confidence, correct = (torch.bincount(index, t, bins) / count for t in (answers.confidence, answers.correct))
    return Reliability(confidence, correct, count)


def calibration_gap(answers: Answers, bins: int, binning: str, from_observed: bool = False) -> Statistic:
    """The expected calibration error as a statistic of the answers; or how far its terms are from the observed ones."""
    # Not torchmetrics' calibration error: its bins are open above, so a confidence of exactly 1, which a float32
    # softmax gives often, has a bin of its own and splits the gap of the last one. Nor does it have equal mass.
    index = _bin_index(answers.confidence, bins, binning)
    return binned_gap(answers.correct - answers.confidence, index, bins, from_observed)


def _bin_index(confidence: Tensor, bins: int, binning: str) -> Tensor:
    """The bin of every confidence, closed above, ``[N]``."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InputError(f"bins must be an integer of at least 1, got {bins!r}.")
    if binning == "width":
        edges = torch.arange(1, bins, dtype=torch.float64) / bins
    elif binning == "mass":
        last = (torch.arange(1, bins) * len(confidence) + bins - 1) // bins - 1  # of each bin but the highest
        edges = confidence.sort().values[last]
    else:
        raise unknown_name("binning", binning, BINNINGS)
    return torch.bucketize(confidence, edges)
