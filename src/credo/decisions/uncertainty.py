"""Scores of uncertainty by row of a prediction, and how well they detect rows from another distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from credo import metrics
from credo._arguments import check_option
from credo.errors import InputError, UnsupportedError
from credo.predictive import ClassPredictive, Predictive
from credo.predictive.classes import CategoricalComponents
from credo.predictive.components import average


def uncertainty(p: Predictive, score: str = "entropy") -> Tensor:
    r"""Return one number per row of a prediction, higher for the more uncertain.

    ============================ ================================================== ============================
    ``score``                    for classes                                        for real and count targets
    ============================ ================================================== ============================
    ``"entropy"``                H[y]                                               H[y]
    ``"mutual_information"``     H[y] − E_s H[y | f_s]                              the same
    ``"variation_ratio"``        1 − max_c p(c)                                     not defined
    ``"variance"``               Σ_c Var_s p(c | f_s)                               Var E[y | f], ``p.epistemic``
    ============================ ================================================== ============================

    Entropies are in nats. Mutual information is the score of BALD (Houlsby et al. 2011); it and ``"variance"`` are
    epistemic, 0 if all draws agree, while the other two also count noise that no label can remove. For a row with
    several targets the scores of its targets are added.

    Args:
        p: the prediction of B rows.
        score: one of the names above.

    Returns:
        The scores, ``[B]``.

    Raises:
        InputError: if ``p`` is not a prediction or ``score`` is unknown.
        UnsupportedError: if ``score`` is not defined for the kind of target.

    Example:
        >>> p = credo.Categorical().predictive(torch.randn(20, 4, 3))
        >>> credo.decisions.uncertainty(p, "mutual_information").shape
        torch.Size([4])

    References:
        N. Houlsby, F. Huszár, Z. Ghahramani, M. Lengyel. Bayesian active learning for classification and preference
        learning. 2011.
        Y. Gal, R. Islam, Z. Ghahramani. Deep Bayesian active learning with image data. ICML 2017.
    """
    if not isinstance(p, Predictive):
        raise InputError(f"p must be a Predictive, as returned by model.predict(x), got {type(p).__name__}")
    check_option(score, "score", SCORES)
    return SCORES[score](p).reshape(len(p), -1).sum(1)


def out_of_distribution(inside: Predictive, outside: Predictive, score: str = "entropy") -> metrics.Detection:
    """Return how well a score of uncertainty separates rows like the training data from others.

    Args:
        inside: the prediction of rows like the training data.
        outside: the prediction of other rows, which are positive: the score should be higher for them.
        score: as in :func:`uncertainty`; ``"variation_ratio"`` is one minus the maximum softmax probability
            (Hendrycks & Gimpel 2017).

    Returns:
        AUROC, area under the precision–recall curve, and false positive rate at 95 % detection; see
        :func:`credo.metrics.auroc`, :func:`credo.metrics.aupr` and :func:`credo.metrics.fpr95`.

    Raises:
        InputError: if a prediction has no rows, ``score`` is unknown, or only one predicts classes.
        UnsupportedError: if ``score`` is not defined for the kind of target.

    Example:
        >>> found = credo.decisions.out_of_distribution(model.predict(digits), model.predict(letters))
        >>> found.auroc, found.fpr95

    References:
        D. Hendrycks, K. Gimpel. A baseline for detecting misclassified and out-of-distribution examples in neural
        networks. ICLR 2017.
    """
    if isinstance(inside, ClassPredictive) is not isinstance(outside, ClassPredictive):
        raise InputError("inside and outside must be predictions of the same kind, both of classes or neither")
    low, high = uncertainty(inside, score), uncertainty(outside, score)
    return metrics.Detection(metrics.auroc(low, high), metrics.aupr(low, high), metrics.fpr95(low, high))


def class_probabilities(p: Predictive, purpose: str) -> Tensor:
    """The class probabilities of every draw with the classes last, ``[S, B, ..., C]``; two classes for a Bernoulli.

    Raises:
        UnsupportedError: if the targets are not classes; ``purpose`` is what needs them.
    """
    if not isinstance(p, ClassPredictive):
        raise UnsupportedError(f"{purpose} is defined for classes only; for this target use 'variance' or 'entropy'.")
    if isinstance(p.components, CategoricalComponents):
        return p.draws.movedim(p.components.class_dim, -1)
    return torch.stack([1 - p.draws, p.draws], -1)


def _variation_ratio(p: Predictive) -> Tensor:
    probabilities = class_probabilities(p, "'variation_ratio'")
    return 1 - average(probabilities, p.weights).amax(-1)


def _variance(p: Predictive) -> Tensor:
    if not isinstance(p, ClassPredictive):
        return p.epistemic
    probabilities = class_probabilities(p, "'variance'")
    deviation = probabilities - average(probabilities, p.weights)
    return average(deviation.square(), p.weights).sum(-1)


SCORES: dict[str, Callable[[Predictive], Tensor]] = {
    "entropy": lambda p: p.entropy,
    "mutual_information": lambda p: p.mutual_information,
    "variation_ratio": _variation_ratio,
    "variance": _variance,
}
