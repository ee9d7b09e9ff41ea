"""Sequential Bayesian linear regression (Bishop 3.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from credo.conjugate import GaussianBelief
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.plots.style import DATA, EPISTEMIC, MUTED, TRUTH
from credo.seeding import derive, generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.linear import BayesianLinearRegression

WEIGHTS = np.array([-0.3, 0.5])
NOISE, ALPHA, POINTS = 0.2, 2.0, 20
STAGES = (0, 1, 2, 20)
LINES = 6
GRID = np.linspace(-1.0, 1.0, 201)


@experiment(
    "sequential-linear-regression",
    title="Sequential Bayesian linear regression: the posterior after 0, 1, 2 and 20 points",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.7",
    figures=["sequence"],
)
def run(config: RunConfig) -> Result:
    """Bayesian linear regression, one data point after another.

    What the book shows. Data come from y = −0.3 + 0.5x + ε with x uniform on [−1, 1] and ε of standard deviation 0.2.
    The weights have the prior N(0, α⁻¹I) with α = 2, and β = 25 is known. After 0, 1, 2 and 20 points the figure shows
    the likelihood of the newest point, the posterior over (w₀, w₁), and six lines drawn from it. The posterior starts
    as a circle, becomes a ridge with the first point and ends concentrated at the true weights. The book gives no
    numbers.

    What is run. The same, with ``partial_fit`` on one point after another. The table has the standard deviations of the
    posterior, the distance of its mean from the truth in units of them, and the difference between the sequential
    posterior and that of one batch.

    What differs. The random numbers.
    """
    from matplotlib.figure import Figure

    random = np.random.default_rng(config.seed)
    x = random.uniform(-1.0, 1.0, size=(POINTS, 1))
    y = WEIGHTS[0] + WEIGHTS[1] * x[:, 0] + NOISE * random.normal(size=POINTS)
    figure = Figure(figsize=(6.6, 8.6), layout="constrained")
    panels = figure.subplots(len(STAGES), 3)
    model, rows = _model(), []
    for n in range(POINTS + 1):
        if n:
            model.partial_fit(x[n - 1 : n], y[n - 1 : n])
        if n in STAGES:
            prior = GaussianBelief.isotropic(2, ALPHA, torch.zeros(0, dtype=torch.float64))
            posterior = model.posterior if n else prior
            likelihood, space, lines = panels[STAGES.index(n)]
            _draw_likelihood(likelihood, x[n - 1, 0] if n else None, y[n - 1])
            _draw_weight_space(space, posterior)
            _draw_data_space(lines, posterior, derive(config.seed, n), x[:n, 0], y[:n])
            likelihood.set_ylabel(f"N = {n}\n\n$w_1$")
            rows += _measure(n, posterior)
    difference = float(np.abs(model.coef_ - _model().fit(x, y).coef_).max())
    rows.append(Row("largest difference of the weights from one batch of 20", (difference,)))
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


def _measure(n: int, posterior: GaussianBelief) -> list[Row]:
    scales = posterior.covariance.diagonal().sqrt()
    error = posterior.mean - torch.from_numpy(WEIGHTS)
    distance = float((posterior.cholesky.mT @ error).norm())
    return [
        Row(f"N = {n}: posterior std of w₀", (float(scales[0]),)),
        Row(f"N = {n}: posterior std of w₁", (float(scales[1]),)),
        Row(f"N = {n}: distance of the truth from the mean, in posterior stds", (distance,)),
    ]


def _draw_likelihood(ax: Axes, x: float | None, y: float) -> None:
    """Draw p(y | x, w) of the newest point as a function of the weights; empty before the first point."""
    if x is None:
        ax.text(0.5, 0.5, "no data yet", ha="center", va="center", color=MUTED, transform=ax.transAxes)
    else:
        w0, w1 = np.meshgrid(GRID, GRID)
        density = np.exp(-0.5 * ((y - w0 - w1 * x) / NOISE) ** 2)
        ax.contourf(GRID, GRID, density, levels=20, cmap="Blues")
        ax.plot(*WEIGHTS, "+", color=TRUTH, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="$w_0$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def _draw_weight_space(ax: Axes, posterior: GaussianBelief) -> None:
    w0, w1 = np.meshgrid(GRID, GRID)
    density = posterior.distribution.log_prob(torch.from_numpy(np.stack([w0, w1], axis=-1))).exp()
    ax.contourf(GRID, GRID, density, levels=20, cmap="Blues")
    ax.plot(*WEIGHTS, "+", color=TRUTH, markersize=9, markeredgewidth=2)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="$w_0$", ylabel="$w_1$")
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def _draw_data_space(
    ax: Axes, posterior: GaussianBelief, seed: int, x: NDArray[np.float64], y: NDArray[np.float64]
) -> None:
    for w0, w1 in posterior.sample(LINES, generator(torch.device("cpu"), seed)).tolist():
        ax.plot(GRID, w0 + w1 * GRID, color=EPISTEMIC, linewidth=0.9)
    ax.plot(GRID, WEIGHTS[0] + WEIGHTS[1] * GRID, color=TRUTH, linestyle="--", linewidth=0.9)
    ax.scatter(x, y, s=12, color=DATA, zorder=3)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xlabel="x", ylabel="y", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
