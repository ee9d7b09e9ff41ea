"""Figures of models: training curves, and posteriors over weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from credo._arguments import check_fraction, check_integer, check_option
from credo.errors import InputError
from credo.methods import Method
from credo.plots._tools import axes_or_new, evenly_spaced, legend_on_top, to_array
from credo.plots.style import CYCLE, DASHES, EPISTEMIC, OKABE_ITO, TRUTH
from credo.posteriors import MeanField, Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from credo.functional import Draw

_STYLES = {
    "NLL": (OKABE_ITO["blue"], "-"),
    "NLL, validation": (OKABE_ITO["blue"], "--"),
    "complexity (KL)": (OKABE_ITO["orange"], "-."),
    "−ELBO": (OKABE_ITO["black"], ":"),
    "−ELBO, validation": (OKABE_ITO["black"], "--"),
}
_NOT_DRAWN = ("epoch", "seconds", "member")
_DECADE = 10.0
_KINDS = ("density", "cdf")
_SNR_LABEL = r"signal-to-noise ratio $10\,\log_{10}\,|\mu|/\sigma$ (dB)"
_MIN_SNR = 1e-4  # −40 dB; weights below are not shown
_MAX_POINTS = 1000  # of a curve


def training_curves(history: Sequence[Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Plot the loss and its terms per epoch, in nats per datum.

        −ELBO/N = NLL + KL/N

    NLL is the negative log likelihood of the training data under drawn weights; the dashed line is that of the
    validation data under the posterior predictive. The complexity is the KL from the prior, or −log p(w) for a point
    estimate; without it, as in maximum likelihood, only the NLL is shown. Each member of an ensemble has a line. For a
    generative model with a likelihood, such as a VAE, the dashed line is the bound of the validation data. For a model
    without a likelihood, such as a GAN, all terms of the history are shown unchanged. The axis is logarithmic if values
    range over more than a decade.

    Args:
        history: ``model.history``, one entry per epoch.
        ax: the axes to draw on; ``None``: those of a new figure.

    Returns:
        The axes.

    Raises:
        InputError: if ``history`` is empty or not that of a model.
    """
    from matplotlib.ticker import MaxNLocator

    runs = [_curves(run) for run in _runs(history)]
    ax = axes_or_new(ax)
    for i, (epochs, curves) in enumerate(runs):
        for name, values in curves.items():
            color, dashes = _STYLES.get(name) or (CYCLE[list(curves).index(name) % len(CYCLE)], "-")
            ax.plot(
                epochs,
                values,
                color=color,
                linestyle=dashes,
                linewidth=1.5 if len(runs) == 1 else 0.8,
                marker="." if len(epochs) == 1 else None,
                label=None if i else name,
            )
    _set_scale(ax, np.concatenate([values for _, curves in runs for values in curves.values()]))
    ax.set(xlabel="epoch", ylabel="nats per datum" if "nll" in history[0] else "")
    ax.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
    legend_on_top(ax)
    return ax


def weight_histogram(
    posterior: Posterior | Method | Mapping[str, Posterior | Method],
    ax: Axes | None = None,
    *,
    samples: int = 1,
    bins: int = 100,
    seed: int = 0,
) -> Axes:
    """Plot the density of all weights of a network, drawn from the posterior.

    One posterior is shown by its draws and by its means. Several are compared by their draws.

    Args:
        posterior: a posterior, a model that has one, or several of them by name.
        ax: the axes to draw on; ``None``: those of a new figure.
        samples: the number of draws of all weights; 0 shows the posterior means.
        bins: the number of bins, over the range of all weights.
        seed: of the draws.

    Returns:
        The axes.

    Raises:
        InputError: if there is no posterior over weights, or an option is not valid.

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015, Figure 3.
    """
    series = _series(posterior, check_integer(samples, "samples", minimum=0), seed)
    low, high = min(w.min() for w in series.values()), max(w.max() for w in series.values())
    edges = np.linspace(low, high if high > low else low + 1.0, check_integer(bins, "bins", minimum=1) + 1)
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
    """Plot the signal-to-noise ratio 10 log₁₀ |μ|/σ of all weights, in decibels.

    Below 0 dB the standard deviation of a weight exceeds its mean; pruning removes the weights of the lowest ratios.
    Weights below −40 dB, such as pruned ones, are not shown but counted: the CDF starts at their fraction.

    Args:
        posterior: a mean-field posterior, or a model that has one.
        ax: the axes to draw on; ``None``: those of a new figure.
        kind: ``"density"`` or ``"cdf"``.
        cut: marks the ratio below which this fraction of the weights lies; ``None`` marks nothing.
        bins: the number of bins of the density.

    Returns:
        The axes.

    Raises:
        InputError: if the posterior is not mean-field, or an option is not valid.

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015, Figure 4.
    """
    check_option(kind, "kind", _KINDS)
    if cut is not None:
        cut = check_fraction(cut, "cut")
    bins = check_integer(bins, "bins", minimum=1)
    source = _posterior_of(posterior)
    if not isinstance(source, MeanField):
        found = type(source).__name__
        raise InputError(f"snr needs a mean-field posterior, such as that of BayesByBackprop, got {found}")
    ratio = np.sort(_flat(source.snr()))
    shown = ratio > _MIN_SNR
    if not shown.any():
        raise InputError("no weight has a signal-to-noise ratio above −40 dB, so there is nothing to plot")
    decibels = 10.0 * np.log10(ratio[shown])
    ax = axes_or_new(ax)
    if kind == "density":
        density, edges = np.histogram(decibels, bins, density=True)
        density *= shown.mean()
        ax.stairs(density, edges, fill=True, color=EPISTEMIC, alpha=0.4)
        ax.stairs(density, edges, color=EPISTEMIC, linewidth=1.3)
    else:
        rank = np.flatnonzero(shown) + 1.0
        points = evenly_spaced(len(decibels), _MAX_POINTS)
        ax.step(decibels[points], rank[points] / len(ratio), where="post", color=EPISTEMIC)
    ax.set(xlabel=_SNR_LABEL, ylabel="density" if kind == "density" else "CDF")
    ax.set_ylim(bottom=0.0, auto=None)
    if cut is not None and (at := np.quantile(ratio, cut)) > _MIN_SNR:
        label = f"{cut:.0%} of the weights are below"
        ax.axvline(10.0 * np.log10(at), color=TRUTH, linestyle="--", linewidth=1.2, label=label)
        legend_on_top(ax)
    return ax


def _runs(history: Sequence[Mapping[str, float]]) -> list[list[Mapping[str, float]]]:
    """Return the entries of each member of an ensemble; for other models, one list with all."""
    if isinstance(history, Sequence) and any(isinstance(entry, Mapping) and "iteration" in entry for entry in history):
        raise InputError(
            "history is that of a sampler, which has no epochs: plot one of its numbers, such as "
            "[entry['log_density'] for entry in model.history], and see model.summary() for the convergence"
        )
    if not isinstance(history, Sequence) or not all(_is_entry(entry) for entry in history):
        raise InputError(
            f"history must be model.history, a list of mappings with an 'epoch', got {type(history).__name__}"
        )
    if not history:
        raise InputError("history has no epochs; fit the model first")
    return [list(run) for _, run in groupby(history, key=lambda entry: entry.get("member"))]


def _is_entry(entry: object) -> bool:
    return isinstance(entry, Mapping) and "epoch" in entry


def _curves(run: list[Mapping[str, float]]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return the epochs of a run, and its curves in nats per datum, or unchanged if there is no likelihood."""
    keys = list(dict.fromkeys(key for entry in run for key in entry))
    epochs = _column(run, "epoch")
    if "nll" not in keys:
        terms = [key for key in keys if key not in _NOT_DRAWN and key != "lr" and not key.endswith("_lr")]
        return epochs, _finite({key.replace("_", " "): _column(run, key) for key in terms})
    nll, elbo, held_out = (_column(run, key) for key in ("nll", "elbo", "validation_log_likelihood"))
    if not np.isfinite(nll).any():
        raise InputError("history has no finite 'nll', so there is nothing to plot")
    curves = {"NLL": nll, "NLL, validation": -held_out}
    n_data = 1.0  # a generative model, whose terms are per datum
    if "kl" in keys:
        kl = _column(run, "kl") + np.nan_to_num(_column(run, "weight_kl"))
        n_data = _count(nll, kl, elbo)
        curves |= {"complexity (KL)": kl / n_data} if np.any(kl != 0.0) else {}
    if "kl" not in keys or "complexity (KL)" in curves:
        curves["−ELBO"] = -elbo / n_data
    if np.isclose(n_data, 1.0):
        del curves["NLL, validation"]
        curves["−ELBO, validation"] = -_column(run, "validation_elbo")
    return epochs, _finite(curves)


def _count(nll: NDArray[np.float64], kl: NDArray[np.float64], elbo: NDArray[np.float64]) -> float:
    """Return the number of data N from ELBO = −N·NLL − KL, at the epoch where |NLL| is largest."""
    at = np.nanargmax(np.abs(nll))
    return float(-(elbo[at] + kl[at]) / nll[at]) if nll[at] else np.nan


def _finite(curves: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return the curves with finite values."""
    found = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not found:
        raise InputError("history has no finite terms of a loss, so there is nothing to plot")
    return found


def _column(run: list[Mapping[str, float]], key: str) -> NDArray[np.float64]:
    values: list[object] = [entry.get(key, np.nan) for entry in run]
    return np.array([value if isinstance(value, Real) else np.nan for value in values], dtype=np.float64)


def _set_scale(ax: Axes, values: NDArray[np.float64]) -> None:
    """Use a logarithmic axis if values range over more than a decade; linear around zero if some are not positive."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = values[np.isfinite(values)]
    typical = float(np.median(np.abs(values)))
    if values.min() > 0.0:
        if values.max() > _DECADE * values.min():
            ax.set_yscale("log")
            # Powers of ten would be too few labels on a short axis, 1-2-5 too many on a long one.
            labeled = (1.0, 2.0, 5.0) if values.max() < 3.0 * _DECADE * values.min() else (1.0,)
            ax.yaxis.set_major_locator(LogLocator(subs=labeled))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(NullFormatter())
    elif np.abs(values).max() > _DECADE * typical > 0.0:
        ax.set_yscale("symlog", linthresh=10.0 ** np.round(np.log10(typical)))


def _series(
    posterior: Posterior | Method | Mapping[str, Posterior | Method], samples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Return all weights to show, by name."""
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
        raise InputError("the posterior has weights that are NaN or infinite")
    return flat


def _posterior_of(source: object) -> Posterior:
    """Return a posterior, or that of a model."""
    found = source if isinstance(source, Posterior) else getattr(source, "posterior", None)
    if isinstance(found, Posterior):
        return found
    hint = "; pass one of its members" if hasattr(source, "members") else ""
    raise InputError(f"expected a posterior over weights or a model with one, got {type(source).__name__}{hint}")
