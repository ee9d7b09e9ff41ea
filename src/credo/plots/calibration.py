"""Figures of calibration: do predicted probabilities agree with observed frequencies?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo import metrics
from credo._arguments import check_integer
from credo.errors import InputError
from credo.plots._tools import axes_or_new, legend_on_top, to_array
from credo.plots.style import CYCLE, DASHES, DATA, EPISTEMIC, MARKERS, MUTED
from credo.predictive import ConformalPredictive, Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

_CONFIDENCE = 0.95  # of every band and error bar
_LEVELS = np.linspace(0.05, 0.95, 19)


def reliability(
    p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, bins: int = 15, binning: str = "width"
) -> Axes:
    """Plot accuracy over confidence (a reliability diagram), and the distribution of the confidence.

    A calibrated classifier is on the diagonal, an overconfident one below. The bars are 95 % confidence intervals
    (Wilson 1927); the steps in the background are the fraction of predictions per bin of the confidence. The legend
    contains the expected calibration error, :func:`credo.metrics.ece`.

    Args:
        p: the prediction of classes.
        y: the true classes.
        ax: the axes to draw on; ``None``: those of a new figure.
        bins: the number of bins of the confidence.
        binning: ``"width"`` for bins of equal width, ``"mass"`` for equally many predictions in each.

    Returns:
        The axes.

    Raises:
        InputError: if ``p`` is not a prediction of classes, ``y`` does not match it, or an option is not valid.

    References: M. H. DeGroot, S. E. Fienberg, "The comparison and evaluation of forecasters", The Statistician 1983.
    C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    """
    from scipy.stats import binomtest

    binned = metrics.reliability(p, y, bins, binning)
    error = metrics.ece(p, y, bins, binning)
    counts = to_array(metrics.reliability(p, y, bins).count)
    filled = to_array(binned.count) > 0
    confidence, accuracy, count = (to_array(t)[filled] for t in (binned.confidence, binned.accuracy, binned.count))
    ends = [
        binomtest(round(a * n), int(n)).proportion_ci(_CONFIDENCE, "wilson")
        for a, n in zip(accuracy, count, strict=True)
    ]
    ax = axes_or_new(ax)
    ax.stairs(
        counts / counts.sum(),
        np.linspace(0.0, 1.0, bins + 1),
        fill=True,
        color=MUTED,
        alpha=0.3,
        label="fraction of predictions",
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
    """Plot the coverage of central intervals over their nominal probability.

    Below the diagonal intervals are too narrow, above too wide. The gray band contains 95 % of the coverages of a
    calibrated prediction with as many rows: a binomial interval at each level. Outputs of one row can be dependent, so
    only rows are counted.

    Args:
        p: the prediction of real or count-valued targets, or several by name.
        y: the observed targets, in the shape of ``p.mean``.
        ax: the axes to draw on; ``None``: those of a new figure.

    Returns:
        The axes.

    Raises:
        InputError: if ``p`` is empty or a prediction of classes, or ``y`` does not match it.
    """
    from scipy.stats import binom

    predictions = {"observed": p} if isinstance(p, Predictive) else dict(p)
    if not predictions:
        raise InputError("p must hold at least one prediction, got none")
    observed = {name: _central_coverage(prediction, y) for name, prediction in predictions.items()}
    rows = len(next(iter(predictions.values())))
    nominal = np.linspace(0.0, 1.0, 101)
    lower, upper = (end / rows for end in binom.interval(_CONFIDENCE, rows, nominal))
    ax = axes_or_new(ax)
    ax.fill_between(nominal, lower, upper, color=MUTED, alpha=0.3, linewidth=0.0, label=f"by chance (n = {rows:,})")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=DATA, linestyle="--", linewidth=1.0)
    for (name, coverage), color, dashes, marker in zip(
        observed.items(), cycle(CYCLE), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        ax.plot(_LEVELS, coverage, color=color, linestyle=dashes, marker=marker, markersize=3, label=name)
    ax.set(xlabel="probability of the interval", ylabel="fraction inside", xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    ax.set_yticks(np.linspace(0.0, 1.0, 6))
    legend_on_top(ax)
    return ax


def pit_histogram(p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, bins: int = 10) -> Axes:
    """Plot a histogram of the probability integral transform F(y), which is flat for calibrated predictions.

    A ∩ shape means that predictions are too wide, a ∪ shape too narrow, a slope biased. The gray band contains 95 % of
    the bins of a calibrated prediction with as many rows.

    Args:
        p: the prediction of real or count-valued targets.
        y: the observed targets, in the shape of ``p.mean``.
        ax: the axes to draw on; ``None``: those of a new figure.
        bins: the number of bins.

    Returns:
        The axes.

    Raises:
        InputError: if ``p`` is a prediction of classes, ``y`` does not match it, or ``bins`` is less than 1.

    Reference: T. Gneiting, F. Balabdaoui, A. E. Raftery, "Probabilistic forecasts, calibration and sharpness", JRSS B
    2007.
    """
    from scipy.stats import binom

    bins = check_integer(bins, "bins", minimum=1)
    density, edges = np.histogram(to_array(metrics.pit(p, y)), bins, range=(0.0, 1.0), density=True)
    lower, upper = (end * bins / len(p) for end in binom.interval(_CONFIDENCE, len(p), 1.0 / bins))
    ax = axes_or_new(ax)
    ax.axhspan(lower, upper, color=MUTED, alpha=0.3, linewidth=0.0, label=f"by chance (n = {len(p):,})")
    ax.axhline(1.0, color=DATA, linestyle="--", linewidth=1.0)
    ax.stairs(density, edges, fill=True, color=EPISTEMIC, alpha=0.3)
    ax.stairs(density, edges, color=EPISTEMIC, linewidth=1.3, label="observed")
    ax.set(xlabel="probability integral transform, F(y)", ylabel="density", xlim=(0.0, 1.0))
    ax.set_ylim(bottom=0.0, auto=None)
    legend_on_top(ax)
    return ax


def _central_coverage(p: Predictive, y: ArrayLike | Tensor) -> NDArray[np.float64]:
    """Return the coverage of the central interval of every level.

    From the cdf at ``y``, which is much cheaper than intervals, unless the intervals are not between two quantiles.
    """
    if isinstance(p, ConformalPredictive):
        return np.array([metrics.coverage(p, y, level) for level in _LEVELS])
    ends = np.concatenate([(1.0 - _LEVELS) / 2.0, (1.0 + _LEVELS) / 2.0])
    below, upto = np.split(to_array(metrics.calibration_curve(p, y, ends).observed), 2)
    inside: NDArray[np.float64] = upto - below
    return inside
