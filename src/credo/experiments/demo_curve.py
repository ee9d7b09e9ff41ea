"""The demo's regression: a noisy sine with a gap in its inputs, by three methods side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        epistemic_in_gap: the same in the middle half of the gap.
        seconds: training time.
    """

    method: str
    log_likelihood: float
    coverage: float
    aleatoric: float
    epistemic_on_data: float
    epistemic_in_gap: float
    seconds: float


@dataclass(frozen=True)
class CurveResult:
    """The rows of the table, and the figure."""

    rows: list[CurveRow]
    figure: Figure


def recipes() -> list[Recipe]:
    """Three methods for 100 points on a line, full batch; all learn the noise."""
    return [
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                MLP(1, (10,), activation="tanh"),
                likelihood=credo.Gaussian(noise="learned"),
                prior=credo.Normal(0.0, 2.0),
            ),
            epochs=2000,
            lr=1e-2,
            batch_size=100,
        ),
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                MLP(1, (100, 100), dropout=0.1), likelihood=credo.Gaussian(noise="learned"), p=None
            ),
            epochs=2000,
            lr=1e-2,
            batch_size=100,
        ),
        Recipe(
            name="Deep ensemble",
            build=lambda: credo.DeepEnsemble(MLP(1, (50, 50)), members=5, likelihood=credo.Gaussian(noise="learned")),
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
    chosen = recipes()
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(chosen), sharex=True, sharey=True)
    rows = []
    for recipe, ax in zip(chosen, panels, strict=True):
        report(f"curve: {recipe.name}")
        trained = recipe.train(curve.x, curve.y, seed=seed, effort=effort)
        on_data = trained.method.predict(fresh.x, samples=samples, seed=seed)
        on_grid = trained.method.predict(curve.x_grid, samples=samples, seed=seed)
        rows.append(_measure(recipe.name, trained.seconds, curve, fresh, on_data, on_grid))
        _panel(ax, recipe.name, curve, on_grid)
    panels[0].set(ylabel="y", ylim=(-2.6, 2.6), xlim=(float(curve.x_grid[0]), float(curve.x_grid[-1])))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return CurveResult(rows, figure)


def _measure(
    name: str, seconds: float, curve: Curve, fresh: Curve, on_data: Predictive, on_grid: Predictive
) -> CurveRow:
    assert curve.gap is not None
    low, high = curve.gap
    margin = (high - low) / 4.0
    inside = ((curve.x_grid > low + margin) & (curve.x_grid < high - margin)).squeeze(-1)
    lower, upper = on_data.interval(0.95)
    return CurveRow(
        method=name,
        log_likelihood=on_data.log_prob(fresh.y).mean().item(),
        coverage=((fresh.y >= lower) & (fresh.y <= upper)).float().mean().item(),
        aleatoric=on_data.aleatoric.mean().sqrt().item(),
        epistemic_on_data=on_data.epistemic.mean().sqrt().item(),
        epistemic_in_gap=on_grid.epistemic[inside].mean().sqrt().item(),
        seconds=seconds,
    )


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    if curve.gap is not None:
        ax.axvspan(*curve.gap, color=MUTED, alpha=0.12, linewidth=0.0, label="no data")
    plots.predictive_bands(curve.x_grid, on_grid, ax, data=(curve.x, curve.y))
    truth = curve.function(curve.x_grid)
    ax.plot(curve.x_grid.squeeze(-1), truth.squeeze(-1), color=TRUTH, linestyle="--", linewidth=1.0, label="truth")
    ax.set(title=name, xlabel="x")
