"""The error of a Monte Carlo expectation (Bishop 11.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from credo.conjugate import expectation
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import DATA, OKABE_ITO, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
REPETITIONS: dict[Budget, int] = {"full": 200, "quick": 200, "smoke": 20}


def _density() -> MixtureSameFamily:
    """p(z): two modes, float64."""
    weights, means, scales = torch.tensor([[0.65, 0.35], [-1.2, 1.6], [0.75, 0.5]], dtype=torch.float64)
    return MixtureSameFamily(Categorical(weights), Normal(means, scales))


def _function(z: Tensor) -> Tensor:
    """f(z): an increasing function plus a sine."""
    return 2.0 + 0.35 * z + 0.6 * torch.sin(2.0 * z)


@experiment(
    "monte-carlo-error",
    title="The error of a Monte Carlo expectation decreases as 1/√L",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 11.1 and equations 11.1–11.3",
    figures=["expectation"],
)
def run(config: RunConfig) -> Result:
    """An expectation by sampling, and how its error decreases with the number of draws.

    What the book shows. A function f(z) and a density p(z). The expectation of f is approximated by its mean over L
    draws from p, which is unbiased and has variance Var[f]/L in any dimension of z. The figure is a sketch without
    numbers.

    What is run. A similar function and a mixture of two Gaussians. The mean over L draws is computed 200 times for each
    L from 10 to 10,000. Its root mean square error against quadrature, and the standard error that
    ``credo.conjugate.expectation`` returns, should both follow √(Var[f]/L).
    """
    from matplotlib.figure import Figure

    p = _density()
    z = torch.linspace(-6.0, 6.0, 20_001, dtype=torch.float64)
    weight = p.log_prob(z).exp()
    exact = torch.trapezoid(_function(z) * weight, z).item()
    spread = math.sqrt(torch.trapezoid((_function(z) - exact).square() * weight, z).item())

    errors, reported = [], []
    for size in SIZES:
        config.report(f"{size} draws")
        estimates = [
            expectation(_function, p, samples=size, seed=derive(config.seed, size, repetition))
            for repetition in range(REPETITIONS[config.budget])
        ]
        values = torch.stack([estimate.value for estimate in estimates])
        errors.append((values - exact).square().mean().sqrt().item())
        reported.append(torch.stack([estimate.standard_error for estimate in estimates]).mean().item())

    figure = Figure(figsize=(8.0, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    _density_panel(left, z[z.abs() < 3.5], exact)
    _error_panel(right, errors, reported, spread)
    rows = (
        Row("E[f] by quadrature", (exact,)),
        Row("E[f] from 10,000 draws", (float(estimates[0]),), note=f"reported as {estimates[0]}"),
        Row("slope of log error over log L", (_slope(errors),), -0.5, "equation 11.3"),
        Row("error / √(Var[f]/L) at L = 10", (errors[0] * math.sqrt(SIZES[0]) / spread,), 1.0, "equation 11.3"),
        Row("error / √(Var[f]/L) at L = 10,000", (errors[-1] * math.sqrt(SIZES[-1]) / spread,), 1.0, "equation 11.3"),
        Row("reported standard error / error at L = 10,000", (reported[-1] / errors[-1],)),
    )
    return Result(rows, {"expectation": figure})


def _slope(errors: list[float]) -> float:
    """The slope of a least-squares line through the logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (SIZES, errors))
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / x.square().sum()).item()


def _density_panel(ax: Axes, z: Tensor, exact: float) -> None:
    p, f, at = 2.5 * _density().log_prob(z).exp().numpy(), _function(z).numpy(), z.numpy()
    ax.fill_between(at, p, color=OKABE_ITO["sky"], alpha=0.35, linewidth=0.0)
    ax.plot(at, p, color=OKABE_ITO["blue"], label="p(z)")
    ax.plot(at, f, color=OKABE_ITO["vermilion"], label="f(z)")
    ax.axhline(exact, color=DATA, linestyle=":", linewidth=1.0, label="E[f]")
    ax.set(xlabel="z", yticks=[], ylim=(0.0, 4.3), xlim=(z[0].item(), z[-1].item()))
    ax.legend(loc="upper left", ncols=3)


def _error_panel(ax: Axes, errors: list[float], reported: list[float], spread: float) -> None:
    ax.plot(SIZES, [spread / math.sqrt(size) for size in SIZES], color=TRUTH, label="√(Var[f] / L)")
    ax.plot(SIZES, errors, "o", color=DATA, markersize=5.0, label="root mean square error")
    ax.plot(SIZES, reported, "x", color=OKABE_ITO["blue"], markersize=6.0, label="reported standard error, mean")
    ax.set(xscale="log", yscale="log", xlabel="draws, L", ylabel="error of the mean of f")
    ax.legend(loc="upper right")
