"""MC dropout far from the data: carbon dioxide over Mauna Loa (Gal & Ghahramani 2016, Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import credo
from credo import metrics
from credo._threads import one_thread
from credo.architectures import MLP
from credo.experiments._shared import carbon_dioxide
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.methods.base import Method
    from credo.predictive import Predictive

MONTHS, SHOWN = 200, 300
HALFWAY, FAR = 3.0, 6.0  # in standard deviations of the training dates
NOISE = 0.1
WEIGHT_DECAY = 1e-6
LAYERS = 4
UNITS: dict[Budget, int] = {"full": 1024, "quick": 128, "smoke": 8}
STEPS: dict[Budget, int] = {"full": 20_000, "quick": 2000, "smoke": 3}
LEARNING_RATE: dict[Budget, float] = {"full": 3e-4, "quick": 3e-3, "smoke": 3e-3}
DRAWS: dict[Budget, int] = {"full": 1000, "quick": 500, "smoke": 10}
STANDARD, PROCESS, RELU, TANH = (
    "standard dropout, ReLU",
    "Gaussian process",
    "MC dropout, ReLU, p = 0.1",
    "MC dropout, tanh, p = 0.2",
)


@dataclass(frozen=True, eq=False)
class Series:
    """A standardized series: the past to train on, what followed, and inputs for the figure, all ``[N, 1]``."""

    x: Tensor
    y: Tensor
    x_next: Tensor
    y_next: Tensor

    @property
    def grid(self) -> Tensor:
        """From before the first date to ``FAR``, which is the last row."""
        return torch.linspace(-2.0, FAR, 401)[:, None]


@experiment(
    "dropout-co2",
    title="MC dropout far from the data: carbon dioxide over Mauna Loa",
    reference="Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016, Figure 2 (arXiv:1506.02142)",
    figures=["extrapolation"],
)
def run(config: RunConfig) -> Result:
    """Networks with dropout are trained on 200 months of carbon dioxide over Mauna Loa and predict far beyond them.

    The paper's claim. Far from the data, standard dropout, which uses the mean weights, predicts a value that makes no
    sense, and does so with confidence. MC dropout predicts as badly, but its standard deviation shows that it is
    uncertain, as that of a Gaussian process does. For rectified units the standard deviation increases with the
    distance, for tanh units it stays bounded. The paper shows this as a picture and gives no numbers.

    What is run. The four panels of the figure, on dates and values of mean 0 and standard deviation 1: standard dropout
    and MC dropout of rate 0.1 by the same network with rectified units, MC dropout of rate 0.2 with tanh units, and a
    Gaussian process with a squared exponential kernel that maximizes the evidence. The table has the predictions at a
    date six standard deviations from the mean of the training dates, the dashed line at the right.

    What differs. The paper uses "about 200 data points" of the series and does not say which; ours are the first 200
    months, from March 1958, and the table compares the 100 months after them, too. The networks have the four layers
    of 1,024 units, the rates and the weight decay of 10⁻⁶ of the authors' published configuration; it takes a million
    steps of stochastic gradient descent, we take 20,000 steps of Adam. A quick run has layers of 128 units and 2,000
    steps. The noise of the networks is assumed to have a standard deviation of 0.1. A smoke run uses a synthetic series
    of the same kind.

    What to look for. The claim holds, and so does its limit. The standard deviation of the rectified network is the
    noise of the slopes of a few lines, its mean is far below the trend, and neither the networks nor the Gaussian
    process, which returns to its prior, contain the next 100 months in their intervals. Dropout of these rates keeps
    the networks from fitting most of the seasons, so the assumed noise is too small for them on the training months.
    """
    series = _series(config)
    with one_thread():
        predictions = dict(_predictions(series, config))
    rows = [row for name, found in predictions.items() for row in _measure(name, *found, series)]
    return Result(tuple(rows), {"extrapolation": _figure(series, {n: grid for n, (grid, _, _) in predictions.items()})})


def _series(config: RunConfig) -> Series:
    found = carbon_dioxide(config)
    months = MONTHS if len(found.date) > SHOWN else int(found.past.sum())
    parts: list[Tensor] = []
    for values in (found.date, found.ppm):
        scaled = (values[:SHOWN] - values[:months].mean()) / values[:months].std()
        parts += torch.from_numpy(scaled.astype(np.float32))[:, None].split([months, len(scaled) - months])
    x, x_next, y, y_next = parts
    return Series(x, y, x_next, y_next)


def _predictions(series: Series, config: RunConfig) -> Iterator[tuple[str, tuple[Predictive, Predictive, Predictive]]]:
    """Predictions of every model, in the paper's order: on the grid, on the training months and on the next ones."""
    inputs = (series.grid, series.x, series.x_next)

    def predict(method: Method, samples: int) -> tuple[Predictive, Predictive, Predictive]:
        on_grid, past, following = (method.predict(x, samples=samples, seed=config.seed).cpu() for x in inputs)
        return on_grid, past, following

    config.report("rectified units")
    rectified = _train(series, "relu", 0.1, config)
    yield STANDARD, predict(rectified, 0)
    config.report("Gaussian process")
    yield PROCESS, _process(series, inputs)
    yield RELU, predict(rectified, DRAWS[config.budget])
    config.report("tanh units")
    yield TANH, predict(_train(series, "tanh", 0.2, config), DRAWS[config.budget])


def _train(series: Series, activation: str, rate: float, config: RunConfig) -> Method:
    """Train a network with dropout before all layers but the first.

    A weight decay λ adds λ/2·‖W‖² to half the mean squared error, the prior adds l²/(2N(1 − p))·‖W‖² to 1/σ² of it:
    l² = λN(1 − p)/σ².
    """
    length_scale = math.sqrt(WEIGHT_DECAY * len(series.x) * (1.0 - rate)) / NOISE
    training = TrainingConfig(
        name=activation,
        build=lambda: credo.MCDropout(
            MLP(1, (UNITS[config.budget],) * LAYERS, activation=activation),
            credo.Gaussian(noise=NOISE),
            p={"layers.0.weight": 0.0, "*": rate},
            length_scale=length_scale,
        ),
        epochs=STEPS[config.budget],
        lr=LEARNING_RATE[config.budget],
        batch_size=len(series.x),
    )
    return training.train(series.x, series.y, seed=config.seed, device=config.device)


def _process(series: Series, inputs: tuple[Tensor, ...]) -> tuple[Predictive, Predictive, Predictive]:
    from credo.gaussian_process import GaussianProcessRegressor
    from credo.gaussian_process.kernels import RBF

    gp = GaussianProcessRegressor(1.0 * RBF(0.1), noise="learned", normalize_y=False)
    gp.fit(series.x.numpy(), series.y[:, 0].numpy())
    on_grid, past, following = (gp.predict_dist(x.numpy()) for x in inputs)
    return on_grid, past, following


def _measure(name: str, on_grid: Predictive, past: Predictive, following: Predictive, series: Series) -> Iterator[Row]:
    std = on_grid.std.flatten()
    halfway = int((series.grid[:, 0] - HALFWAY).abs().argmin())
    error = past.mean.flatten() - series.y[:, 0]
    yield Row(f"{name}: RMSE on the training months", (error.square().mean().sqrt().item(),))
    yield Row(f"{name}: mean std on the training months", (past.std.mean().item(),))
    yield Row(f"{name}: std at x = {HALFWAY:g}", (std[halfway].item(),))
    yield Row(f"{name}: std at x = {FAR:g}", (std[-1].item(),))
    yield Row(f"{name}: mean at x = {FAR:g}", (on_grid.mean.flatten()[-1].item(),))
    covered = metrics.coverage(following, series.y_next.reshape(following.mean.shape).to(following.mean.dtype))
    yield Row(f"{name}: coverage of 95 % intervals, next months", (covered,))


def _figure(series: Series, predictions: dict[str, Predictive]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for (name, predictive), ax in zip(predictions.items(), panels.flat, strict=True):
        _panel(ax, series, predictive)
        ax.set_title(name)
    panels[0, 0].set(xlim=(-2.0, FAR + 0.2), ylim=(-5.0, 7.0))
    for ax in panels[-1]:
        ax.set_xlabel("date, standardized")
    for ax in panels[:, 0]:
        ax.set_ylabel("CO₂, standardized")
    panels[0, 0].legend(loc="upper left")
    return figure


def _panel(ax: Axes, series: Series, predictive: Predictive) -> None:
    """Draw the series, and the mean ± 2 standard deviations with a shade for every half of one, as the paper does."""
    x, mean, std = (values.flatten() for values in (series.grid, predictive.mean, predictive.std))
    for half in range(1, 5):
        band = 0.5 * half * std
        ax.fill_between(x, mean - band, mean + band, color=EPISTEMIC, alpha=0.14, linewidth=0.0)
    ax.plot(x, mean, color=EPISTEMIC, linewidth=1.2, label="mean ± 2 std")
    ax.plot(series.x[:, 0], series.y[:, 0], color=TRUTH, linewidth=0.9, label="training data")
    ax.plot(series.x_next[:, 0], series.y_next[:, 0], color=MUTED, linewidth=0.7, label="measured later")
    ax.axvline(series.x[-1].item(), color=EPISTEMIC, linestyle="--", linewidth=0.8)
    ax.axvline(FAR, color=TRUTH, linestyle="--", linewidth=0.8)
