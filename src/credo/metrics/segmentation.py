"""Metrics for images with a class for every pixel: intersection over union, accuracy per class and of kept pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError
from credo.metrics._targets import Values, check_vector
from credo.metrics.classification import LabeledPredictions
from credo.metrics.ranking import risk_coverage
from credo.predictive import Predictive


@dataclass(frozen=True, eq=False)
class SegmentationScores:
    """How often each class was predicted for each true class, and the scores that follow from it.

    Those of several sets of images can be added, ``sum(scores)``; the result has the scores of all sets together, which
    no average of scores has.

    Attributes:
        confusion: number of pixels by true class (rows) and predicted class (columns), ``[C, C]`` int64.

    Example:
        >>> scores = credo.metrics.segmentation_scores(p, y)
        >>> scores.mean_iou, scores.global_accuracy
    """

    confusion: Tensor

    def __add__(self, other: object) -> SegmentationScores:
        if isinstance(other, int) and other == 0:  # where sum() begins
            return self
        if not isinstance(other, SegmentationScores):
            return NotImplemented
        if other.confusion.shape != self.confusion.shape:
            raise InputError(
                f"scores of {len(self.confusion)} and of {len(other.confusion)} classes cannot be added: both must "
                "have the same classes"
            )
        return SegmentationScores(self.confusion + other.confusion)

    __radd__ = __add__

    @property
    def iou(self) -> Tensor:
        """Intersection over union of each class, ``[C]`` float64; NaN for a class neither present nor predicted.

        IoU_c = TP_c / (TP_c + FP_c + FN_c), the Jaccard index of true and predicted pixels.
        """
        hits, true, predicted = self._counts()
        return hits / (true + predicted - hits)

    @property
    def class_accuracy(self) -> Tensor:
        """The fraction of each class's pixels that is found, TP_c / (TP_c + FN_c), ``[C]``; NaN if there are none."""
        hits, true, _ = self._counts()
        return hits / true

    @property
    def mean_iou(self) -> float:
        """The mean of ``iou`` over the classes that are present or predicted."""
        return float(self.iou.nanmean())

    @property
    def mean_class_accuracy(self) -> float:
        """The mean of ``class_accuracy`` over the classes that are present: the "class average" of the literature."""
        return float(self.class_accuracy.nanmean())

    @property
    def global_accuracy(self) -> float:
        """The fraction of all pixels that is correct, the same as :func:`credo.metrics.accuracy`."""
        hits, true, _ = self._counts()
        return float(hits.sum() / true.sum())

    def _counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Correct, true and predicted pixels of each class, ``[C]`` float64 each."""
        counts = self.confusion.double()
        return counts.diagonal(), counts.sum(1), counts.sum(0)


def segmentation_scores(p: Predictive, y: Values) -> SegmentationScores:
    """Return the scores of predicted pixel classes; pixels with the likelihood's ``ignore_index`` do not count.

    Args:
        p: the prediction of the class of every pixel.
        y: the classes, in the shape of ``p.mode``.

    Returns:
        Intersection over union and accuracy, per class and overall.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or every label is ignored.
    """
    labeled = LabeledPredictions.from_predictive(p, y, "segmentation_scores")
    classes = labeled.probability.shape[1]
    pairs = torch.bincount(labeled.label * classes + labeled.predicted, minlength=classes**2)
    return SegmentationScores(pairs.view(classes, classes))


def mean_iou(p: Predictive, y: Values) -> float:
    """Return the mean intersection over union of true and predicted pixels, over classes; higher is better.

        mIoU = (1/C) Σ_c TP_c / (TP_c + FP_c + FN_c)

    over the classes that are present or predicted, all images together (Everingham et al., 2010).

    Args:
        p: the prediction of the class of every pixel.
        y: the classes, in the shape of ``p.mode``.

    Returns:
        The score, from 0 to 1.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or every label is ignored.

    References:
        M. Everingham et al. The Pascal visual object classes (VOC) challenge. IJCV 2010.
    """
    return segmentation_scores(p, y).mean_iou


def class_accuracy(p: Predictive, y: Values) -> Tensor:
    """Return the fraction of each class's targets that is predicted correctly, its recall.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.

    Returns:
        The accuracies, ``[C]`` float64; NaN for a class that is not among the targets.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or every label is ignored.
    """
    return segmentation_scores(p, y).class_accuracy


def accuracy_by_kept(correct: Values, uncertainty: Values, kept: Sequence[float] = (1.0, 0.9, 0.5, 0.1)) -> Tensor:
    """Return the accuracy of the most certain pixels, for several fractions that are kept.

    It is 1 − the risk of :func:`credo.metrics.risk_coverage` for the loss 0 or 1, at those coverages. An uncertainty
    that ranks the errors raises the accuracy as fewer are kept; one unrelated to them leaves it unchanged.

    Args:
        correct: whether each target is predicted correctly, ``[N]``; leave out void pixels.
        uncertainty: the uncertainty of each, ``[N]``.
        kept: the fractions that are kept, above 0 and at most 1.

    Returns:
        The accuracies, in the order of ``kept``, float64.

    Raises:
        InputError: if a fraction is not in (0, 1], or the two vectors are empty, NaN or of different lengths.

    Example:
        >>> seen = y != void
        >>> credo.metrics.accuracy_by_kept((p.mode == y)[seen], p.mutual_information[seen], [1.0, 0.9])
    """
    if not isinstance(kept, Iterable):
        raise InputError(f"kept must be a sequence of fractions, such as [1.0, 0.9], got {kept!r}")
    fractions = torch.tensor(list(kept), dtype=torch.float64)
    if not bool(((fractions > 0) & (fractions <= 1)).all()):
        raise InputError(f"kept must hold fractions above 0 and at most 1, got {list(kept)}")
    curve = risk_coverage(1 - check_vector(correct, "correct"), uncertainty)
    count = (fractions * len(curve.risk)).round().long().clamp(min=1)
    return 1 - curve.risk[count - 1]
