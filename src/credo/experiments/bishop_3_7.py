"""A line is learned point by point: likelihood, posterior, and lines drawn from it.

What the book shows. Data come from y = −0.3 + 0.5x + ε with x uniform on [−1, 1] and ε of standard deviation 0.2. The
weights have the prior N(0, α⁻¹I) with α = 2, and β = 25 is known. After 0, 1, 2 and 20 points the figure shows the
likelihood of the newest point, the posterior over (w₀, w₁), and six lines drawn from it: the posterior starts round,
is cut down to a ridge by the first point and ends as a spot on the true weights. It gives no numbers.

What is run. The same, with ``partial_fit`` on one point after another. The table has the posterior's standard
deviations and its distance from the truth in units of them, and how far the sequential posterior is from that of one
batch.

What differs. The random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from credo.conjugate import GaussianBelief
from credo.experiments.registry import Result, Row, Setting, experiment
from credo.plots.style import DATA, EPISTEMIC, MUTED, TRUTH
from credo.seeding import derive, generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.linear import BayesianLinearRegression

WEIGHTS = np.array([-0.3, 0.5])
NOISE, ALPHA, POINTS = 0.2, 2.0, 20
SHOWN = (0, 1, 2, 20)
LINES = 6
GRID = np.linspace(-1.0, 1.0, 201)


@experiment(
    title="A posterior over lines, sharpened point by point",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.7",
    figures=["sequence"],
)
def run(setting: Setting) -> Result:
    """Take the points one at a time, and draw the belief at four of the stages."""
    from matplotlib.figure import Figure

    random = np.random.default_rng(setting.seed)
    x = random.uniform(-1.0, 1.0, size=(POINTS, 1))
    y = WEIGHTS[0] + WEIGHTS[1] * x[:, 0] + NOISE * random.normal(size=POINTS)
    figure = Figure(figsize=(6.6, 8.6), layout="constrained")
    panels = figure.subplots(len(SHOWN), 3)
    model, rows = _model(), []
    for n in range(POINTS + 1):
        if n:
            model.partial_fit(x[n - 1 : n], y[n - 1 : n])
        if n in SHOWN:
            belief = model.posterior if n else GaussianBelief.isotropic(2, ALPHA, torch.zeros(0, dtype=torch.float64))
            likelihood, space, lines = panels[SHOWN.index(n)]
            _likelihood(likelihood, x[n - 1, 0] if n else None, y[n - 1])
            _weight_space(space, belief)
            _data_space(lines, belief, derive(setting.seed, n), x[:n, 0], y[:n])
            likelihood.set_ylabel(f"N = {n}\n\n$w_1$")
            rows += _measure(n, belief)
    apart = float(np.abs(model.coef_ - _model().fit(x, y).coef_).max())
    rows.append(Row("largest difference to one batch of 20, in the weights", (apart,)))
    for ax, title in zip(panels[0], ("likelihood", "prior / posterior", "data space"), strict=True):
        ax.set_title(title)
    return Result(tuple(rows), {"sequence": figure})


def _model() -> BayesianLinearRegression:
    from credo.linear import BayesianLinearRegression, Polynomial

    return BayesianLinearRegression(
        Polynomial(1, include_bias=True),
        weight_precision=ALPHA,
        noise_precision=NOISE**-2,
        fit_intercept=False,
    )


def _measure(n: int, belief: GaussianBelief) -> list[Row]:
    scales = belief.covariance.diagonal().sqrt()
    off = belief.mean - torch.from_numpy(WEIGHTS)
    distance = float((belief.cholesky.mT @ off).norm())
    return [
        Row(f"N = {n}: posterior std of w₀", (float(scales[0]),)),
        Row(f"N = {n}: posterior std of w₁", (float(scales[1]),)),
        Row(f"N = {n}: distance of the truth from the mean, in posterior stds", (distance,)),
    ]


def _likelihood(ax: Axes, x: float | None, y: float) -> None:
    """p(y | x, w) of the newest point over the weights; empty before the first."""
    if x is None:
        ax.text(0.5, 0.5, "no data yet", ha="center", va="center", color=MUTED, transform=ax.transAxes)
    else:
        w0, w1 = np.meshgrid(GRID, GRID)
        density = np.exp(-0.5 * ((y - w0 - w1 * x) / NOISE) ** 2)
        ax.contourf(GRID, GRID, density, levels=20, cmap="Blues")
        ax.plot(*WEIGHTS, "+", color=TRUTH, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="$w_0$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def _weight_space(ax: Axes, belief: GaussianBelief) -> None:
    w0, w1 = np.meshgrid(GRID, GRID)
    density = belief.distribution.log_prob(torch.from_numpy(np.stack([w0, w1], axis=-1))).exp()
    ax.contourf(GRID, GRID, density, levels=20, cmap="Blues")
    ax.plot(*WEIGHTS, "+", color=TRUTH, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="$w_0$", ylabel="$w_1$")
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def _data_space(ax: Axes, belief: GaussianBelief, seed: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    for w0, w1 in belief.sample(LINES, generator(torch.device("cpu"), seed)).tolist():
        ax.plot(GRID, w0 + w1 * GRID, color=EPISTEMIC, linewidth=0.9)
    ax.plot(GRID, WEIGHTS[0] + WEIGHTS[1] * GRID, color=TRUTH, linestyle="--", linewidth=0.9)
    ax.scatter(x, y, s=12, color=DATA, zorder=3)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="x", ylabel="y", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
