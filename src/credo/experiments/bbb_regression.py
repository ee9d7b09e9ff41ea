"""Two networks fit a curve on [0, ½] and are asked about [−0.2, 1.2].

The paper's claim. Where there are no data, an ordinary network "reduces the variance to zero and chooses to fit a
particular function", while under Bayes by Backprop "the confidence intervals diverge, reflecting there being many
possible extrapolations" (section 5.2). The paper shows this as a picture and gives no numbers.

What is run. Both networks learn y = x + 0.3 sin 2π(x + ε) + 0.3 sin 4π(x + ε) + ε, ε ~ N(0, 0.02), with the paper's
conditional Gaussian loss: the network outputs a mean and a variance. One has the posterior of Bayes by Backprop
under the paper's scale-mixture prior, the other is fitted by maximum likelihood. The table measures the width of the
interquartile range where there are data and where there are none, and the log likelihood of new observations.

What differs. The paper does not say whether 0.02 is a variance. It is a standard deviation here: as a variance it
would scatter observations down to −0.7, and the paper's figure shows none below −0.4. Nor does the paper state the
network, the prior's constants, the range of the inputs or their number: two layers of 100 rectified units, constants
from the grid that the paper searched on MNIST, the range in its figure and 400 observations are our choice, made by
looking at this figure for two seeds: rectified units extrapolate as in the paper, tanh units of the same size did not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

import credo
from credo import metrics
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import Curve, blundell_curve
from credo.experiments.recipe import Recipe
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import ALEATORIC, DATA, EPISTEMIC, MUTED, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

OBSERVATIONS = 400
NEW_OBSERVATIONS = 2000
QUARTILES = (0.25, 0.5, 0.75)
SHARE_OF_EPOCHS: dict[Effort, float] = {"full": 1.0, "quick": 1 / 3, "smoke": 0.01}
DRAWS: dict[Effort, int] = {"full": 1000, "quick": 200, "smoke": 20}
IN_THE_PAPER = {"Bayes by Backprop": "diverges", "standard network": "goes to zero"}


def recipes() -> list[Recipe]:
    """The two networks of the figure, alike but for the posterior."""
    return [
        Recipe(
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
        Recipe(
            name="standard network",
            build=lambda: credo.MAP(
                MLP(1, (100, 100), 2),
                likelihood=credo.Gaussian(noise="heteroscedastic"),
                prior=credo.Normal(0.0, 1e3),  # so wide that this is maximum likelihood
            ),
            epochs=1000,
            lr=1e-2,
            batch_size=100,
        ),
    ]


@experiment(
    title="Where there are no data: Bayes by Backprop against a standard network",
    reference="Blundell et al., Weight uncertainty in neural networks, ICML 2015, Figure 5 (arXiv:1505.05424)",
    figures=["curves"],
)
def run(setting: Setting) -> Result:
    """Train both networks, measure what they believe inside and outside the data, and draw it."""
    from matplotlib.figure import Figure

    curve = blundell_curve(OBSERVATIONS, setting.seed)
    new = blundell_curve(NEW_OBSERVATIONS, derive(setting.seed, 1))
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    with one_thread():
        for recipe, ax in zip(recipes(), panels, strict=True):
            setting.report(recipe.name)
            method = recipe.train(
                curve.x, curve.y, seed=setting.seed, effort=SHARE_OF_EPOCHS[setting.effort], device=setting.device
            )
            on_grid, on_new = (
                method.predict(x, samples=DRAWS[setting.effort], seed=setting.seed).cpu() for x in (curve.x_grid, new.x)
            )
            rows += _measure(recipe.name, curve, on_grid, metrics.nll(on_new, new.y), IN_THE_PAPER[recipe.name])
            _panel(ax, recipe.name, curve, on_grid)
    _finish(figure, panels[0])
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
        Row(f"{name}: share of the true curve beyond the data inside the 95 % interval", (covered,)),
        Row(f"{name}: NLL of new observations on the data, nats", (nll,)),
    ]


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    """Training data as crosses, the median, and two interquartile ranges: of drawn functions, and of observations."""
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


def _finish(figure: Figure, first: Axes) -> None:
    first.set(ylabel="y", xlim=(-0.2, 1.2), ylim=(-0.9, 1.7))
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
