"""Figures of regressions: predictive bands, posterior draws, and predictions over observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo._arguments import check_fraction, check_integer
from credo.errors import InputError
from credo.metrics._targets import check_real_targets
from credo.plots._tools import axes_or_new, draw_band, evenly_spaced, legend_on_top, to_array
from credo.plots.style import ALEATORIC, DATA, EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from credo.predictive import Predictive

_MAX_ROWS = 300


def predictive_bands(
    x: ArrayLike | Tensor,
    predictive: Predictive,
    ax: Axes | None = None,
    *,
    level: float = 0.95,
    data: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
) -> Axes:
    """Plot the predictive mean with bands of epistemic and aleatoric uncertainty.

    The inner band contains ``level`` of the drawn functions: the epistemic uncertainty. The outer edge is
    ``predictive.interval(level)``, which should contain ``level`` of new observations; the difference between the two
    is due to the noise, the aleatoric uncertainty.

    Args:
        x: the inputs that were predicted, ``[N]`` or ``[N, 1]``.
        predictive: the prediction at ``x``, one output.
        ax: the axes to draw on; ``None``: those of a new figure, with a legend.
        level: probability inside each band, between 0 and 1.
        data: observations ``(x, y)`` to show as dots; ``None`` shows none.

    Returns:
        The axes.

    Raises:
        InputError: if there is more than one input or output per row, or ``level`` is not between 0 and 1.
    """
    inner = draw_band(predictive, level)
    order, grid = _sort_inputs(x)
    mean = _column(predictive.mean, order)
    low, high = _column(inner[0], order), _column(inner[1], order)
    lower, upper = (_column(bound, order) for bound in predictive.interval(level))
    # Quantiles of a few draws can lie outside those of the mixture.
    lower, upper = np.minimum(lower, low), np.maximum(upper, high)
    is_new, ax = ax is None, axes_or_new(ax)
    for label, color, alpha, below, above in (
        (f"epistemic, {level:.0%}", EPISTEMIC, 0.4, low, high),
        (f"with aleatoric, {level:.0%}", ALEATORIC, 0.35, high, upper),
        (None, ALEATORIC, 0.35, lower, low),
    ):
        ax.fill_between(grid, below, above, color=color, alpha=alpha, linewidth=0.0, label=label)
    ax.plot(grid, mean, color=EPISTEMIC, label="mean", zorder=3)
    if data is not None:
        ax.scatter(to_array(data[0]), to_array(data[1]), s=7, color=DATA, linewidths=0, label="data", zorder=4)
    if is_new:
        ax.set(xlabel="x", ylabel="y")
        legend_on_top(ax)
    return ax


def draws(x: ArrayLike | Tensor, predictive: Predictive, ax: Axes | None = None, *, n: int = 20) -> Axes:
    """Plot some posterior draws, each as a function of the input.

    Args:
        x: the inputs that were predicted, ``[N]`` or ``[N, 1]``.
        predictive: the prediction at ``x``, one output.
        ax: the axes to draw on; ``None``: those of a new figure.
        n: the maximum number of draws to show, evenly spaced.

    Returns:
        The axes.

    Raises:
        InputError: if there is more than one input or output per row, or ``n`` is less than 1.
    """
    shown = evenly_spaced(predictive.n_draws, check_integer(n, "n", minimum=1))
    order, grid = _sort_inputs(x)
    functions = [_column(function, order) for function in to_array(predictive.draws)[shown]]
    is_new, ax = ax is None, axes_or_new(ax)
    for function in functions:
        ax.plot(grid, function, color=EPISTEMIC, alpha=0.35, linewidth=0.8)
    if is_new:
        ax.set(xlabel="x", ylabel="y")
    return ax


def predicted_vs_observed(p: Predictive, y: ArrayLike | Tensor, ax: Axes | None = None, *, level: float = 0.95) -> Axes:
    """Plot the predictive mean of every row over its observation, with its interval.

    A bar that does not reach the diagonal is an interval that missed; a fraction 1 − ``level`` should. Of more than 300
    rows, 300 are shown, evenly spaced among the sorted observations; the fraction of misses is that of all rows.

    Args:
        p: the prediction, one output per row.
        y: the observed targets, in the shape of ``p.mean``.
        ax: the axes to draw on; ``None``: those of a new figure.
        level: probability inside the bars.

    Returns:
        The axes.

    Raises:
        InputError: if there is more than one output per row, ``y`` does not match, or ``level`` is not between 0 and 1.
    """
    level = check_fraction(level, "level")
    targets = check_real_targets(p, y, "predicted_vs_observed")
    if targets.numel() != len(p):
        raise InputError(f"p must predict one output per row, got shape {list(targets.shape)}")
    observed, mean, lower, upper = (to_array(t).reshape(-1) for t in (targets, p.mean, *p.interval(level)))
    missed = (observed < lower) | (observed > upper)
    rows = np.argsort(observed, kind="stable")[evenly_spaced(len(observed), _MAX_ROWS)]
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


def _sort_inputs(x: ArrayLike | Tensor) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the order that sorts the inputs, and the sorted inputs."""
    flat = to_array(x)
    if flat.ndim > 2 or (flat.ndim == 2 and flat.shape[1] != 1):
        raise InputError(f"x must have one input per row, [N] or [N, 1], got shape {list(flat.shape)}")
    flat = flat.reshape(-1)
    order = np.argsort(flat, kind="stable")
    return order, flat[order]


def _column(values: ArrayLike | Tensor, order: NDArray[np.intp]) -> NDArray[np.float64]:
    flat = to_array(values)
    if flat.size != len(order):
        raise InputError(f"one output per input is needed, {len(order)} in all, got shape {list(flat.shape)}")
    return flat.reshape(-1)[order]
