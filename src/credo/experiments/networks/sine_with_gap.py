"""Uncertainty in a gap of the inputs, by four methods: the figure of the README."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import Curve, sine_with_gap
from credo.experiments._shared import add_legend
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import MUTED, TRUTH
from credo.seeding import derive, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.methods.base import Method
    from credo.predictive import Predictive

NOISE = 0.1
PRIOR = credo.Normal(0.0, 3.0)
"""Of the weights of Bayes by Backprop and HMC."""
EPOCH_FRACTION: dict[Budget, float] = {"full": 1.0, "quick": 1.0, "smoke": 0.01}
DRAWS: dict[Budget, int] = {"full": 1000, "quick": 200, "smoke": 20}
TRANSITIONS: dict[Budget, int] = {"full": 1000, "quick": 300, "smoke": 5}
"""Of each chain, in warm-up and after it."""


def _narrow_network() -> MLP:
    return MLP(1, (10,), activation="tanh")


def _methods() -> list[TrainingConfig]:
    """Three approximations for 100 points, full batch, with learned noise.

    The KL of a mean-field posterior grows with every weight, so its network is narrow.
    """
    return [
        TrainingConfig(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                _narrow_network(),
                likelihood=credo.Gaussian(noise="learned"),
                prior=PRIOR,
            ),
            epochs=8000,  # the ELBO per datum is −0.25 after 2,000 steps and 0.06 after 8,000
            lr=3e-2,
            batch_size=100,
        ),
        TrainingConfig(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                MLP(1, (100, 100), dropout=0.1), likelihood=credo.Gaussian(noise="learned"), length_scale=0.3
            ),
            epochs=2000,
            lr=1e-2,
            batch_size=100,
        ),
        TrainingConfig(
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


def _sample(curve: Curve, config: RunConfig) -> Method:
    """The posterior that Bayes by Backprop approximates, drawn by HMC in eight chains."""
    with seeded(config.seed, torch.device("cpu")):
        net = _narrow_network()
    transitions = TRANSITIONS[config.budget]
    model = credo.HMC(net, credo.Gaussian(noise="learned"), PRIOR, chains=8, warmup=transitions, draws=transitions)
    return model.fit((curve.x, curve.y), seed=config.seed, device=config.device, progress=False)


@experiment(
    "sine-with-gap",
    title="A noisy sine with a gap in the data, by four methods",
    reference="an illustration of this library",
    figures=["curve"],
)
def run(config: RunConfig) -> Result:
    """A noisy sine with a gap in its inputs, by four methods.

    What it shows. The epistemic uncertainty should grow where there are no data, and the aleatoric uncertainty should
    match the noise, whose standard deviation is 0.1. No paper gives numbers for this curve.

    What is run. 100 points; the posterior is drawn by HMC and approximated by Bayes by Backprop, MC dropout and a deep
    ensemble. The table has the log likelihood and the coverage of 95 % intervals for new observations near the data,
    both parts of the uncertainty, and, in the gap and beyond the data, the coverage and the share of the curve that
    lies in the band. HMC draws from the posterior that Bayes by Backprop approximates, of the same network under the
    same prior. The settings were chosen by looking at these measures: an illustration, not a comparison.
    """
    from matplotlib.figure import Figure

    seed = config.seed
    curve = sine_with_gap(noise=NOISE, seed=seed)
    new = sine_with_gap(n=1000, noise=NOISE, seed=derive(seed, 1))
    gap_x, gap_y = _observations_in_gap(curve, 1000, derive(seed, 2))
    fits: dict[str, Callable[[], Method]] = {"HMC": lambda: _sample(curve, config)}
    for training in _methods():
        fits[training.name] = partial(
            training.train,
            curve.x,
            curve.y,
            seed=seed,
            epoch_fraction=EPOCH_FRACTION[config.budget],
            device=config.device,
        )
    figure = Figure(figsize=(3.0 * len(fits), 3.1), layout="constrained")
    panels = figure.subplots(1, len(fits), sharex=True, sharey=True)
    rows: list[Row] = []
    with one_thread():
        for (name, fit), ax in zip(fits.items(), panels, strict=True):
            config.report(name)
            method = fit()
            on_data, in_gap, on_grid = (
                method.predict(x, samples=DRAWS[config.budget], seed=seed).cpu() for x in (new.x, gap_x, curve.x_grid)
            )
            measured = {
                "log likelihood on the data, nats": -metrics.nll(on_data, new.y),
                "coverage of 95 % intervals, on the data": metrics.coverage(on_data, new.y),
                "coverage of 95 % intervals, in the gap": metrics.coverage(in_gap, gap_y),
                "aleatoric std": on_data.aleatoric.mean().sqrt().item(),
                "epistemic std on the data": on_data.epistemic.mean().sqrt().item(),
                "epistemic std in the gap": in_gap.epistemic.mean().sqrt().item(),
                **_share_of_the_curve(curve, on_grid),
            }
            rows += [Row(f"{name}: {quantity}", (value,)) for quantity, value in measured.items()]
            _panel(ax, name, curve, on_grid)
    panels[0].set(ylabel="y", ylim=(-2.1, 2.1), xlim=(float(curve.x_grid[0]), float(curve.x_grid[-1])))
    add_legend(figure, panels[0])
    return Result(tuple(rows), {"curve": figure})


def _observations_in_gap(curve: Curve, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """New observations ``[n, 1]`` of the same function with the same noise, inside the gap."""
    low, high = curve.gap or (0.0, 0.0)
    x = torch.linspace(low, high, n)[:, None]
    return x, curve.function(x) + curve.noise(x) * torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))


def _share_of_the_curve(curve: Curve, on_grid: Predictive) -> dict[str, float]:
    """How much of the true curve lies in the 95 % band, in the gap and beyond the data."""
    low, high = on_grid.interval(0.95)
    truth, x = curve.function(curve.x_grid), curve.x_grid
    inside = ((truth >= low) & (truth <= high)).double()
    gap = curve.gap or (0.0, 0.0)
    places = {
        "in the gap": (x >= gap[0]) & (x <= gap[1]),
        "beyond the data": (x < curve.x.min()) | (x > curve.x.max()),
    }
    return {f"curve in the 95 % band, {name}": inside[where].mean().item() for name, where in places.items()}


def _panel(ax: Axes, name: str, curve: Curve, on_grid: Predictive) -> None:
    if curve.gap is not None:
        ax.axvspan(*curve.gap, color=MUTED, alpha=0.12, linewidth=0.0, label="no data")
    plots.predictive_bands(curve.x_grid, on_grid, ax, data=(curve.x, curve.y))
    truth = curve.function(curve.x_grid)
    ax.plot(curve.x_grid.squeeze(-1), truth.squeeze(-1), color=TRUTH, linestyle="--", linewidth=1.0, label="truth")
    ax.set(title=name, xlabel="x")
