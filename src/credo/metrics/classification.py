"""Accuracy and calibration of class probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from credo._arguments import check_integer, check_option
from credo.errors import InputError
from credo.metrics._statistics import Statistic, binned_gap, mean
from credo.metrics._targets import Values, check_class_targets
from credo.predictive import Predictive
from credo.predictive.classes import CategoricalComponents

BINNINGS = ("width", "mass")


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy per bin, the parts of :func:`ece`.

    Attributes:
        confidence: the mean confidence in each bin, ``[bins]``; NaN if the bin is empty.
        accuracy: the fraction of correct predictions in each bin, ``[bins]``; NaN if the bin is empty.
        count: the number of targets in each bin, ``[bins]``.

    Example:
        >>> r = credo.metrics.reliability(p, y, bins=10)
        >>> gap = r.accuracy - r.confidence
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def accuracy(p: Predictive, y: Values) -> float:
    """Return the fraction of targets whose most probable class, ``p.mode``, is correct; higher is better.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.

    Returns:
        The accuracy, from 0 to 1.

    Raises:
        InputError: if ``p`` is not a prediction of classes or ``y`` does not match it.
    """
    predictions = LabeledPredictions.from_predictive(p, y, "accuracy")
    return predictions.by_row(mean(predictions.correct)).value


def brier(p: Predictive, y: Values) -> float:
    """Return the Brier score Σ_c (π_c − 1{y = c})², summed over all classes, averaged over targets; lower is better.

    A strictly proper score from 0 to 2 (Brier 1950). A Bernoulli prediction counts as two classes, so its score is
    twice (π_1 − y)², which is also called the Brier score.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.

    Returns:
        The score.

    Raises:
        InputError: if ``p`` is not a prediction of classes or ``y`` does not match it.

    References:
        G. W. Brier. Verification of forecasts expressed in terms of probability. Monthly Weather Review 1950.
    """
    predictions = LabeledPredictions.from_predictive(p, y, "brier")
    return predictions.by_row(mean(predictions.brier)).value


def ece(p: Predictive, y: Values, bins: int = 15, binning: str = "width") -> float:
    """Return the expected calibration error of the most probable class, from 0 to 1; lower is better.

        ECE = Σ_k (n_k / N) |accuracy_k − confidence_k|

    over bins of the confidence max_c π_c (Naeini et al. 2015, Guo et al. 2017). For N targets it is not 0 but of order
    √(bins/N) for a perfectly calibrated prediction, so compare it at equal N and bins.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.
        bins: the number of bins.
        binning: ``"width"``: bins (k/bins, (k+1)/bins], the usual choice; ``"mass"``: bins of equally many targets,
            equal confidences together (Nguyen & O'Connor 2015).

    Returns:
        The error.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or an option is not valid.

    References:
        M. P. Naeini, G. F. Cooper, M. Hauskrecht. Obtaining well calibrated probabilities using Bayesian binning. AAAI
        2015.
        C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
        K. Nguyen, B. O'Connor. Posterior calibration and exploratory analysis for natural language processing models.
        EMNLP 2015.
    """
    predictions = LabeledPredictions.from_predictive(p, y, "ece")
    return predictions.by_row(calibration_gap(predictions, bins, binning)).value


def reliability(p: Predictive, y: Values, bins: int = 15, binning: str = "width") -> Reliability:
    """Return confidence and accuracy per bin, the parts of :func:`ece`.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.
        bins: the number of bins.
        binning: ``"width"`` or ``"mass"``, see :func:`ece`.

    Returns:
        Mean confidence, accuracy and number of targets per bin.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or an option is not valid.
    """
    predictions = LabeledPredictions.from_predictive(p, y, "reliability")
    index = _bin_index(predictions.confidence, bins, binning)
    count = torch.bincount(index, minlength=bins)
    totals = (torch.bincount(index, t, bins) for t in (predictions.confidence, predictions.correct))
    confidence, correct = (total / count for total in totals)
    return Reliability(confidence, correct, count)


@dataclass(frozen=True, eq=False)
class LabeledPredictions:
    """Class predictions and labels of the N targets that are not ignored, flat over rows and their pixels or tokens.

    Attributes:
        probability: π, ``[N, C]``; two classes for a Bernoulli prediction.
        predicted: the most probable class, ``[N]``.
        label: the true class, ``[N]``.
        kept: which targets are not ignored, ``[B, ...]``.
    """

    probability: Tensor
    predicted: Tensor
    label: Tensor
    kept: Tensor

    @classmethod
    @torch.no_grad()
    def from_predictive(cls, p: Predictive, y: Values, metric: str) -> LabeledPredictions:
        """Match a prediction with its labels, on the CPU.

        Args:
            p: the prediction of class-valued targets.
            y: the labels; those equal to the likelihood's ``ignore_index`` are left out.
            metric: the name of the metric, for errors.

        Returns:
            The labeled predictions.

        Raises:
            InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or all labels are ignored.
        """
        label = check_class_targets(p, y, metric).cpu().long()
        mean, kept = p.mean.double().cpu(), torch.ones_like(label, dtype=torch.bool)
        if isinstance(p.components, CategoricalComponents):
            probability = mean.movedim(p.components.class_dim, -1)
            if p.components.ignore_index is not None:
                kept = label != p.components.ignore_index
        else:
            probability = torch.stack([1 - mean, mean], -1)
        if not bool(kept.any()):
            raise InputError(f"{metric} is undefined without targets: every label is the ignore_index.")
        return cls(probability[kept], p.mode.cpu()[kept], label[kept], kept)

    @property
    def confidence(self) -> Tensor:
        """max_c π_c, ``[N]``."""
        return self.probability.amax(1)

    @property
    def correct(self) -> Tensor:
        """1 if the most probable class is correct, otherwise 0, ``[N]`` float64."""
        return (self.predicted == self.label).double()

    @property
    def brier(self) -> Tensor:
        """Σ_c (π_c − 1{y = c})², ``[N]``."""
        return (self.probability - F.one_hot(self.label, self.probability.shape[1])).square().sum(1)

    @property
    def n_rows(self) -> int:
        """The number of rows with a target that is not ignored."""
        return int(self.kept.reshape(len(self.kept), -1).any(1).sum())

    def flat(self, values: Tensor) -> Tensor:
        """Return a quantity of every target, ``[B, ...]``, in the order of the N predictions, ``[N]``."""
        return values.detach().double().cpu()[self.kept]

    def count_rows(self, selected: Tensor) -> int:
        """Return the number of rows with a selected prediction; ``selected`` is ``[N]``."""
        return len(self.kept.nonzero()[selected.bool(), 0].unique())

    def by_row(self, statistic: Statistic) -> Statistic:
        """Return a statistic of the N predictions as a statistic of their rows."""
        return statistic.on_rows(self.kept.nonzero()[:, 0], len(self.kept))


def calibration_gap(predictions: LabeledPredictions, bins: int, binning: str, centered: bool = False) -> Statistic:
    """Return the expected calibration error as a statistic of the N predictions.

    Args:
        predictions: the labeled predictions.
        bins: the number of bins.
        binning: ``"width"`` or ``"mass"``, see :func:`ece`.
        centered: whether to subtract the observed value of each bin, for the bootstrap.

    Returns:
        The statistic.
    """
    # Not torchmetrics' calibration error: its bins are open above, so a confidence of exactly 1, which a float32
    # softmax outputs often, has a bin of its own and splits the gap of the last one. Nor does it have equal mass.
    index = _bin_index(predictions.confidence, bins, binning)
    return binned_gap(predictions.correct - predictions.confidence, index, bins, centered)


def _bin_index(confidence: Tensor, bins: int, binning: str) -> Tensor:
    """The bin of every confidence, closed above, ``[N]``."""
    bins = check_integer(bins, "bins", minimum=1)
    if check_option(binning, "binning", BINNINGS) == "width":
        edges = torch.arange(1, bins, dtype=torch.float64) / bins
    else:
        last = (torch.arange(1, bins) * len(confidence) + bins - 1) // bins - 1  # of each bin but the highest
        edges = confidence.sort().values[last]
    return torch.bucketize(confidence, edges)
