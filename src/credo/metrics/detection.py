"""Does uncertainty tell what a model should not be trusted on: foreign inputs, or its own mistakes?

A detector flags the rows whose score, higher for the more uncertain, reaches a threshold. *Positive* are the rows it
should flag: those from outside, or those answered wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import unknown_name
from credo.metrics import _statistics
from credo.metrics._answers import Answers
from credo.metrics._targets import Values, score_vector
from credo.predictive import Predictive

UNCERTAINTIES: dict[str, Callable[[Predictive, Answers], Tensor]] = {
    "entropy": lambda p, answers: answers.flat(p.entropy),
    "mutual_information": lambda p, answers: answers.flat(p.mutual_information),
    "aleatoric": lambda p, answers: answers.flat(p.aleatoric),
    "confidence": lambda p, answers: 1 - answers.confidence,
}


@dataclass(frozen=True)
class Detection:
    """How well a score tells positive rows from the others: see :func:`auroc`, :func:`aupr` and :func:`fpr95`."""

    auroc: float
    aupr: float
    fpr95: float


def auroc(inside: Values, outside: Values) -> float:
    """P(s_out > s_in) + ½ P(s_out = s_in) for a random row from outside and one from inside; higher is better.

    The area under the ROC curve, the rows from outside positive: 1 separates the two, ½ is guessing.

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.
    """
    # Not torchmetrics' binary_auroc: it takes scores beyond 1 for logits and squashes them, so that in float32 100 and
    # 200 are equal. Nor scikit-learn's: the bootstrap needs the area under many weights, and one formula is enough.
    scores, positive = _joined(inside, outside)
    return _statistics.auroc(scores, positive).value


def aupr(inside: Values, outside: Values) -> float:
    """The average precision Σ_k (recall_k − recall_{k−1}) · precision_k over all thresholds; higher is better.

    The area under the precision–recall curve by steps, without interpolation, the rows from outside positive. Guessing
    gives their share M/(N + M), so it compares only at equal shares.

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.
    """
    from sklearn.metrics import average_precision_score  # torchmetrics' squashes scores beyond 1, see auroc

    scores, positive = _joined(inside, outside)
    # scikit-learn wants finite scores, and the area depends on their order alone.
    ranks = scores.unique(return_inverse=True)[1]
    return float(average_precision_score(positive.numpy(), ranks.numpy()))


def fpr95(inside: Values, outside: Values) -> float:
    """The share of rows from inside that are flagged where 95 % of those from outside are caught; lower is better.

    The false positive rate at a true positive rate of 95 %, the rows from outside positive: with t the highest
    threshold at which at least 95 % of the outside scores are t or more, the share of inside scores that are t or more.
    (Part of the literature takes the rows from inside as positive and reports the share of outside rows let in; that is
    ``fpr95(-outside, -inside)``.)

    Args:
        inside: scores of rows like the training data, ``[N]``, higher for the more uncertain.
        outside: scores of other rows, ``[M]``.
    """
    inside, outside = score_vector(inside, "inside"), score_vector(outside, "outside")
    caught = -(-95 * len(outside) // 100)  # rounded up, in integers
    threshold = outside.sort(descending=True).values[caught - 1]
    return float((inside >= threshold).double().mean())


def misclassification(p: Predictive, y: Values, score: str = "entropy") -> Detection:
    """Uncertainty as a detector of wrong answers: the wrong ones are positive.

    All three are NaN where every answer is right or every one wrong: there is nothing to tell apart.

    Args:
        p: the prediction of class-valued targets.
        y: the targets.
        score: ``"entropy"``, ``"mutual_information"``, ``"aleatoric"``, or ``"confidence"``: 1 − max_c π_c.
    """
    if score not in UNCERTAINTIES:
        raise unknown_name("score", score, UNCERTAINTIES)
    answers = Answers.of(p, y, "misclassification")
    correct = answers.correct.bool()
    if bool(correct.all()) or not bool(correct.any()):
        return Detection(math.nan, math.nan, math.nan)
    uncertainty = UNCERTAINTIES[score](p, answers)
    right, wrong = uncertainty[correct], uncertainty[~correct]
    return Detection(auroc(right, wrong), aupr(right, wrong), fpr95(right, wrong))


def _joined(inside: Values, outside: Values) -> tuple[Tensor, Tensor]:
    """All scores, and which of them are positive, ``[N + M]`` each."""
    parts = [score_vector(inside, "inside"), score_vector(outside, "outside")]
    return torch.cat(parts), torch.arange(len(parts[0]) + len(parts[1])) >= len(parts[0])
