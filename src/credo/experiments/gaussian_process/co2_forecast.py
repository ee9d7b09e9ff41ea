"""A Gaussian process forecast of carbon dioxide over Mauna Loa (Rasmussen & Williams, section 5.4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from credo import metrics
from credo.experiments._shared import CarbonDioxide, carbon_dioxide
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.plots.style import CYCLE, DASHES, DATA, EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.gaussian_process import GaussianProcessRegressor
    from credo.gaussian_process.kernels import Kernel
    from credo.predictive import Predictive

SOURCE = "Rasmussen & Williams 2006, section 5.4.3"
HORIZONS = (5, 10)
PARTS = ("long-term trend", "season", "irregularities over years", "irregularities over weeks")


@dataclass(frozen=True)
class PublishedHyperparameter:
    """A hyperparameter in the units of the book: its initial value, and the value of the book."""

    quantity: str
    initial: float
    book: float


HYPERPARAMETERS = (
    PublishedHyperparameter("trend: amplitude, ppm", 50.0, 66.0),
    PublishedHyperparameter("trend: length scale, years", 50.0, 67.0),
    PublishedHyperparameter("season: amplitude, ppm", 2.0, 2.4),
    PublishedHyperparameter("season: decay time, years", 100.0, 90.0),
    PublishedHyperparameter("season: smoothness within the year", 1.0, 1.3),
    PublishedHyperparameter("irregularities: amplitude, ppm", 0.5, 0.66),
    PublishedHyperparameter("irregularities: length scale, years", 1.0, 1.2),
    PublishedHyperparameter("irregularities: shape α", 1.0, 0.78),
    PublishedHyperparameter("correlated noise: amplitude, ppm", 0.1, 0.18),
    PublishedHyperparameter("correlated noise: length scale, months", 1.2, 1.6),
    PublishedHyperparameter("white noise, ppm", 0.1, 0.19),
)


@experiment(
    "co2-forecast",
    title="Carbon dioxide over Mauna Loa, forecast from 2003 by a Gaussian process",
    reference="Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.3",
    figures=["forecast", "parts"],
)
def run(config: RunConfig) -> Result:
    """Carbon dioxide over Mauna Loa: a Gaussian process fitted to the months up to 2003 forecasts those since.

    What the book shows. A kernel with four parts describes the monthly means: a smooth trend, a season whose shape may
    change, irregularities over several years, and noise, part of which is correlated over about a month. Its eleven
    hyperparameters maximize the evidence. The error bars of a forecast of twenty years widen slowly.

    What is run. The book's kernel, fitted to the book's years, from initial values of the right order of magnitude.
    Every month since is forecast and compared with the measurement, which was not known in 2006. The second figure
    shows the posterior mean of every part. The error bars of single parts are wide and not shown: the data determine
    the sum, but not which part contributes its level.

    What differs. The data are NOAA's as of 2026, with revisions and with a few missing months filled in (550 months,
    the book has 545). The white part of the noise is the observation noise of the regression. A smoke run uses a
    synthetic series of the same kind, 30 years of every third month.

    How to read it. The trend reverts to its mean, and the model has no information on emissions: the forecast is
    accurate for about ten years and then too low, by more than its error bars. Slow irregularities can replace the
    trend, so their α and length scale are poorly determined: other values than the book's have nearly the same
    evidence.
    """
    from credo.gaussian_process import GaussianProcessRegressor
    from credo.gaussian_process.kernels import White

    smoke = config.budget == "smoke"
    series = carbon_dioxide(config)
    past, mean = series.past, float(series.ppm[series.past].mean())
    X, y = series.date[:, None], series.ppm - mean
    config.report("maximizing the evidence")
    *functions, noise = [h.initial for h in HYPERPARAMETERS]
    gp = GaussianProcessRegressor(
        _book_kernel(functions), noise=White(noise), normalize_y=False, device=config.device
    ).fit(X[past], y[past])
    config.report("forecasting")
    forecast, truth = gp.predict_dist(X[~past]), torch.from_numpy(y[~past])

    *functions, noise = [h.book for h in HYPERPARAMETERS]
    rows = [
        Row("log evidence of the past, nats", (gp.log_evidence_,)),
        Row("… with the book's hyperparameters", (gp.log_marginal_likelihood(_book_kernel(functions), noise),)),
    ]
    rows += [
        Row(h.quantity, (value,)) if smoke else Row(h.quantity, (value,), h.book, SOURCE)
        for h, value in zip(HYPERPARAMETERS, _in_book_units(gp), strict=True)
    ]
    ahead = torch.from_numpy(series.date[~past] - series.split)
    for words, within in [
        *((f"first {years} years", ahead < years) for years in HORIZONS),
        (f"all {float(ahead.max()):.0f} years", ahead >= 0.0),
    ]:
        rows += _scores(words, forecast[within], truth[within])
    return Result(
        tuple(rows), {"forecast": _forecast_figure(series, forecast, mean), "parts": _parts_figure(series, gp, mean)}
    )


def _book_kernel(values: Sequence[float]) -> Kernel:
    """The kernel of the book without the white noise, for hyperparameters in the book's units."""
    from credo.gaussian_process.kernels import RBF, Periodic, RationalQuadratic

    a1, l1, a2, l2, smoothness, a3, l3, alpha, a4, months = values
    return (
        a1**2 * RBF(l1)
        + a2**2 * RBF(l2) * Periodic(smoothness, period=1.0, period_bounds="fixed")
        + a3**2 * RationalQuadratic(l3, alpha=alpha)
        + a4**2 * RBF(months / 12.0)
    )


def _in_book_units(gp: GaussianProcessRegressor) -> list[float]:
    """The fitted hyperparameters in the order of ``HYPERPARAMETERS``."""
    values = np.exp(gp.kernel_.theta)
    amplitude = np.array(["amplitude" in h.quantity for h in HYPERPARAMETERS[:-1]])
    values[amplitude] = np.sqrt(values[amplitude])
    values[-1] *= 12.0
    return [*values.tolist(), gp.noise_]


def _scores(words: str, forecast: Predictive, truth: torch.Tensor) -> list[Row]:
    return [
        Row(f"{words}: RMSE, ppm", ((forecast.mean - truth).square().mean().sqrt().item(),)),
        Row(f"{words}: coverage of 95 % intervals", (metrics.coverage(forecast, truth),)),
        Row(f"{words}: log likelihood per month, nats", (forecast.log_prob(truth).mean().item(),)),
    ]


def _forecast_figure(series: CarbonDioxide, forecast: Predictive, mean: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    past, ahead = series.past, series.date[~series.past]
    for ax, center in ((top, forecast.mean + mean), (bottom, torch.zeros_like(forecast.mean))):
        for level, alpha in ((0.95, 0.2), (0.5, 0.3)):
            low, high = (bound - forecast.mean + center for bound in forecast.interval(level))
            ax.fill_between(
                ahead, low, high, color=EPISTEMIC, alpha=alpha, linewidth=0.0, label=f"{level:.0%} interval"
            )
        ax.plot(ahead, center, color=EPISTEMIC, linewidth=0.9, label="forecast")
        ax.axvline(series.split, color=MUTED, linewidth=0.7, linestyle=":")
    style = {"linestyle": "none", "marker": ".", "markersize": 2.5}
    top.plot(series.date[past], series.ppm[past], color=DATA, label="training data", **style)
    top.plot(ahead, series.ppm[~past], color=TRUTH, label="measured", **style)
    bottom.plot(ahead, series.ppm[~past] - mean - forecast.mean.numpy(), color=TRUTH, **style)
    top.set(ylabel="CO₂, ppm", title=f"Forecast from {series.split:.0f}")
    top.legend(loc="upper left")
    shown = series.split - 0.6 * (series.date[-1] - series.split)
    bottom.set(xlabel="year", ylabel="measured − forecast", xlim=(shown, series.date[-1]))
    bottom.xaxis.get_major_locator().set_params(integer=True)
    top.set_ylim(bottom=float(series.ppm[series.date > shown].min()) - 3.0)
    return figure


def _parts_figure(series: CarbonDioxide, gp: GaussianProcessRegressor, mean: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    panels = figure.subplots(2, 2).flat
    dates = series.date[series.past]
    grid = np.linspace(dates[0], dates[-1], 1500)
    for ax, name, part in zip(panels, PARTS, gp.decompose(grid[:, None]), strict=True):
        if name == "season":
            _season_panel(ax, gp, dates)
        else:
            trend = name == PARTS[0]
            ax.plot(grid, part.mean.numpy() + mean * trend, color=EPISTEMIC, linewidth=1.0)
            if trend:
                ax.scatter(dates, series.ppm[series.past], s=3.0, color=MUTED, linewidths=0.0, alpha=0.5, zorder=1)
            ax.set(xlabel="year")
        ax.set(title=name, ylabel="ppm")
    return figure


def _season_panel(ax: Axes, gp: GaussianProcessRegressor, dates: NDArray[np.float64]) -> None:
    """Draw the season of the first, the middle and the last complete year."""
    within = np.linspace(0.0, 1.0, 100)
    first, last = int(np.ceil(dates[0])), int(dates[-1])
    for year, color, dash in zip((first, (first + last) // 2, last), CYCLE, DASHES, strict=False):
        part = gp.decompose((year + within)[:, None])[PARTS.index("season")]
        ax.plot(12.0 * within, part.mean.numpy(), color=color, linestyle=dash, linewidth=1.2, label=str(year))
    ax.set(xlabel="months since the start of the year", xticks=range(0, 13, 3))
    ax.legend(loc="lower left")
