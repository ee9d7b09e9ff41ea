"""How unsure a model is, what of, and whether its doubts are in the right place."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo import metrics
from credo.errors import InputError
from credo.plots._tools import axes_or_new, check_count, legend_on_top, spread, to_array
from credo.plots.style import ALEATORIC, CYCLE, DASHES, EPISTEMIC, MUTED
from credo.predictive.components import ClassComponents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from torch import Tensor

    from credo.predictive import Predictive

_POINTS = 1000  # of a curve; more cannot be told apart
_STEPS = 200  # more rows than this are averaged in groups of neighbors


def uncertainty_histogram(
    groups: Mapping[str, ArrayLike | Tensor],
    ax: Axes | None = None,
    *,
    bins: int = 30,
    limits: tuple[float, float] | None = None,
    label: str = "predictive entropy (nats)",
) -> Axes:
    """Histograms of an uncertainty over several groups of inputs, such as test images and foreign ones.

    Every group is scaled to area 1 over the same bins, so that groups of different sizes compare.

    Args:
        groups: one uncertainty a row, by the name of the group.
        ax: where to draw; a new figure where ``None``.
        bins: number of bins.
        limits: the range of the bins; by default that of all values.
        label: what the uncertainty is, for the axis.
    """
    from matplotlib.colors import to_rgba

    if not groups:
        raise InputError("groups must hold at least one group of values, got none")
    values = {name: to_array(group).reshape(-1) for name, group in groups.items()}
    for name, group in values.items():
        if not group.size or not np.isfinite(group).all():
            raise InputError(f"groups must hold finite values, got none or others in {name!r}")
    low, high = limits or (min(v.min() for v in values.values()), max(v.max() for v in values.values()))
    edges = np.linspace(low, high if high > low else low + 1.0, check_count("bins", bins) + 1).tolist()
    ax = axes_or_new(ax)
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
    return ax


def risk_coverage(
    losses: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
    uncertainty: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
    ax: Axes | None = None,
    *,
    label: str = "mean loss",
) -> Axes:
    """What it gains to answer only where one is certain: the mean loss of the most certain rows, over their share.

    Two references in gray. Rows taken at random keep the mean loss; the best order, which knows the losses, is the
    lowest curve there can be. A good uncertainty lies near the latter. The key gives the area under each curve,
    :func:`credo.metrics.aurc`.

    Args:
        losses: one loss a row: 0 or 1 for right and wrong, a squared error, …; or several by name, as many as there are
            uncertainties and with their names.
        uncertainty: one uncertainty a row, or several by name.
        ax: where to draw; a new figure where ``None``.
        label: what the losses are, for the axis: ``"error rate"``.
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
        shown = spread(len(risk), _POINTS)
        ax.axhline(risk[-1], color=MUTED, linestyle="--", linewidth=1.0, label=None if i else "random order")
        ax.plot(coverage[shown], risk[shown], ":", color=MUTED, label=None if i else "best order")
    for (name, curve), color, dashes in zip(curves.items(), cycle(CYCLE), cycle(DASHES), strict=False):
        coverage, risk = to_array(curve.coverage), to_array(curve.risk)
        shown = spread(len(risk), _POINTS)
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
    """What the uncertainty of every row is made of, from the surest row to the least sure.

    The height is the whole uncertainty, the variance of a real target or the entropy of a class; it is the sum of its
    aleatoric part, below, and its epistemic part, which more data would remove. Where there are more than a few
    hundred rows, neighbors in that order are averaged.

    Args:
        p: the prediction; targets of several outputs count one by one.
        ax: where to draw; a new figure where ``None``.
    """
    aleatoric, epistemic = to_array(p.aleatoric).reshape(-1), to_array(p.epistemic).reshape(-1)
    total = aleatoric + epistemic
    if not total.size:
        raise InputError("p must hold at least one row, got none")
    if not np.isfinite(total).all():
        raise InputError("p has rows without a finite variance, whose parts cannot be shown; leave them out")
    groups = np.array_split(np.argsort(total, kind="stable"), min(len(total), _STEPS))
    floor = np.array([aleatoric[group].mean() for group in groups])
    top = floor + [epistemic[group].mean() for group in groups]
    edges = np.concatenate([[0], np.cumsum([len(group) for group in groups])]) / len(total)
    share = epistemic.sum() / max(total.sum(), np.finfo(float).tiny)
    ax = axes_or_new(ax)
    ax.stairs(top, edges, baseline=floor, fill=True, color=EPISTEMIC, alpha=0.9, label=f"epistemic ({share:.0%})")
    ax.stairs(floor, edges, fill=True, color=ALEATORIC, alpha=0.55, label=f"aleatoric ({1.0 - share:.0%})")
    ax.stairs(top, edges, color="black", linewidth=0.6, baseline=None)
    unit = "predictive entropy (nats)" if isinstance(p.components, ClassComponents) else "predictive variance"
    ax.set(xlabel="share of rows, most certain first", ylabel=unit, xlim=(0.0, 1.0))
    ax.set_ylim(bottom=0.0, auto=None)
    legend_on_top(ax)
    return ax
