"""Predictive distributions of nine Gaussian basis functions, narrowing as data come.

What the book shows. Data from sin(2πx) with Gaussian noise are learned with nine Gaussian basis functions. After
N = 1, 2, 4 and 25 points the figure shows the predictive mean and one standard deviation around it: narrow at the data,
wide elsewhere, and narrower everywhere as N grows. It gives no numbers.

What is run. The same. The table has the mean of the predictive standard deviation over [0, 1], its epistemic part, and
the share of new observations inside the 95 % interval, averaged over data sets drawn anew.

What differs. The book does not give the precisions or the width of the basis functions for this figure. Here the
centers are spread evenly over [0, 1], one width apart, β is the true one, 1/0.3², and α = 1, chosen so that draws from
the prior are of the size of the sine; a constant stands beside the nine. The random numbers differ too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo import plots
from credo.experiments._sine import NOISE, SineData, at_random, grid, truth
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import DATA, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.linear import BayesianLinearRegression

ALPHA, BETA = 1.0, NOISE**-2
STAGES = (1, 2, 4, 25)
REPEATS: dict[Effort, int] = {"full": 1000, "quick": 200, "smoke": 10}
ONE_STD = 0.6827


@experiment(
    title="Predictive distributions of nine Gaussian basis functions",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.8",
    figures=["predictive"],
)
def run(setting: Setting) -> Result:
    """Learn the first points of one data set, and measure coverage over many."""
    from matplotlib.figure import Figure

    random = np.random.default_rng(setting.seed)
    data = at_random(max(STAGES), random)
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    for n, ax in zip(STAGES, panels.flat, strict=True):
        setting.report(f"N = {n}")
        p = model().fit(data.first(n).x, data.first(n).y).predict_dist(grid())
        covered = np.mean([_coverage(n, random) for _ in range(REPEATS[setting.effort])])
        rows += [
            Row(f"N = {n}: predictive std, mean over [0, 1]", (p.std.mean().item(),)),
            Row(f"N = {n}: epistemic std, mean over [0, 1]", (p.epistemic.sqrt().mean().item(),)),
            Row(f"N = {n}: 95 % intervals cover, over data sets", (float(covered),)),
        ]
        plots.predictive_bands(grid(), p, ax, level=ONE_STD)
        panel(ax, data.first(n))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return Result(tuple(rows), {"predictive": figure})


def model() -> BayesianLinearRegression:
    """Nine Gaussians and a constant, with known precisions."""
    from credo.linear import BayesianLinearRegression, GaussianBasis

    basis = GaussianBasis(np.linspace(0.0, 1.0, 9).tolist(), include_bias=True)
    return BayesianLinearRegression(basis, weight_precision=ALPHA, noise_precision=BETA, fit_intercept=False)


def panel(ax: Axes, data: SineData) -> None:
    """The true curve and the points so far."""
    ax.plot(grid()[:, 0], truth(grid()), color=TRUTH, linestyle="--", linewidth=1.0, label="truth", zorder=3)
    ax.scatter(data.x[:, 0], data.y, s=16, color=DATA, label="data", zorder=4)
    ax.set(title=f"N = {len(data.y)}", xlim=(0.0, 1.0), ylim=(-2.2, 2.2), xlabel="x", ylabel="y")
    ax.label_outer()


def _coverage(n: int, random: np.random.Generator) -> float:
    data, new = at_random(n, random), at_random(20, random)
    lower, upper = (bound.numpy() for bound in model().fit(data.x, data.y).predict_dist(new.x).interval(0.95))
    return float(np.mean((lower < new.y) & (new.y < upper)))
