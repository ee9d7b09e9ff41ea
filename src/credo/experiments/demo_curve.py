"""The demo's regression: a noisy sine with a gap in its inputs, by three methods side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import plots
from credo.architectures import MLP
from credo.datasets import Curve, sine_with_gap
from credo.experiments.recipe import Recipe
from credo.plots.style import MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

NOISE = 0.1


@dataclass(frozen=True)
class CurveRow:
    """One method on the curve.

    Attributes:
        method: its name.
        log_likelihood: mean log density of new observations where there were data, in nats.
        coverage: share of those observations inside the 95 % interval.
        aleatoric: standard deviation of the noise that it found.
        epistemic_on_data: root mean square epistemic standard deviation where there were data.
        epistemic_in_gap: the same inside the gap.
        coverage_in_gap: share of new observations from inside the gap that its 95 % interval holds.
        seconds: training time.
    """

    method: str
    log_likelihood: float
    coverage: float
    aleatoric: float
    epistemic_on_data: float
    epistemic_in_gap: float
    coverage_in_gap: float
    seconds: float


@dataclass(frozen=True)
class CurveResult:
    """The rows of the table, and the figure."""

    rows: list[CurveRow]
    figure: Figure


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


def run(seed: int, effort: float, samples: int, report: Callable[[str], None]) -> CurveResult:
    """Train every recipe, measure it on new observations, and draw its bands."""
    from matplotlib.figure import Figure

    curve = sine_with_gap(noise=NOISE, seed=seed)
    fresh = sine_with_gap(n=1000, noise=NOISE, seed=seed + 1)
    hidden_x, hidden_y = _observations_in_gap(curve, 1000, seed + 2)
    chosen = recipes()
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(chosen), sharex=True, sharey=True)
    rows = []
    for recipe, ax in zip(chosen, panels, strict=True):
        report(f"curve: {recipe.name}")
        trained = recipe.train(curve.x, curve.y, seed=seed, effort=effort)
        on_data, in_gap, on_grid = (
            trained.method.predict(x, samples=samples, seed=seed) for x in (fresh.x, hidden_x, curve.x_grid)
        )
        rows.append(
            CurveRow(
                method=recipe.name,
                log_likelihood=on_data.log_prob(fresh.y).mean().item(),
                coverage=_coverage(on_data, fresh.y),
                aleatoric=on_data.aleatoric.mean().sqrt().item(),
                epistemic_on_data=on_data.epistemic.mean().sqrt().item(),
                epistemic_in_gap=in_gap.epistemic.mean().sqrt().item(),
                coverage_in_gap=_coverage(in_gap, hidden_y),
                seconds=trained.seconds,
            )
        )
        _panel(ax, recipe.name, curve, on_grid)
    panels[0].set(ylabel="y", ylim=(-2.1, 2.1), xlim=(float(curve.x_grid[0]), float(curve.x_grid[-1])))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return CurveResult(rows, figure)


def _observations_in_gap(curve: Curve, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """New observations ``[n, 1]`` of the same function with the same noise, where the training data have none."""
    low, high = curve.gap or (0.0, 0.0)
    x = torch.linspace(low, high, n)[:, None]
    return x, curve.function(x) + curve.noise(x) * torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))


def _coverage(predictive: Predictive, y: Tensor, level: float = 0.95) -> float:
    lower, upper = predictive.interval(level)
    return ((y >= lower) & (y <= upper)).float().mean().item()


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    if curve.gap is not None:
        ax.axvspan(*curve.gap, color=MUTED, alpha=0.12, linewidth=0.0, label="no data")
    plots.predictive_bands(curve.x_grid, on_grid, ax, data=(curve.x, curve.y))
    truth = curve.function(curve.x_grid)
    ax.plot(curve.x_grid.squeeze(-1), truth.squeeze(-1), color=TRUTH, linestyle="--", linewidth=1.0, label="truth")
    ax.set(title=name, xlabel="x")
