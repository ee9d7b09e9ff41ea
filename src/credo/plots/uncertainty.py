"""Figures of uncertainty: its distribution, its parts, and whether it ranks the errors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo import metrics
from credo._arguments import check_integer
from credo.errors import InputError
from credo.plots._tools import axes_or_new, evenly_spaced, legend_on_top, to_array
from credo.plots.style import ALEATORIC, CYCLE, DASHES, EPISTEMIC, MUTED
from credo.predictive.components import ClassComponents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from torch import Tensor

    from credo.predictive import Predictive

_MAX_POINTS = 1000  # of a curve
_MAX_STEPS = 200  # more rows than this are averaged in groups of neighbors


def uncertainty_histogram(
    groups: Mapping[str, ArrayLike | Tensor],
    ax: Axes | None = None,
    *,
    bins: int = 30,
    limits: tuple[float, float] | None = None,
    label: str = "predictive entropy (nats)",
) -> Axes:
    """Plot histograms of an uncertainty for several groups of inputs, such as test images and unfamiliar ones.

    Every histogram has area 1 over the same bins, so that groups of different sizes can be compared.

    Args:
        groups: one uncertainty per row, by the name of the group.
        ax: the axes to draw on; ``None``: those of a new figure, with a legend.
        bins: the number of bins.
        limits: the range of the bins; ``None``: that of all values.
        label: the label of the x axis.

    Returns:
        The axes.

    Raises:
        InputError: if a group is empty or not finite, or ``bins`` is less than 1.
    """
    from matplotlib.colors import to_rgba

    if not groups:
        raise InputError("groups must hold at least one group of values, got none")
    values = {name: to_array(group).reshape(-1) for name, group in groups.items()}
    for name, group in values.items():
        if not group.size or not np.isfinite(group).all():
            raise InputError(f"groups must hold finite values, but {name!r} is empty or has NaN or infinite values")
    low, high = limits or (min(v.min() for v in values.values()), max(v.max() for v in values.values()))
    edges = np.linspace(low, high if high > low else low + 1.0, check_integer(bins, "bins", minimum=1) + 1).tolist()
    is_new, ax = ax is None, axes_or_new(ax)
    for (name, group), color in zip(values.items(), cycle(CYCLE), strict=False):
        ax.hist(
            group,
            edges,
            density=True,
            histtype="stepfilled",
            facecolor=to_rgba(color, 0.25),
            edgecolor=color,
            linewidth=1.2,
            label=name,
        )
    ax.set(xlabel=label, ylabel="density", xlim=(edges[0], edges[-1]))
    if is_new:
        legend_on_top(ax)
    return ax


def risk_coverage(
    losses: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
    uncertainty: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
    ax: Axes | None = None,
    *,
    label: str = "mean loss",
) -> Axes:
    """Plot the mean loss of the most certain rows over their fraction (a risk–coverage curve).

    Two references are gray: rows in random order, with a constant mean loss, and rows sorted by their loss, the lowest
    possible curve. A good uncertainty is close to the latter. The legend contains the area under each curve,
    :func:`credo.metrics.aurc`.

    Args:
        losses: one loss per row: 0 or 1 for right and wrong, a squared error, …; or several by name, with the names
            of the uncertainties.
        uncertainty: one uncertainty per row, or several by name.
        ax: the axes to draw on; ``None``: those of a new figure.
        label: the label of the y axis, such as ``"error rate"``.

    Returns:
        The axes.

    Raises:
        InputError: if names or lengths do not match, or values are NaN.
    """
    named = dict(uncertainty) if isinstance(uncertainty, Mapping) else {"uncertainty": uncertainty}
    loss_of = dict(losses) if isinstance(losses, Mapping) else dict.fromkeys(named, losses)
    if not named or loss_of.keys() != named.keys():
        raise InputError(f"losses and uncertainty must have the same names, got {list(loss_of)} and {list(named)}")
    curves = {name: metrics.risk_coverage(loss_of[name], values) for name, values in named.items()}
    areas = {name: metrics.aurc(loss_of[name], values) for name, values in named.items()}
    oracles = [
        metrics.risk_coverage(loss, loss) for loss in (losses.values() if isinstance(losses, Mapping) else [losses])
    ]
    ax = axes_or_new(ax)
    for i, oracle in enumerate(oracles):
        coverage, risk = to_array(oracle.coverage), to_array(oracle.risk)
        shown = evenly_spaced(len(risk), _MAX_POINTS)
        ax.axhline(risk[-1], color=MUTED, linestyle="--", linewidth=1.0, label=None if i else "random order")
        ax.plot(coverage[shown], risk[shown], ":", color=MUTED, label=None if i else "best order")
    for (name, curve), color, dashes in zip(curves.items(), cycle(CYCLE), cycle(DASHES), strict=False):
        coverage, risk = to_array(curve.coverage), to_array(curve.risk)
        shown = evenly_spaced(len(risk), _MAX_POINTS)
        ax.plot(
            coverage[shown],
            risk[shown],
            color=color,
            linestyle=dashes,
            marker="." if len(shown) == 1 else None,
            label=f"{name} (AURC {areas[name]:.3g})",
        )
    ax.set(xlabel="coverage, most certain rows first", ylabel=label, xlim=(0.0, 1.0))
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]), auto=None)
    legend_on_top(ax)
    return ax


def uncertainty_parts(p: Predictive, ax: Axes | None = None) -> Axes:
    """Plot the aleatoric and epistemic parts of the uncertainty of every row, most certain rows first.

    The height is the total uncertainty, the variance of a real target or the entropy of a class: the sum of the
    aleatoric part, below, and the epistemic part, which more data would reduce. With more than 200 rows, neighbors in
    that order are averaged.

    Args:
        p: the prediction; several outputs of a row are counted separately.
        ax: the axes to draw on; ``None``: those of a new figure.

    Returns:
        The axes.

    Raises:
        InputError: if ``p`` is empty or has an infinite variance.
    """
    aleatoric, epistemic = to_array(p.aleatoric).reshape(-1), to_array(p.epistemic).reshape(-1)
    total = aleatoric + epistemic
    if not total.size:
        raise InputError("p must hold at least one row, got none")
    if not np.isfinite(total).all():
        raise InputError("p has rows of infinite variance, whose parts cannot be shown; leave them out")
    groups = np.array_split(np.argsort(total, kind="stable"), min(len(total), _MAX_STEPS))
    floor = np.array([aleatoric[group].mean() for group in groups])
    top = floor + [epistemic[group].mean() for group in groups]
    edges = np.concatenate([[0], np.cumsum([len(group) for group in groups])]) / len(total)
    fraction = epistemic.sum() / max(total.sum(), np.finfo(float).tiny)
    ax = axes_or_new(ax)
    ax.stairs(top, edges, baseline=floor, fill=True, color=EPISTEMIC, alpha=0.9, label=f"epistemic ({fraction:.0%})")
    ax.stairs(floor, edges, fill=True, color=ALEATORIC, alpha=0.55, label=f"aleatoric ({1.0 - fraction:.0%})")
    ax.stairs(top, edges, color="black", linewidth=0.6, baseline=None)
    unit = "predictive entropy (nats)" if isinstance(p.components, ClassComponents) else "predictive variance"
    ax.set(xlabel="fraction of rows, most certain first", ylabel=unit, xlim=(0.0, 1.0))
    ax.set_ylim(bottom=0.0, auto=None)
    legend_on_top(ax)
    return ax
