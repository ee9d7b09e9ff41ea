"""Bayes by Backprop regression (Blundell et al. 2015, Figure 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

import credo
from credo import metrics
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import Curve, blundell_curve
from credo.experiments._shared import add_legend
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import ALEATORIC, DATA, EPISTEMIC, MUTED, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.predictive import Predictive

OBSERVATIONS = 400
NEW_OBSERVATIONS = 2000
QUARTILES = (0.25, 0.5, 0.75)
EPOCH_FRACTION: dict[Budget, float] = {"full": 1.0, "quick": 1 / 3, "smoke": 0.01}
DRAWS: dict[Budget, int] = {"full": 1000, "quick": 200, "smoke": 20}
PAPER_FIGURE = {"Bayes by Backprop": "diverges", "standard network": "goes to zero"}


def _methods() -> list[TrainingConfig]:
    """The two networks of the figure, which differ in the posterior only."""
    return [
        TrainingConfig(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                MLP(1, (100, 100), 2),
                likelihood=credo.Gaussian(noise="heteroscedastic"),
                prior=credo.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)),
            ),
            epochs=3000,
            lr=1e-2,
            batch_size=100,
        ),
        TrainingConfig(
            name="standard network",
            build=lambda: credo.MAP(
                MLP(1, (100, 100), 2),
                likelihood=credo.Gaussian(noise="heteroscedastic"),
                prior=credo.Normal(0.0, 1e3),  # wide enough for maximum likelihood
            ),
            epochs=1000,
            lr=1e-2,
            batch_size=100,
        ),
    ]


@experiment(
    "bbb-regression",
    title="Uncertainty outside the data: Bayes by Backprop and a standard network",
    reference="Blundell et al., Weight uncertainty in neural networks, ICML 2015, Figure 5 (arXiv:1505.05424)",
    figures=["curves"],
)
def run(config: RunConfig) -> Result:
    """Two networks fit a curve on [0, ½] and predict on [−0.2, 1.2].

    The paper's claim. Where there are no data, an ordinary network "reduces the variance to zero and chooses to fit a
    particular function", while under Bayes by Backprop "the confidence intervals diverge, reflecting there being many
    possible extrapolations" (section 5.2). The paper shows this as a picture and gives no numbers.

    What is run. Both networks are trained on y = x + 0.3 sin 2π(x + ε) + 0.3 sin 4π(x + ε) + ε, ε ~ N(0, 0.02), with
    the paper's conditional Gaussian loss: the network outputs a mean and a variance. One has the posterior of Bayes by
    Backprop under the paper's scale-mixture prior, the other is trained by maximum likelihood. The table has the width
    of the interquartile range where there are data and where there are none, and the log likelihood of new
    observations.

    What differs. The paper does not state whether 0.02 is a variance. It is a standard deviation here: as a variance it
    would scatter observations down to −0.7, and the paper's figure shows none below −0.4. Nor does the paper state the
    network, the prior's constants, the range of the inputs or their number. We chose two layers of 100 rectified units,
    constants from the grid that the paper searched on MNIST, the range in its figure and 400 observations, by looking
    at this figure for two seeds: rectified units extrapolate as in the paper, tanh units of the same size did not.
    """
    from matplotlib.figure import Figure

    curve = blundell_curve(OBSERVATIONS, config.seed)
    new = blundell_curve(NEW_OBSERVATIONS, derive(config.seed, 1))
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    with one_thread():
        for training, ax in zip(_methods(), panels, strict=True):
            config.report(training.name)
            method = training.train(
                curve.x, curve.y, seed=config.seed, epoch_fraction=EPOCH_FRACTION[config.budget], device=config.device
            )
            on_grid, on_new = (
                method.predict(x, samples=DRAWS[config.budget], seed=config.seed).cpu() for x in (curve.x_grid, new.x)
            )
            rows += _measure(training.name, curve, on_grid, metrics.nll(on_new, new.y), PAPER_FIGURE[training.name])
            _panel(ax, training.name, curve, on_grid)
    panels[0].set(ylabel="y", xlim=(-0.2, 1.2), ylim=(-0.9, 1.7))
    add_legend(figure, panels[0])
    return Result(tuple(rows), {"curves": figure})


def _measure(name: str, curve: Curve, on_grid: Predictive, nll: float, shape: str) -> list[Row]:
    x = curve.x_grid.squeeze(-1)
    on_data, far = (x >= 0.0) & (x <= 0.5), x >= 0.8
    lower, _, upper = on_grid.quantile(QUARTILES).squeeze(-1)
    near, away = ((upper - lower)[rows].mean().item() for rows in (on_data, far))
    low, high = on_grid[~on_data].interval(0.95)
    truth = curve.function(curve.x_grid[~on_data])
    covered = ((truth >= low) & (truth <= high)).double().mean().item()
    return [
        Row(f"{name}: interquartile range on the data, 0 to 0.5", (near,)),
        Row(f"{name}: interquartile range far from the data, 0.8 to 1.2", (away,)),
        Row(f"{name}: ratio of the two, far / on the data", (away / near,), note=f"in the paper's figure it {shape}"),
        Row(f"{name}: coverage of the true curve by 95 % intervals, outside the data", (covered,)),
        Row(f"{name}: NLL of new observations on the data, nats", (nll,)),
    ]


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    """Draw the data, the median, and the interquartile ranges of drawn functions and of observations."""
    x = curve.x_grid.squeeze(-1)
    lower, median, upper = on_grid.quantile(QUARTILES).squeeze(-1)
    low, high = torch.quantile(on_grid.draws.squeeze(-1), torch.tensor([0.25, 0.75]), dim=0)
    for label, color, below, above in (
        ("middle half of the drawn functions", EPISTEMIC, low, high),
        ("… and of the observations", ALEATORIC, high, torch.maximum(high, upper)),
        (None, ALEATORIC, torch.minimum(low, lower), low),
    ):
        ax.fill_between(x, below, above, color=color, alpha=0.4, linewidth=0.0, label=label)
    ax.plot(x, curve.function(x), color=MUTED, linestyle=":", linewidth=1.0, label="true curve")
    ax.scatter(curve.x, curve.y, s=10, color=DATA, marker="x", linewidths=0.5, alpha=0.6, label="training data")
    ax.plot(x, median, color=TRUTH, label="median")
    ax.set(title=name, xlabel="x")
