"""The standard scores of a prediction, with descriptions and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from credo._arguments import check_integer
from credo.functional import outside_inference_mode
from credo.metrics import _statistics as statistics
from credo.metrics._intervals import (
    LOG,
    LOG_COMPLEMENT,
    BinomialInterval,
    NormInterval,
    RankingInterval,
    ScoreInterval,
    SelectiveRiskInterval,
    StudentizedInterval,
)
from credo.metrics._targets import Values, check_targets, outputs
from credo.metrics.classification import LabeledPredictions, calibration_gap
from credo.metrics.regression import LEVELS, fraction_below, row_coverage, row_squared_error, row_width
from credo.metrics.scoring_rules import row_crps, row_nll
from credo.predictive import Predictive
from credo.predictive.components import ClassComponents
from credo.seeding import check_seed

_MAX_WEIGHTS = 2**21  # weights held at once


@dataclass(frozen=True)
class ScoreDescription:
    """The description of a score.

    Attributes:
        label: the name as it is printed.
        better: whether ``"lower"`` or ``"higher"`` is better, or the closer to the ``"level"`` of an interval.
        meaning: what the score measures, in one line.

    Example:
        >>> credo.metrics.DESCRIPTIONS["crps"].better
        'lower'
    """

    label: str
    better: Literal["lower", "higher", "level"]
    meaning: str


DESCRIPTIONS: Mapping[str, ScoreDescription] = {
    "nll": ScoreDescription("NLL", "lower", "mean of −log p(y) in nats, the negative log likelihood of the targets"),
    "rmse": ScoreDescription(
        "RMSE", "lower", "root mean squared error of the predicted mean, in the unit of the target"
    ),
    "crps": ScoreDescription(
        "CRPS", "lower", "distance of the predicted distribution from the target, in the unit of the target"
    ),
    "r2": ScoreDescription(
        "R²", "higher", "fraction of the targets' variance explained; 0 is no better than their average"
    ),
    "coverage": ScoreDescription(
        "coverage", "level", "fraction of the targets inside the interval; should be its level"
    ),
    "width": ScoreDescription(
        "width", "lower", "mean width of the interval, in the unit of the target; to be compared at equal coverage"
    ),
    "quantile_calibration_error": ScoreDescription(
        "calibration error",
        "lower",
        "mean distance of a quantile's level from the fraction of targets below the quantile",
    ),
    "accuracy": ScoreDescription("accuracy", "higher", "fraction of the targets whose most probable class is correct"),
    "brier": ScoreDescription(
        "Brier", "lower", "squared distance of the class probabilities from the truth, from 0 to 2"
    ),
    "ece": ScoreDescription("ECE", "lower", "mean distance of the confidence from the fraction of correct predictions"),
    "misclassification_auroc": ScoreDescription(
        "AUROC of errors",
        "higher",
        "probability that a wrong prediction has more entropy than a correct one; ½ is guessing",
    ),
    "aurc": ScoreDescription(
        "AURC", "lower", "error rate of the most certain fraction of the targets, averaged over all fractions"
    ),
}


@dataclass(frozen=True)
class Score:
    """A score and its 95 % confidence interval.

    Attributes:
        name: a key of ``DESCRIPTIONS``.
        value: the score; NaN if it is undefined.
        lower: the lower end of its interval over the choice of test rows; NaN if there are too few.
        upper: the upper end.
        level: the level of the predicted interval, for ``coverage`` and ``width``; ``None`` for the others.

    Example:
        >>> for score in credo.metrics.scores(model.predict(x_test), y_test):
        ...     print(score.label, score.value, score.lower, score.upper)
    """

    name: str
    value: float
    lower: float
    upper: float
    level: float | None = None

    @property
    def label(self) -> str:
        """The name as it is printed, such as "RMSE" or "coverage (95 %)"."""
        label = DESCRIPTIONS[self.name].label
        return label if self.level is None else f"{label} ({100 * self.level:g} %)"

    @property
    def better(self) -> Literal["lower", "higher", "level"]:
        """Whether lower or higher is better; "level" if the closer to ``level``."""
        return DESCRIPTIONS[self.name].better

    @property
    def meaning(self) -> str:
        """What the score measures, in one line."""
        return DESCRIPTIONS[self.name].meaning


@outside_inference_mode()
def scores(p: Predictive, y: Values, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> list[Score]:
    """Return the standard scores of a prediction, each with a 95 % confidence interval over the choice of rows.

    Real and count-valued targets: ``nll``, ``rmse``, ``crps``, ``r2``, ``coverage``, ``width`` and
    ``quantile_calibration_error``. Classes: ``nll``, ``accuracy``, ``brier``, ``ece``, ``misclassification_auroc`` and
    ``aurc``, the last two of the entropy and the error rate.

    The interval estimates the score on infinitely many rows of the same distribution; it does not include the variation
    over training runs. Each kind of score has its own method:

    - ``coverage`` and ``accuracy``: the exact binomial interval of Clopper & Pearson, which is never a point: 20 of 20
      correct predictions give [0.83, 1]. Dependent targets of one row have a smaller effective number.
    - ``nll``, ``brier``, and on a log scale ``rmse``, ``crps``, ``width`` and ``r2`` (that of 1 − R²): the studentized
      bootstrap.
    - ``ece`` and ``quantile_calibration_error``: the value minus and plus the distance by which resampling moves the
      vector whose norm it is. It reaches down to 0 if chance explains the error, and is otherwise conservative.
    - ``misclassification_auroc``: Newcombe's score interval of the Mann–Whitney statistic.
    - ``aurc``: bootstrap percentiles, at least as wide as the interval of the error rate implies.

    In simulations with Gaussian targets and with three classes, calibrated and overconfident, they contained the true
    score in 87 to 100 % of cases with 10 rows, 89 to 100 % with 20 and 91 to 100 % with 50 or 200; the lowest are those
    of ``rmse``, ``r2`` and ``aurc``. With few rows, a rare and large loss, such as an outlier or a confident error, is
    often not among them, and intervals of means are then too short, for any method. Two or three rows give infinite
    ends, and one gives NaN.

    The prediction is evaluated once, and all scores share their resamples.

    Args:
        p: the prediction of B rows.
        y: their targets, in the shape of ``p.log_prob``.
        level: the level of the interval for ``coverage`` and ``width``.
        resamples: the number of bootstrap resamples.
        seed: of the resampling; the global random state is not used.

    Returns:
        The scores. A value is NaN if it is undefined: ``r2`` of equal targets, ``misclassification_auroc`` if all
        predictions are correct or all wrong.

    Raises:
        InputError: if ``y`` does not match the prediction, or an option is not valid.

    References:
        B. Efron, R. J. Tibshirani. An introduction to the bootstrap. 1993.
        C. J. Clopper, E. S. Pearson. The use of confidence or fiducial limits illustrated in the case of the binomial.
        Biometrika 1934.
        R. G. Newcombe. Confidence intervals for an effect size measure based on the Mann–Whitney statistic. Part 2.
        Statistics in Medicine 2006.
    """
    targets = check_targets(p, y, "scores")
    resamples = check_integer(resamples, "resamples", minimum=1)
    is_class = isinstance(p.components, ClassComponents)
    intervals = _class_intervals(p, targets) if is_class else _real_intervals(p, targets, level)
    replicates: dict[str, list[Tensor]] = {name: [] for name in intervals}
    for weights in _resample(len(p), resamples, check_seed(seed)):
        for name, interval in intervals.items():
            replicates[name].append(interval.replicates(weights))
    return [_score(name, interval, torch.cat(replicates[name]), level) for name, interval in intervals.items()]


def _real_intervals(p: Predictive, y: Tensor, level: float) -> dict[str, ScoreInterval]:
    interval = p.interval(level)
    errors, rows = row_squared_error(p, y), len(p)
    nominal = torch.tensor(LEVELS, dtype=torch.float64)
    below = fraction_below(p, y, nominal)
    return {
        "nll": StudentizedInterval(statistics.mean(row_nll(p, y))),
        "rmse": StudentizedInterval(statistics.root_mean(errors), LOG),
        "crps": StudentizedInterval(statistics.mean(row_crps(p, y)), LOG),
        "r2": StudentizedInterval(statistics.explained_variance(errors, outputs(y)), LOG_COMPLEMENT),
        "coverage": BinomialInterval(statistics.mean(row_coverage(interval, y)), y.numel(), rows),
        "width": StudentizedInterval(statistics.mean(row_width(interval)), LOG),
        "quantile_calibration_error": NormInterval(
            statistics.mean_absolute_deviation(below, nominal), statistics.mean_absolute_deviation(below, below.mean(0))
        ),
    }


def _class_intervals(p: Predictive, y: Tensor) -> dict[str, ScoreInterval]:
    labeled = LabeledPredictions.from_predictive(p, y, "scores")
    wrong, entropy = 1 - labeled.correct, labeled.flat(p.entropy)
    accuracy, error_rate = (
        BinomialInterval(labeled.by_row(statistics.mean(kind)), len(wrong), labeled.n_rows)
        for kind in (labeled.correct, wrong)
    )
    gap, deviation = (
        labeled.by_row(calibration_gap(labeled, bins=15, binning="width", centered=x)) for x in (False, True)
    )
    return {
        "nll": StudentizedInterval(statistics.mean(row_nll(p, y))),
        "accuracy": accuracy,
        "brier": StudentizedInterval(labeled.by_row(statistics.mean(labeled.brier)), minimum=0.0, maximum=2.0),
        "ece": NormInterval(gap, deviation, accuracy),
        "misclassification_auroc": RankingInterval(
            labeled.by_row(statistics.auroc(entropy, wrong)),
            labeled.count_rows(wrong),
            labeled.count_rows(labeled.correct),
        ),
        "aurc": SelectiveRiskInterval(labeled.by_row(statistics.aurc(wrong, entropy)), error_rate),
    }


def _resample(rows: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each row is in each resample, ``[R, rows]`` float64, in chunks of resamples."""
    stream = np.random.default_rng(seed)
    size = max(_MAX_WEIGHTS // rows, 1)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        picked = stream.integers(rows, size=(count, rows)) + rows * np.arange(count)[:, None]
        counts = np.bincount(picked.ravel(), minlength=count * rows)
        yield torch.from_numpy(counts.reshape(count, rows)).double()


def _score(name: str, interval: ScoreInterval, replicates: Tensor, level: float) -> Score:
    value = interval.statistic.value
    lower, upper = interval.bounds(value, replicates)
    shown_level = level if name in ("coverage", "width") else None
    if math.isnan(lower):
        return Score(name, value, lower, upper, shown_level)
    return Score(name, value, min(lower, value), max(upper, value), shown_level)
