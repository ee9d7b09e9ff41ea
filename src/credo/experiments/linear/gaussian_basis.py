"""Predictive distributions and posterior functions of Gaussian basis functions (Bishop 3.8 and 3.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo import plots
from credo.experiments._shared import SINE_NOISE, SineData, add_legend, sine, sine_at_random, unit_grid
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import DATA, EPISTEMIC, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.linear import BayesianLinearRegression

ALPHA, BETA = 1.0, SINE_NOISE**-2
STAGES = (1, 2, 4, 25)
COVERAGE_DATA_SETS: dict[Budget, int] = {"full": 1000, "quick": 200, "smoke": 10}
FUNCTIONS_SHOWN = 6
DRAWS: dict[Budget, int] = {"full": 5000, "quick": 5000, "smoke": 200}
ONE_STD_LEVEL = 0.6827


@experiment(
    "gaussian-basis-predictive",
    title="Predictive distributions of nine Gaussian basis functions",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.8",
    figures=["predictive"],
)
def predictive(config: RunConfig) -> Result:
    """Predictive distributions of nine Gaussian basis functions, for more and more data.

    What the book shows. Data from sin(2πx) with Gaussian noise are fitted with nine Gaussian basis functions. After N =
    1, 2, 4 and 25 points the figure shows the predictive mean and one standard deviation around it: narrow at the data,
    wide elsewhere, and narrower everywhere as N grows. The book gives no numbers.

    What is run. The same. The table has the mean of the predictive standard deviation over [0, 1], its epistemic part,
    and the coverage of 95 % intervals for new observations, averaged over many data sets.

    What differs. The book does not give the precisions or the width of the basis functions for this figure. Here the
    centers are spread evenly over [0, 1], one width apart, β is the true one, 1/0.3², and α = 1, so that draws from the
    prior have about the size of the sine. A constant is added to the nine. The random numbers differ too.
    """
    from matplotlib.figure import Figure

    random = np.random.default_rng(config.seed)
    data = sine_at_random(max(STAGES), random)
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    for n, ax in zip(STAGES, panels.flat, strict=True):
        config.report(f"N = {n}")
        p = _model().fit(data.first(n).x, data.first(n).y).predict_dist(unit_grid())
        covered = np.mean([_coverage(n, random) for _ in range(COVERAGE_DATA_SETS[config.budget])])
        rows += [
            Row(f"N = {n}: predictive std, mean over [0, 1]", (p.std.mean().item(),)),
            Row(f"N = {n}: epistemic std, mean over [0, 1]", (p.epistemic.sqrt().mean().item(),)),
            Row(f"N = {n}: coverage of 95 % intervals, over data sets", (float(covered),)),
        ]
        plots.predictive_bands(unit_grid(), p, ax, level=ONE_STD_LEVEL)
        _panel(ax, data.first(n))
    add_legend(figure, panels[0, 0])
    return Result(tuple(rows), {"predictive": figure})


@experiment(
    "gaussian-basis-samples",
    title="Functions drawn from the posterior of nine Gaussian basis functions",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.9",
    figures=["functions"],
)
def samples(config: RunConfig) -> Result:
    """Functions drawn from the posterior of nine Gaussian basis functions.

    What the book shows. For the data and the model of Figure 3.8, after N = 1, 2, 4 and 25 points, functions drawn from
    the posterior over the weights. They agree where there are data only, and they show what error bars do not: the
    values of one function at neighboring inputs are correlated. The book gives no numbers.

    What is run. The same. The table has the spread of the drawn functions over [0, 1], beside the closed form, and the
    correlation of the values of a function at inputs 0.1 apart.

    What differs. As in gaussian-basis-predictive; the data are the same as there.
    """
    from matplotlib.figure import Figure

    data = sine_at_random(max(STAGES), np.random.default_rng(config.seed))
    x = unit_grid(201)
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    for n, ax in zip(STAGES, panels.flat, strict=True):
        fitted = _model().set_params(random_state=derive(config.seed, n) % 2**32).fit(data.x[:n], data.y[:n])
        functions = fitted.sample_y(x, DRAWS[config.budget])
        exact = fitted.predict_dist(x).epistemic.sqrt().mean().item()
        correlation = np.corrcoef(functions[90], functions[110])[0, 1]
        rows += [
            Row(f"N = {n}: std of the drawn functions, mean over [0, 1]", (float(functions.std(axis=1).mean()),)),
            Row(f"N = {n}: the same in closed form", (exact,)),
            Row(f"N = {n}: correlation of f(0.45) and f(0.55)", (float(correlation),)),
        ]
        for k, function in enumerate(functions[:, :FUNCTIONS_SHOWN].T):
            ax.plot(x[:, 0], function, color=EPISTEMIC, linewidth=0.9, label="draws" if k == 0 else None)
        _panel(ax, data.first(n))
    add_legend(figure, panels[0, 0])
    return Result(tuple(rows), {"functions": figure})


def _model() -> BayesianLinearRegression:
    """Nine Gaussian basis functions and a constant, with known precisions."""
    from credo.linear import BayesianLinearRegression, GaussianBasis

    basis = GaussianBasis(np.linspace(0.0, 1.0, 9).tolist(), include_bias=True)
    return BayesianLinearRegression(basis, weight_precision=ALPHA, noise_precision=BETA, fit_intercept=False)


def _panel(ax: Axes, data: SineData) -> None:
    """Draw the true curve and the data."""
    ax.plot(unit_grid()[:, 0], sine(unit_grid()), color=TRUTH, linestyle="--", linewidth=1.0, label="truth", zorder=3)
    ax.scatter(data.x[:, 0], data.y, s=16, color=DATA, label="data", zorder=4)
    ax.set(title=f"N = {len(data.y)}", xlim=(0.0, 1.0), ylim=(-2.2, 2.2), xlabel="x", ylabel="y")
    ax.label_outer()


def _coverage(n: int, random: np.random.Generator) -> float:
    data, new = sine_at_random(n, random), sine_at_random(20, random)
    lower, upper = (bound.numpy() for bound in _model().fit(data.x, data.y).predict_dist(new.x).interval(0.95))
    return float(np.mean((lower < new.y) & (new.y < upper)))
