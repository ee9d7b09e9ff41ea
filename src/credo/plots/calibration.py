"""Does what was predicted with a probability come true as often?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo import metrics
from credo.errors import InputError
from credo.plots._tools import axes_or_new, check_count, legend_on_top, to_array
from credo.plots.style import CYCLE, DASHES, DATA, EPISTEMIC, MARKERS, MUTED
from credo.predictive import ConformalPredictive, Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

_SURE = 0.95  # probability of every band and error bar on this page
_LEVELS = np.linspace(0.05, 0.95, 19)


def reliability(
    p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, bins: int = 15, binning: str = "width"
) -> Axes:
    """The share of right answers over the confidence they were given with, and how many answers there are.

    On the diagonal a classifier is right as often as it says; below it is too sure of itself. The bars at each point
    are 95 % confidence intervals (Wilson 1927), wide where a bin holds few answers; the steps in the background are
    the share of all answers at that confidence. The key gives the expected calibration error,
    :func:`credo.metrics.ece`.

    Args:
        p: the prediction of classes.
        y: the true classes.
        ax: where to draw; a new figure where ``None``.
        bins: number of bins of the confidence.
        binning: ``"width"`` for bins of equal width, ``"mass"`` for equally many answers in each.

    References: M. H. DeGroot, S. E. Fienberg, "The comparison and evaluation of forecasters", The Statistician 1983.
    C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    """
    from scipy.stats import binomtest

    binned = metrics.reliability(p, y, bins, binning)
    error = metrics.ece(p, y, bins, binning)
    answers = to_array(metrics.reliability(p, y, bins).count)
    held = to_array(binned.count) > 0
    confidence, accuracy, count = (to_array(t)[held] for t in (binned.confidence, binned.accuracy, binned.count))
    ends = [
        binomtest(round(share * n), int(n)).proportion_ci(_SURE, "wilson")
        for share, n in zip(accuracy, count, strict=True)
    ]
    ax = axes_or_new(ax)
    ax.stairs(
        answers / answers.sum(),
        np.linspace(0.0, 1.0, bins + 1),
        fill=True,
        color=MUTED,
        alpha=0.3,
        label="share of answers",
    )
    ax.plot([0.0, 1.0], [0.0, 1.0], color=DATA, linestyle="--", linewidth=1.0)
    ax.vlines(confidence, [end.low for end in ends], [end.high for end in ends], color=EPISTEMIC, linewidth=1.1)
    label = f"accuracy (ECE {error:.3f})"
    ax.plot(confidence, accuracy, color=EPISTEMIC, marker="o", markersize=4, linewidth=0.6, label=label)
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    ax.set_yticks(np.linspace(0.0, 1.0, 6))
    legend_on_top(ax)
    return ax


def interval_calibration(
    p: Predictive | Mapping[str, Predictive], y: ArrayLike | Tensor, ax: Axes | None = None
) -> Axes:
    """The share of observations inside central intervals, over the probability the intervals promise.

    Below the diagonal intervals are too narrow, above too wide. The gray band holds 95 % of what a prediction without
    fault would show on as many rows: binomial at every level on its own. Outputs of one row need not be independent, so
    only rows are counted for it.

    Args:
        p: the prediction of numbers, or several by name.
        y: what was observed, in the shape of ``p.mean``.
        ax: where to draw; a new figure where ``None``.
    """
    from scipy.stats import binom

    predictions = {"observed": p} if isinstance(p, Predictive) else dict(p)
    if not predictions:
        raise InputError("p must hold at least one prediction, got none")
    observed = {name: _central_coverage(prediction, y) for name, prediction in predictions.items()}
    rows = len(next(iter(predictions.values())))
    nominal = np.linspace(0.0, 1.0, 101)
    lower, upper = (end / rows for end in binom.interval(_SURE, rows, nominal))
    ax = axes_or_new(ax)
    ax.fill_between(nominal, lower, upper, color=MUTED, alpha=0.3, linewidth=0.0, label=f"by chance (n = {rows:,})")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=DATA, linestyle="--", linewidth=1.0)
    for (name, coverage), color, dashes, marker in zip(
        observed.items(), cycle(CYCLE), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        ax.plot(_LEVELS, coverage, color=color, linestyle=dashes, marker=marker, markersize=3, label=name)
    ax.set(xlabel="probability of the interval", ylabel="share inside", xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    ax.set_yticks(np.linspace(0.0, 1.0, 6))
    legend_on_top(ax)
    return ax


def pit_histogram(p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, bins: int = 10) -> Axes:
    """A histogram of F(y), the predicted probability of less than was observed: flat where predictions are right.

    A hill is a prediction too wide, a valley one too narrow, a slope one that is biased. The gray band holds 95 % of
    what a prediction without fault would show in a bin, for as many rows.

    Args:
        p: the prediction of numbers.
        y: what was observed, in the shape of ``p.mean``.
        ax: where to draw; a new figure where ``None``.
        bins: number of bins.

    Reference: T. Gneiting, F. Balabdaoui, A. E. Raftery, "Probabilistic forecasts, calibration and sharpness", JRSS B
    2007.
    """
    from scipy.stats import binom

    check_count("bins", bins)
    density, edges = np.histogram(to_array(metrics.pit(p, y)), bins, range=(0.0, 1.0), density=True)
    lower, upper = (end * bins / len(p) for end in binom.interval(_SURE, len(p), 1.0 / bins))
    ax = axes_or_new(ax)
    ax.axhspan(lower, upper, color=MUTED, alpha=0.3, linewidth=0.0, label=f"by chance (n = {len(p):,})")
    ax.axhline(1.0, color=DATA, linestyle="--", linewidth=1.0)
    ax.stairs(density, edges, fill=True, color=EPISTEMIC, alpha=0.3)
    ax.stairs(density, edges, color=EPISTEMIC, linewidth=1.3, label="observed")
    ax.set(xlabel="probability of less, F(y)", ylabel="density", xlim=(0.0, 1.0))
    ax.set_ylim(bottom=0.0, auto=None)
    legend_on_top(ax)
    return ax


def _central_coverage(p: Predictive, y: ArrayLike | Tensor) -> NDArray[np.float64]:
    """The share of ``y`` inside the central interval of every level.

    By the cdf at ``y``, which is far cheaper than intervals, unless those are not what lies between two quantiles.
    """
    if isinstance(p, ConformalPredictive):
        return np.array([metrics.coverage(p, y, level) for level in _LEVELS])
    ends = np.concatenate([(1.0 - _LEVELS) / 2.0, (1.0 + _LEVELS) / 2.0])
    below, upto = np.split(to_array(metrics.calibration_curve(p, y, ends).observed), 2)
    share: NDArray[np.float64] = upto - below
    return share
