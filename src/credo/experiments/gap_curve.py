"""A noisy sine with a gap in its inputs, by three methods side by side: the picture of the README.

What it shows. The epistemic uncertainty should open where there are no data, and the aleatoric one should find the
noise, whose standard deviation is 0.1. No paper gives numbers for this curve.

What is run. Bayes by Backprop, MC dropout and a deep ensemble learn 100 points. The table has the log likelihood and
the coverage of 95 % intervals for new observations where there were data, both parts of the uncertainty, and the
coverage inside the gap. The settings were chosen by looking at these measures: an illustration, not a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import Curve, sine_with_gap
from credo.experiments.recipe import Recipe
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import MUTED, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.predictive import Predictive

NOISE = 0.1
SHARE_OF_EPOCHS: dict[Effort, float] = {"full": 1.0, "quick": 1.0, "smoke": 0.01}
DRAWS: dict[Effort, int] = {"full": 1000, "quick": 200, "smoke": 20}


def recipes() -> list[Recipe]:
    """Three methods for 100 points, full batch; all learn the noise.

    A mean-field posterior pays for every weight that it does not need, so its network is narrow.
    """
    return [
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                MLP(1, (10,), activation="tanh"),
                likelihood=credo.Gaussian(noise="learned"),
                prior=credo.Normal(0.0, 3.0),
            ),
            epochs=2000,
            lr=3e-2,
            batch_size=100,
        ),
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                MLP(1, (100, 100), dropout=0.1), likelihood=credo.Gaussian(noise="learned"), length_scale=0.3
            ),
            epochs=2000,
            lr=1e-2,
            batch_size=100,
        ),
        Recipe(
            name="Deep ensemble",
            build=lambda: credo.DeepEnsemble(
                MLP(1, (50, 50)),
                members=5,
                base=credo.MAP,
                likelihood=credo.Gaussian(noise="learned"),
                prior=credo.Normal(0.0, 10.0),
            ),
            epochs=500,
            lr=1e-2,
            batch_size=100,
        ),
    ]


@experiment(
    title="A noisy sine with a gap in the data, by three methods",
    reference="an illustration of this library",
    figures=["curve"],
)
def run(setting: Setting) -> Result:
    """Train every recipe, measure it on new observations, and draw its bands."""
    from matplotlib.figure import Figure

    seed = setting.seed
    curve = sine_with_gap(noise=NOISE, seed=seed)
    fresh = sine_with_gap(n=1000, noise=NOISE, seed=derive(seed, 1))
    hidden_x, hidden_y = _observations_in_gap(curve, 1000, derive(seed, 2))
    chosen = recipes()
    figure = Figure(figsize=(3.3 * len(chosen), 3.2), layout="constrained")
    panels = figure.subplots(1, len(chosen), sharex=True, sharey=True)
    rows: list[Row] = []
    with one_thread():
        for recipe, ax in zip(chosen, panels, strict=True):
            setting.report(recipe.name)
            method = recipe.train(
                curve.x, curve.y, seed=seed, effort=SHARE_OF_EPOCHS[setting.effort], device=setting.device
            )
            on_data, in_gap, on_grid = (
                method.predict(x, samples=DRAWS[setting.effort], seed=seed).cpu()
                for x in (fresh.x, hidden_x, curve.x_grid)
            )
            measured = {
                "log likelihood on the data, nats": -metrics.nll(on_data, fresh.y),
                "95 % intervals cover, on the data": metrics.coverage(on_data, fresh.y),
                "95 % intervals cover, in the gap": metrics.coverage(in_gap, hidden_y),
                "aleatoric std": on_data.aleatoric.mean().sqrt().item(),
                "epistemic std on the data": on_data.epistemic.mean().sqrt().item(),
                "epistemic std in the gap": in_gap.epistemic.mean().sqrt().item(),
            }
            rows += [Row(f"{recipe.name}: {quantity}", (value,)) for quantity, value in measured.items()]
            _panel(ax, recipe.name, curve, on_grid)
    panels[0].set(ylabel="y", ylim=(-2.1, 2.1), xlim=(float(curve.x_grid[0]), float(curve.x_grid[-1])))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return Result(tuple(rows), {"curve": figure})


def _observations_in_gap(curve: Curve, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """New observations ``[n, 1]`` of the same function with the same noise, where the training data have none."""
    low, high = curve.gap or (0.0, 0.0)
    x = torch.linspace(low, high, n)[:, None]
    return x, curve.function(x) + curve.noise(x) * torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    if curve.gap is not None:
        ax.axvspan(*curve.gap, color=MUTED, alpha=0.12, linewidth=0.0, label="no data")
    plots.predictive_bands(curve.x_grid, on_grid, ax, data=(curve.x, curve.y))
    truth = curve.function(curve.x_grid)
    ax.plot(curve.x_grid.squeeze(-1), truth.squeeze(-1), color=TRUTH, linestyle="--", linewidth=1.0, label="truth")
    ax.set(title=name, xlabel="x")
