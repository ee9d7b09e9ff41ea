"""Predictions of numbers against what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError
from credo.metrics._targets import check_real_targets
from credo.plots._tools import axes_or_new, check_level, legend_on_top, spread, to_array
from credo.plots.style import EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from torch import Tensor

    from credo.predictive import Predictive

_ROWS = 300


def predicted_vs_observed(p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """The predictive mean of every row over its observation, with its interval.

    A bar that does not reach the diagonal is an interval that missed; of all of them, 1 − ``level`` should. Beyond 300
    rows, 300 are drawn, evenly spread over the sorted observations; the share of misses is that of all rows.

    Args:
        p: the prediction, one output a row.
        y: what was observed, in the shape of ``p.mean``.
        ax: where to draw; a new figure where ``None``.
        level: probability inside the bars.
    """
    check_level(level)
    targets = check_real_targets(p, y, "predicted_vs_observed")
    if targets.numel() != len(p):
        raise InputError(f"p must predict one output a row, got the shape {list(targets.shape)}")
    observed, mean, lower, upper = (to_array(t).reshape(-1) for t in (targets, p.mean, *p.interval(level)))
    missed = (observed < lower) | (observed > upper)
    rows = np.argsort(observed, kind="stable")[spread(len(observed), _ROWS)]
    ax = axes_or_new(ax)
    for part, color, marker, label in (
        (rows[~missed[rows]], EPISTEMIC, ".", f"{level:.0%} interval"),
        (rows[missed[rows]], TRUTH, "x", f"missed ({missed.mean():.1%} of {len(missed):,})"),
    ):
        ax.vlines(observed[part], lower[part], upper[part], color=color, alpha=0.35, linewidth=0.9)
        ax.scatter(observed[part], mean[part], s=25, color=color, marker=marker, linewidths=1.0, label=label, zorder=3)
    ax.axline((observed[0], observed[0]), slope=1.0, color=MUTED, linestyle="--", linewidth=1.0, zorder=1)
    ax.set(xlabel="observed", ylabel="predicted")
    legend_on_top(ax)
    return ax
