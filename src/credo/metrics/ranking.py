"""Does uncertainty rank the errors? Detection of unfamiliar inputs and errors, and selective prediction.

A detector flags the rows whose score, higher for the more uncertain, reaches a threshold. The *positive* rows are those
it should flag: from outside the training distribution, or misclassified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._arguments import check_option
from credo.errors import InputError
from credo.metrics import _statistics
from credo.metrics._targets import Values, check_vector
from credo.metrics.classification import LabeledPredictions
from credo.predictive import Predictive

_UNCERTAINTIES: dict[str, Callable[[Predictive, LabeledPredictions], Tensor]] = {
    "entropy": lambda p, labeled: labeled.flat(p.entropy),
    "mutual_information": lambda p, labeled: labeled.flat(p.mutual_information),
    "aleatoric": lambda p, labeled: labeled.flat(p.aleatoric),
    "confidence": lambda p, labeled: 1 - labeled.confidence,
}


@dataclass(frozen=True)
class Detection:
    """How well a score separates positive rows from the others.

    Attributes:
        auroc: see :func:`auroc`.
        aupr: see :func:`aupr`.
        fpr95: see :func:`fpr95`.

    Example:
        >>> credo.metrics.misclassification(p, y).auroc
    """

    auroc: float
    aupr: float
    fpr95: float


def auroc(inside: Values, outside: Values) -> float:
    """Return P(s_out > s_in) + ½ P(s_out = s_in) for random rows from outside and inside; higher is better.

    It is the area under the ROC curve with the rows from outside as positive: 1 separates the two, ½ is guessing.

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.

    Returns:
        The score.

    Raises:
        InputError: if the scores are empty, NaN or not one per row.
    """
    # Not torchmetrics' binary_auroc: it takes scores beyond 1 for logits and squashes them, so that in float32 100 and
    # 200 are equal. Nor scikit-learn's: the bootstrap needs the area under many weights, and one formula is enough.
    scores, positive = _joined(inside, outside)
    return _statistics.auroc(scores, positive).value


def aupr(inside: Values, outside: Values) -> float:
    """Return the average precision Σ_k (recall_k − recall_{k−1}) · precision_k over all thresholds; higher is better.

    It is the area under the precision–recall curve by steps, without interpolation, with the rows from outside as
    positive. Guessing gives their fraction M/(N + M), so compare it at equal fractions only.

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.

    Returns:
        The score.

    Raises:
        InputError: if the scores are empty, NaN or not one per row.
    """
    from sklearn.metrics import average_precision_score  # torchmetrics' squashes scores beyond 1, see auroc

    scores, positive = _joined(inside, outside)
    # scikit-learn requires finite scores, and the area depends on their order only.
    ranks = scores.unique(return_inverse=True)[1]
    return float(average_precision_score(positive.numpy(), ranks.numpy()))


def fpr95(inside: Values, outside: Values) -> float:
    """Return the fraction of inside rows flagged if 95 % of the outside rows are detected; lower is better.

    It is the false positive rate at a true positive rate of 95 %, with the rows from outside as positive: the fraction
    of inside scores of at least t, the highest threshold that at least 95 % of the outside scores reach. (Part of the
    literature takes the rows from inside as positive and reports the fraction of outside rows that are accepted; that
    is ``fpr95(-outside, -inside)``.)

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.

    Returns:
        The score.

    Raises:
        InputError: if the scores are empty, NaN or not one per row.
    """
    inside, outside = check_vector(inside, "inside"), check_vector(outside, "outside")
    caught = -(-95 * len(outside) // 100)  # rounded up, in integers
    threshold = outside.sort(descending=True).values[caught - 1]
    return float((inside >= threshold).double().mean())


def misclassification(p: Predictive, y: Values, score: str = "entropy") -> Detection:
    """Return how well uncertainty detects misclassified targets, which are positive.

    Args:
        p: the prediction of class-valued targets.
        y: the class indices, in the shape of ``p.mode``.
        score: ``"entropy"``, ``"mutual_information"``, ``"aleatoric"``, or ``"confidence"``: 1 − max_c π_c.

    Returns:
        The three scores; NaN if all predictions are correct or all wrong.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or ``score`` is unknown.
    """
    check_option(score, "score", _UNCERTAINTIES)
    labeled = LabeledPredictions.from_predictive(p, y, "misclassification")
    correct = labeled.correct.bool()
    if bool(correct.all()) or not bool(correct.any()):
        return Detection(math.nan, math.nan, math.nan)
    uncertainty = _UNCERTAINTIES[score](p, labeled)
    right, wrong = uncertainty[correct], uncertainty[~correct]
    return Detection(auroc(right, wrong), aupr(right, wrong), fpr95(right, wrong))


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The mean loss of the most certain rows, over their fraction.

    Attributes:
        coverage: the fraction of rows k/N, ``[N]``.
        risk: the mean loss of the k most certain rows, ``[N]``.

    Example:
        >>> curve = credo.metrics.risk_coverage((p.mode != y).double(), p.entropy)
        >>> curve.risk[len(y) // 2]  # the error rate of the more certain half
    """

    coverage: Tensor
    risk: Tensor


def risk_coverage(loss: Values, uncertainty: Values) -> RiskCoverage:
    """Return the mean loss of the k most certain rows, for k from 1 to N (El-Yaniv & Wiener 2010).

    For equally uncertain rows, the risk is the mean over all their orders, so it does not depend on the order of the
    rows.

    Args:
        loss: the loss of every row, ``[N]``: 0 or 1 for right and wrong, a squared error, …
        uncertainty: the uncertainty of every row, ``[N]``.

    Returns:
        The curve.

    Raises:
        InputError: if the two are empty, NaN or of different lengths.

    References:
        R. El-Yaniv, Y. Wiener. On the foundations of noise-free selective classification. JMLR 2010.
    """
    losses, uncertainties = _check_losses(loss, uncertainty)
    _, group, counts = uncertainties.unique(return_inverse=True, return_counts=True)
    expected = (torch.bincount(group, losses) / counts).repeat_interleave(counts)
    rows = torch.arange(1, len(losses) + 1, dtype=torch.float64)
    return RiskCoverage(rows / len(losses), expected.cumsum(0) / rows)


def aurc(loss: Values, uncertainty: Values) -> float:
    """Return the area under the risk–coverage curve, (1/N) Σ_k risk_k (Geifman et al. 2019); lower is better.

    It is the mean of ``risk_coverage(loss, uncertainty).risk``; an uninformative uncertainty gives the mean loss.

    Args:
        loss: the loss of every row, ``[N]``.
        uncertainty: the uncertainty of every row, ``[N]``.

    Returns:
        The area.

    Raises:
        InputError: if the two are empty, NaN or of different lengths.

    References:
        Y. Geifman, G. Uziel, R. El-Yaniv. Bias-reduced uncertainty estimation for deep neural classifiers. ICLR 2019.
    """
    return _statistics.aurc(*_check_losses(loss, uncertainty)).value


def ause(loss: Values, uncertainty: Values) -> float:
    r"""Return the area under the sparsification error curve (Ilg et al. 2018); lower is better.

    The sparsification curve is the mean loss of the rows that remain after the most uncertain ones are removed, divided
    by that of all rows: :func:`risk_coverage`, read from full coverage down. The error is its difference to the lowest
    possible curve, of rows that are removed in the order of their loss, so that

        AUSE = [aurc(loss, uncertainty) − aurc(loss, loss)] / mean loss.

    It is 0 if the uncertainty ranks the losses, and 1 − aurc(loss, loss)/mean loss if it is unrelated to them. The
    division makes it independent of the unit of the loss, which is usually the absolute error of a pixel.

    Args:
        loss: the loss of every row, ``[N]``, 0 or more.
        uncertainty: the uncertainty of every row, ``[N]``.

    Returns:
        The area; NaN if every loss is 0.

    Raises:
        InputError: if the two are empty, NaN or of different lengths, or a loss is negative or infinite.

    References:
        E. Ilg, Ö. Çiçek, S. Galesso, A. Klein, O. Makansi, F. Hutter, T. Brox. Uncertainty estimates and
        multi-hypotheses networks for optical flow. ECCV 2018.

    Example:
        >>> credo.metrics.ause((p.mean - y).abs().flatten(), p.std.flatten())
    """
    losses, uncertainties = _check_losses(loss, uncertainty)
    if not bool(((losses >= 0) & losses.isfinite()).all()):
        raise InputError("loss must hold finite numbers of at least 0, such as absolute errors.")
    mean = float(losses.mean())
    if mean == 0.0:
        return math.nan
    return (aurc(losses, uncertainties) - aurc(losses, losses)) / mean


def _joined(inside: Values, outside: Values) -> tuple[Tensor, Tensor]:
    """Return all scores, and which of them are positive, ``[N + M]`` each."""
    parts = [check_vector(inside, "inside"), check_vector(outside, "outside")]
    return torch.cat(parts), torch.arange(len(parts[0]) + len(parts[1])) >= len(parts[0])


def _check_losses(loss: Values, uncertainty: Values) -> tuple[Tensor, Tensor]:
    losses, uncertainties = check_vector(loss, "loss"), check_vector(uncertainty, "uncertainty")
    if len(losses) != len(uncertainties):
        raise InputError(
            f"loss and uncertainty must have one number per row, got {len(losses)} and {len(uncertainties)}."
        )
    return losses, uncertainties
