"""How a training run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from credo.errors import InputError
from credo.plots._tools import axes_or_new, legend_on_top
from credo.plots.style import CYCLE, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_STYLES = {
    "NLL": (OKABE_ITO["blue"], "-"),
    "NLL, validation": (OKABE_ITO["blue"], "--"),
    "complexity (KL)": (OKABE_ITO["orange"], "-."),
    "−ELBO": (OKABE_ITO["black"], ":"),
    "−ELBO, validation": (OKABE_ITO["black"], "--"),
}
_NOT_DRAWN = ("epoch", "seconds", "member")
_DECADE = 10.0


def training_curves(history: Sequence[Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """What the fit cost, epoch by epoch, in nats per datum, so that all parts share one axis.

        −ELBO/N = NLL + KL/N

    NLL is the negative log likelihood of the training data under drawn weights; dashed, that of the validation data
    under the whole posterior predictive. The complexity is the KL from the prior, or −log p(w) for a point estimate;
    where there is none, as in maximum likelihood, only the NLL is drawn. Members of an ensemble have a line each. Of a
    model of data, such as a VAE, the dashed line is the bound of the validation data. Of a model without a likelihood,
    such as a GAN, all terms of the history are drawn as they are. The axis is logarithmic where values range over more
    than a decade.

    Args:
        history: ``model.history``, one entry an epoch.
        ax: where to draw; a new figure where ``None``.
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


def _runs(history: Sequence[Mapping[str, float]]) -> list[list[Mapping[str, float]]]:
    """The entries of every member of an ensemble; of any other model, one list with all."""
    if not isinstance(history, Sequence) or not all(_is_entry(entry) for entry in history):
        raise InputError(
            f"history must be that of a model, a list of mappings that have an 'epoch', got {type(history).__name__}"
        )
    if not history:
        raise InputError("history holds no epochs; fit the model first")
    return [list(run) for _, run in groupby(history, key=lambda entry: entry.get("member"))]


def _is_entry(entry: object) -> bool:
    return isinstance(entry, Mapping) and "epoch" in entry


def _curves(run: list[Mapping[str, float]]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """The epochs of a run, and its curves in nats per datum, or as they are where there is no likelihood."""
    keys = list(dict.fromkeys(key for entry in run for key in entry))
    epochs = _column(run, "epoch")
    if "nll" not in keys:
        terms = [key for key in keys if key not in _NOT_DRAWN and key != "lr" and not key.endswith("_lr")]
        return epochs, _finite({key.replace("_", " "): _column(run, key) for key in terms})
    nll, elbo, held_out = (_column(run, key) for key in ("nll", "elbo", "validation_log_likelihood"))
    if not np.isfinite(nll).any():
        raise InputError("history holds no finite 'nll', so there is nothing to draw")
    curves = {"NLL": nll, "NLL, validation": -held_out}
    n_data = 1.0  # a model of data whose terms are per datum
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
    """The number of data N, which ELBO = −N·NLL − KL tells, most exactly where the NLL is large."""
    at = np.nanargmax(np.abs(nll))
    return float(-(elbo[at] + kl[at]) / nll[at]) if nll[at] else np.nan


def _finite(curves: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """The curves that have something to draw."""
    found = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    if not found:
        raise InputError("history holds no terms of a loss that are finite numbers, so there is nothing to draw")
    return found


def _column(run: list[Mapping[str, float]], key: str) -> NDArray[np.float64]:
    values: list[object] = [entry.get(key, np.nan) for entry in run]
    return np.array([value if isinstance(value, Real) else np.nan for value in values], dtype=np.float64)


def _set_scale(ax: Axes, values: NDArray[np.float64]) -> None:
    """Logarithmic where values range over more than a decade; where some are not positive, linear around zero."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = values[np.isfinite(values)]
    typical = float(np.median(np.abs(values)))
    if values.min() > 0.0:
        if values.max() > _DECADE * values.min():
            ax.set_yscale("log")
            # Powers of ten alone would be one or two labels on a short axis, 1-2-5 a crowd on a long one.
            labeled = (1.0, 2.0, 5.0) if values.max() < 3.0 * _DECADE * values.min() else (1.0,)
            ax.yaxis.set_major_locator(LogLocator(subs=labeled))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(NullFormatter())
    elif np.abs(values).max() > _DECADE * typical > 0.0:
        ax.set_yscale("symlog", linthresh=10.0 ** np.round(np.log10(typical)))
