"""Posteriors over weights, all weights of a network at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError, unknown_name
from credo.methods import Method
from credo.plots._tools import axes_or_new, check_count, legend_on_top, spread, to_array
from credo.plots.style import CYCLE, DASHES, EPISTEMIC, TRUTH
from credo.posteriors import MeanField, Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from credo.functional import Draw

_KINDS = ("density", "cdf")
_DECIBELS = r"signal-to-noise ratio $10\,\log_{10}\,|\mu|/\sigma$ (dB)"
_FLOOR = 1e-4  # −40 dB; a weight below is noise, however far
_POINTS = 1000  # of a curve; more cannot be told apart


def weight_histogram(
    posterior: Posterior | Method | Mapping[str, Posterior | Method],
    ax: Axes | None = None,
    *,
    samples: int = 1,
    bins: int = 100,
    seed: int = 0,
) -> Axes:
    """The density of all weights of a network, drawn from the posterior.

    One posterior is shown by its draws and, beside them, by its means, which are narrower where weights are unsure.
    Several are compared by their draws.

    Args:
        posterior: a posterior, a model that has one, or several of them by name.
        ax: where to draw; a new figure where ``None``.
        samples: how many draws of all weights to pool; 0 shows the posterior means.
        bins: number of bins, over the range of all weights.
        seed: for the draws.

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015, Figure 3.
    """
    if samples < 0:
        raise InputError(f"samples must be at least 0, got {samples}")
    series = _series(posterior, samples, seed)
    low, high = min(w.min() for w in series.values()), max(w.max() for w in series.values())
    edges = np.linspace(low, high if high > low else low + 1.0, check_count("bins", bins) + 1)
    ax = axes_or_new(ax)
    for i, ((name, weights), color, dashes) in enumerate(
        zip(series.items(), cycle(CYCLE), cycle(DASHES), strict=False)
    ):
        density = np.histogram(weights, edges, density=True)[0]
        ax.stairs(density, edges, color=color, linestyle=dashes, linewidth=1.3, label=name)
        if i == 0:
            ax.stairs(density, edges, color=color, alpha=0.2, fill=True)
    ax.set(xlabel="weight", ylabel="density", xlim=(edges[0], edges[-1]))
    ax.set_ylim(bottom=0.0, auto=None)
    legend_on_top(ax)
    return ax


def snr(
    posterior: Posterior | Method,
    ax: Axes | None = None,
    *,
    kind: str = "density",
    cut: float | None = 0.75,
    bins: int = 100,
) -> Axes:
    """The signal-to-noise ratio 10 log₁₀ |μ|/σ of every weight, in decibels.

    Weights left of 0 dB are less sure than they are large; pruning takes them from the left. Weights below −40 dB,
    such as pruned ones, are off the axis but count: the CDF starts at their share.

    Args:
        posterior: a mean-field posterior, or a model that has one.
        ax: where to draw; a new figure where ``None``.
        kind: ``"density"`` or ``"cdf"``.
        cut: mark the ratio below which this share of the weights lies; ``None`` marks nothing.
        bins: number of bins of the density.

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015, Figure 4.
    """
    if kind not in _KINDS:
        raise unknown_name("kind", kind, _KINDS)
    if cut is not None and not 0.0 < cut < 1.0:
        raise InputError(f"cut must lie between 0 and 1, or be None, got {cut}")
    check_count("bins", bins)
    source = _posterior_of(posterior)
    if not isinstance(source, MeanField):
        found = type(source).__name__
        raise InputError(f"a mean-field posterior is needed, such as that of BayesByBackprop, got {found}")
    ratio = np.sort(_flat(source.snr()))
    heard = ratio > _FLOOR
    if not heard.any():
        raise InputError("no weight has a signal-to-noise ratio above −40 dB, so there is nothing to show")
    decibels = 10.0 * np.log10(ratio[heard])
    ax = axes_or_new(ax)
    if kind == "density":
        density, edges = np.histogram(decibels, bins, density=True)
        density *= heard.mean()
        ax.stairs(density, edges, fill=True, color=EPISTEMIC, alpha=0.4)
        ax.stairs(density, edges, color=EPISTEMIC, linewidth=1.3)
    else:
        rank = np.flatnonzero(heard) + 1.0
        shown = spread(len(decibels), _POINTS)
        ax.step(decibels[shown], rank[shown] / len(ratio), where="post", color=EPISTEMIC)
    ax.set(xlabel=_DECIBELS, ylabel="density" if kind == "density" else "CDF")
    ax.set_ylim(bottom=0.0, auto=None)
    if cut is not None and (at := np.quantile(ratio, cut)) > _FLOOR:
        label = f"{cut:.0%} of the weights are below"
        ax.axvline(10.0 * np.log10(at), color=TRUTH, linestyle="--", linewidth=1.2, label=label)
        legend_on_top(ax)
    return ax


def _series(
    posterior: Posterior | Method | Mapping[str, Posterior | Method], samples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """All weights of what is to be shown, by name."""
    if isinstance(posterior, Mapping):
        if not posterior:
            raise InputError("posterior must hold at least one model, got none")
        return {name: _weights(_posterior_of(source), samples, seed) for name, source in posterior.items()}
    source = _posterior_of(posterior)
    means = {"posterior means": _flat(source.mean())}
    return {"posterior draws": _weights(source, samples, seed), **means} if samples else means


def _weights(posterior: Posterior, samples: int, seed: int) -> NDArray[np.float64]:
    return _flat(posterior.sample(samples, seed) if samples else posterior.mean())


def _flat(draw: Draw) -> NDArray[np.float64]:
    flat = np.concatenate([to_array(weights).reshape(-1) for weights in draw.values()])
    if not np.isfinite(flat).all():
        raise InputError("the posterior must hold finite weights, got some that are NaN or infinite")
    return flat


def _posterior_of(source: object) -> Posterior:
    """The posterior itself, or that of a model."""
    found = source if isinstance(source, Posterior) else getattr(source, "posterior", None)
    if isinstance(found, Posterior):
        return found
    hint = "; pass one of its members" if hasattr(source, "members") else ""
    raise InputError(f"a posterior over weights, or a model that has one, is needed, got {type(source).__name__}{hint}")
