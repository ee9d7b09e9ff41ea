"""The standard scores of a prediction, with what they mean and how sure one may be of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from credo.errors import InputError
from credo.metrics import _statistics as statistics
from credo.metrics._answers import Answers
from credo.metrics._statistics import Statistic
from credo.metrics._targets import Values, any_targets, outputs
from credo.metrics.classification import calibration_gap
from credo.metrics.likelihood import row_nll
from credo.metrics.ranked_probability import row_crps
from credo.metrics.regression import LEVELS, covered, share_below, squared_error, widths
from credo.predictive import Predictive
from credo.predictive.components import ClassComponents
from credo.seeding import check_seed

_ENDS = (0.025, 0.975)
_WORK = 2**21  # weights held at once


@dataclass(frozen=True)
class Description:
    """What a score is called, which way it is better, and what it says, in one line."""

    label: str
    better: Literal["lower", "higher", "level"]
    meaning: str


DESCRIPTIONS: Mapping[str, Description] = {
    "nll": Description("NLL", "lower", "mean of −log p(y) in nats: how surprised the prediction was by the targets"),
    "rmse": Description("RMSE", "lower", "root mean squared error of the predicted mean, in the unit of the target"),
    "crps": Description("CRPS", "lower", "distance of the predicted distribution from the target, in its unit"),
    "r2": Description("R²", "higher", "share of the targets' variance explained; 0 is no better than their average"),
    "coverage": Description("coverage", "level", "share of the targets inside the interval; should be its level"),
    "width": Description(
        "width", "lower", "mean width of the interval, in the unit of the target; to be judged with the coverage"
    ),
    "quantile_calibration_error": Description(
        "calibration error", "lower", "mean distance of a predicted quantile's level from the share of targets below it"
    ),
    "accuracy": Description("accuracy", "higher", "share of the targets whose most probable class is right"),
    "brier": Description("Brier", "lower", "squared distance of the class probabilities from the truth, from 0 to 2"),
    "ece": Description("ECE", "lower", "mean distance of the stated confidence from the share of right answers"),
    "misclassification_auroc": Description(
        "AUROC of errors", "higher", "chance that a wrong answer has more entropy than a right one; ½ is guessing"
    ),
    "aurc": Description(
        "AURC", "lower", "error rate of the most certain share of the targets, averaged over all shares"
    ),
}


@dataclass(frozen=True)
class Score:
    """A score and its 95 % bootstrap interval.

    Args:
        name: one of ``DESCRIPTIONS``.
        value: the score itself; NaN where it is undefined.
        lower, upper: the ends of the interval, over the choice of test rows.
        level: of the predicted interval, for ``coverage`` and ``width``.
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
        """Which way is better; "level" where the closer to ``level``."""
        return DESCRIPTIONS[self.name].better

    @property
    def meaning(self) -> str:
        """What it says, in one line."""
        return DESCRIPTIONS[self.name].meaning


def scores(p: Predictive, y: Values, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> list[Score]:
    """The standard scores of ``p`` on the targets ``y``, each with its 95 % percentile bootstrap interval over rows.

    Real and count-valued targets: ``nll``, ``rmse``, ``crps``, ``r2``, ``coverage``, ``width`` and
    ``quantile_calibration_error``. Classes: ``nll``, ``accuracy``, ``brier``, ``ece``, ``misclassification_auroc`` and
    ``aurc``, the last two of the entropy and the error rate.

    The prediction is evaluated once; the bootstrap resamples its rows, the same rows for all scores. The interval says
    how much a score would move with other test rows, not with another training run. Resampling adds to the noise that a
    calibration error measures, so the intervals of ``ece`` and ``quantile_calibration_error`` lean upwards; an interval
    that would lie beside its value is stretched to hold it. A score is NaN where it is undefined: ``r2`` of equal
    targets, ``misclassification_auroc`` where every answer is right, or every one wrong.

    Args:
        p: the prediction of B rows.
        y: their targets.
        level: of the interval whose ``coverage`` and ``width`` are scored.
        resamples: how many bootstrap replicates.
        seed: of the resampling, which uses a stream of its own.

    References:
        B. Efron, R. J. Tibshirani. An introduction to the bootstrap. 1993.
    """
    targets = any_targets(p, y, "scores")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise InputError(f"resamples must be a whole number, 1 or more, got {resamples!r}.")
    parts = _of_classes(p, targets) if isinstance(p.components, ClassComponents) else _of_numbers(p, targets, level)
    replicates: dict[str, list[Tensor]] = {name: [] for name in parts}
    for weights in _resampled(len(p), resamples, check_seed(seed)):
        for name, statistic in parts.items():
            replicates[name].append(statistic(weights))
    return [_score(name, parts[name].value, torch.cat(replicates[name]), level) for name in parts]


def _of_numbers(p: Predictive, y: Tensor, level: float) -> dict[str, Statistic]:
    interval = p.interval(level)
    errors = squared_error(p, y)
    nominal = torch.tensor(LEVELS, dtype=torch.float64)
    return {
        "nll": statistics.mean(row_nll(p, y)),
        "rmse": statistics.root_mean(errors),
        "crps": statistics.mean(row_crps(p, y)),
        "r2": statistics.explained_variance(errors, outputs(y)),
        "coverage": statistics.mean(covered(interval, y)),
        "width": statistics.mean(widths(interval)),
        "quantile_calibration_error": statistics.mean_absolute_deviation(share_below(p, y, nominal), nominal),
    }


def _of_classes(p: Predictive, y: Tensor) -> dict[str, Statistic]:
    answers = Answers.of(p, y, "scores")
    wrong, entropy = 1 - answers.correct, answers.flat(p.entropy)
    of_answers = {
        "accuracy": statistics.mean(answers.correct),
        "brier": statistics.mean(answers.brier),
        "ece": calibration_gap(answers, bins=15, binning="width"),
        "misclassification_auroc": statistics.auroc(entropy, wrong),
        "aurc": statistics.aurc(wrong, entropy),
    }
    return {"nll": statistics.mean(row_nll(p, y))} | {k: answers.by_row(s) for k, s in of_answers.items()}


def _resampled(rows: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each row is in each resample, ``[R, rows]`` float64, some resamples at a time."""
    stream = np.random.default_rng(seed)
    size = max(_WORK // rows, 1)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        picked = stream.integers(rows, size=(count, rows)) + rows * np.arange(count)[:, None]
        counts = np.bincount(picked.ravel(), minlength=count * rows)
        yield torch.from_numpy(counts.reshape(count, rows)).double()


def _score(name: str, value: float, replicates: Tensor, level: float) -> Score:
    defined = replicates[~replicates.isnan()].numpy()
    # The ends are replicates themselves: between two infinite ones nothing can be interpolated.
    lower, upper = np.quantile(defined, _ENDS, method="nearest") if len(defined) else (math.nan, math.nan)
    shown_level = level if name in ("coverage", "width") else None
    return Score(name, value, min(float(lower), value), max(float(upper), value), shown_level)
