"""Regression on one input: bands of belief, and draws from the posterior as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError
from credo.plots._tools import axes_or_new, check_count, draw_band, spread, to_array
from credo.plots.style import ALEATORIC, DATA, EPISTEMIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from credo.predictive import Predictive


def predictive_bands(
    x: ArrayLike | Tensor,
    predictive: Predictive,
    ax: Axes | None = None,
    *,
    level: float = 0.95,
    data: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
) -> Axes:
    """The predictive mean with its two uncertainties apart.

    The inner band holds ``level`` of the drawn functions: what the model does not know (epistemic). The outer edge is
    ``predictive.interval(level)``, which should hold ``level`` of new observations; what lies between the two is
    what the noise adds (aleatoric).

    Args:
        x: the inputs that were predicted, ``[N]`` or ``[N, 1]``.
        predictive: the prediction at ``x``, one output.
        ax: where to draw; a new figure where ``None``.
        level: probability inside each band, between 0 and 1.
        data: observations ``(x, y)`` to show as dots.
    """
    inner = draw_band(predictive, level)
    order, grid = _ascending(x)
    mean = _column(predictive.mean, order)
    low, high = _column(inner[0], order), _column(inner[1], order)
    lower, upper = (_column(bound, order) for bound in predictive.interval(level))
    # Quantiles of a few draws may stray past the mixture's own.
    lower, upper = np.minimum(lower, low), np.maximum(upper, high)
    ax = axes_or_new(ax)
    for label, color, alpha, below, above in (
        (f"epistemic, {level:.0%}", EPISTEMIC, 0.4, low, high),
        (f"with aleatoric, {level:.0%}", ALEATORIC, 0.35, high, upper),
        (None, ALEATORIC, 0.35, lower, low),
    ):
        ax.fill_between(grid, below, above, color=color, alpha=alpha, linewidth=0.0, label=label)
    ax.plot(grid, mean, color=EPISTEMIC, label="mean", zorder=3)
    if data is not None:
        ax.scatter(to_array(data[0]), to_array(data[1]), s=7, color=DATA, linewidths=0, label="data", zorder=4)
    return ax


def draws(x: ArrayLike | Tensor, predictive: Predictive, ax: Axes | None = None, *, n: int = 20) -> Axes:
    """Some posterior draws, each one function of the input.

    Args:
        x: the inputs that were predicted, ``[N]`` or ``[N, 1]``.
        predictive: the prediction at ``x``, one output.
        ax: where to draw; a new figure where ``None``.
        n: how many draws to show at most, spread evenly over those there are.
    """
    shown = spread(predictive.n_draws, check_count("n", n))
    order, grid = _ascending(x)
    functions = [_column(function, order) for function in to_array(predictive.draws)[shown]]
    ax = axes_or_new(ax)
    for function in functions:
        ax.plot(grid, function, color=EPISTEMIC, alpha=0.35, linewidth=0.8)
    return ax


def _ascending(x: ArrayLike | Tensor) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The order that sorts the inputs, and the inputs in it."""
    flat = to_array(x)
    if flat.ndim > 2 or (flat.ndim == 2 and flat.shape[1] != 1):
        raise InputError(f"x must be one input a row, [N] or [N, 1], got {list(flat.shape)}")
    flat = flat.reshape(-1)
    order = np.argsort(flat, kind="stable")
    return order, flat[order]


def _column(values: ArrayLike | Tensor, order: NDArray[np.intp]) -> NDArray[np.float64]:
    flat = to_array(values)
    if flat.size != len(order):
        raise InputError(f"a band needs one output for each of {len(order)} inputs, got shape {list(flat.shape)}")
    return flat.reshape(-1)[order]
