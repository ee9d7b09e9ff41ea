"""The binomial, beta and Dirichlet distributions (Bishop 2.1, 2.3 and 2.5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Binomial, Dirichlet

from credo._estimate import Estimate
from credo.conjugate import BetaBernoulli
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import DATA, EPISTEMIC, OKABE_ITO
from credo.seeding import derive, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOSSES, HEADS = 10, 0.25
SIMULATIONS: dict[Budget, int] = {"full": 10_000, "quick": 10_000, "smoke": 1000}

CONCENTRATIONS = (0.1, 1.0, 10.0)
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3.0) / 2.0]], dtype=torch.float64)
DRAWS: dict[Budget, int] = {"full": 100_000, "quick": 100_000, "smoke": 2000}
DRAWS_SHOWN = 500
STEPS = 60
"""Cells along an edge of the surface, evaluated at their centers: at an edge the density of α < 1 is infinite."""
MAX_DENSITY = 25.0


@experiment(
    "binomial-distribution",
    title="The binomial distribution, N = 10 and μ = 0.25",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 2.1",
    figures=["histogram"],
)
def binomial(config: RunConfig) -> Result:
    """The binomial distribution, and simulated tosses of a biased coin.

    What the book shows. A histogram of Bin(m | N, μ) for N = 10 and μ = 0.25; its mean is Nμ and its variance Nμ(1 −
    μ).

    What is run. The exact distribution, and beside it the number of heads in simulated series of ten tosses. Their
    frequencies should lie within their error bars. The book shows the exact distribution only.
    """
    exact = Binomial(TOSSES, torch.tensor(HEADS, dtype=torch.float64))
    values = torch.arange(TOSSES + 1, dtype=torch.float64)
    probabilities = exact.log_prob(values).exp()
    with seeded(config.seed, torch.device("cpu")):
        tosses = Bernoulli(exact.probs).sample(torch.Size([SIMULATIONS[config.budget], TOSSES]))
    counts = tosses.sum(1)
    frequencies = Estimate.from_samples((counts[:, None] == values).double())
    total_variation = 0.5 * (frequencies.value - probabilities).abs().sum().item()
    rows = (
        Row("mean", (counts.mean().item(),), exact.mean.item(), "equation 2.11"),
        Row("variance", (counts.var().item(),), exact.variance.item(), "equation 2.12"),
        Row("most frequent m", (frequencies.value.argmax().item(),), probabilities.argmax().item(), "Figure 2.1"),
        Row("total variation between frequencies and probabilities", (total_variation,)),
    )
    return Result(rows, {"histogram": _histogram(values, probabilities, frequencies, len(counts))})


@experiment(
    "beta-bernoulli-update",
    title="One step of Bayesian inference: Beta(2, 2) and a head make Beta(3, 2)",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 2.3",
    figures=["step"],
)
def beta_bernoulli_update(config: RunConfig) -> Result:
    """One step of Bayesian inference about a coin: prior, likelihood and posterior.

    What the book shows. The prior Beta(2, 2), the likelihood of a single head, and the posterior Beta(3, 2), each as a
    function of the probability μ of heads.

    What is run. The same with ``credo.conjugate.BetaBernoulli``; the table has the numbers behind the three curves.
    Nothing is random, so every seed gives the same result.
    """
    del config
    prior, data = BetaBernoulli(2, 2), [1]
    after = prior.update(data)
    rows = (
        Row("posterior a", (after.a.item(),), 3.0, "caption of Figure 2.3"),
        Row("posterior b", (after.b.item(),), 2.0, "caption of Figure 2.3"),
        Row("posterior mean, the probability that the next is a head", (after.predictive.mean.item(),)),
        Row("posterior mode", (after.posterior.mode.item(),)),
        Row("evidence p(x = 1) under the prior", (prior.log_evidence(data).exp().item(),)),
    )
    return Result(rows, {"step": _update_figure(prior, after)})


@experiment(
    "dirichlet-distribution",
    title="The Dirichlet distribution over the simplex, α = 0.1, 1 and 10",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 2.5",
    figures=["simplex"],
)
def dirichlet(config: RunConfig) -> Result:
    """The Dirichlet distribution over three probabilities, with concentrations 0.1, 1 and 10.

    What the book shows. Its density over the simplex of (μ₁, μ₂, μ₃), for all αₖ = 0.1, 1 and 10: high along the edges,
    flat, and highest in the middle.

    What is run. The same densities as surfaces, and draws from each below them. The draws show what an infinite density
    at the corners means: one of the three probabilities is nearly 1.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.4), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    above, below = halves
    above.supylabel("density")
    below.supylabel(f"{DRAWS_SHOWN} draws")
    rows: list[Row] = []
    for column, alpha in enumerate(CONCENTRATIONS):
        distribution = Dirichlet(torch.full((3,), alpha, dtype=torch.float64))
        with seeded(derive(config.seed, column), torch.device("cpu")):
            draws = distribution.sample(torch.Size([DRAWS[config.budget]]))
        _surface(above.add_subplot(1, 3, column + 1, projection="3d"), alpha, distribution)
        _scatter(below.add_subplot(1, 3, column + 1), draws[:DRAWS_SHOWN])
        largest = draws.amax(1)
        exact = distribution.stddev[0].item()
        rows += [
            Row(f"α = {alpha:g}: standard deviation of μ₁", (draws[:, 0].std().item(),), note=f"{exact:.4f} exactly"),
            Row(
                f"α = {alpha:g}: mean of the largest probability",
                (largest.mean().item(),),
                note="11/18 = 0.611 exactly" if alpha == 1.0 else "",
            ),
            Row(
                f"α = {alpha:g}: share of draws with a probability above 0.95",
                ((largest > 0.95).double().mean().item(),),
            ),
        ]
    return Result(tuple(rows), {"simplex": figure})


def _histogram(values: Tensor, probabilities: Tensor, frequencies: Estimate, simulations: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    ax = figure.subplots()
    ax.bar(values.numpy(), probabilities.numpy(), color=OKABE_ITO["sky"], label="Bin(m | 10, 0.25)")
    ax.errorbar(
        values.numpy(),
        frequencies.value.numpy(),
        yerr=2.0 * frequencies.standard_error.numpy(),
        fmt="o",
        color=DATA,
        markersize=3.0,
        linewidth=1.0,
        label=f"{simulations:,} simulated runs, ± 2 standard errors",
    )
    ax.set(xlabel="heads in ten tosses, m", ylabel="probability", xticks=range(TOSSES + 1), ylim=(0.0, 0.35))
    ax.legend(loc="upper right")
    return figure


def _update_figure(prior: BetaBernoulli, after: BetaBernoulli) -> Figure:
    from matplotlib.figure import Figure

    mu = torch.linspace(0.0, 1.0, 501, dtype=torch.float64)[1:-1]
    curves: dict[str, tuple[Tensor, str, str]] = {
        "prior": (prior.posterior.log_prob(mu).exp(), "Beta(μ | 2, 2)", "blue"),
        "likelihood": (prior.likelihood(mu).log_prob(torch.ones_like(mu)).exp(), "p(x = 1 | μ) = μ", "vermilion"),
        "posterior": (after.posterior.log_prob(mu).exp(), "Beta(μ | 3, 2)", "blue"),
    }
    figure = Figure(figsize=(8.0, 2.6), layout="constrained")
    panels = figure.subplots(1, len(curves), sharex=True, sharey=True)
    for ax, (name, (density, formula, color)) in zip(panels, curves.items(), strict=True):
        ax.plot(mu.numpy(), density.numpy(), color=OKABE_ITO[color])
        ax.fill_between(mu.numpy(), density.numpy(), color=OKABE_ITO[color], alpha=0.12, linewidth=0.0)
        ax.set(title=name, xlabel="μ", xlim=(0.0, 1.0), ylim=(0.0, 2.0), xticks=(0.0, 0.5, 1.0), yticks=(0, 1, 2))
        ax.text(0.04, 1.88, formula, va="top")
    for ax, sign in zip(panels[:-1], ("×", "∝"), strict=True):
        ax.annotate(sign, (1.08, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=16)
    return figure


def _surface(ax: Any, alpha: float, distribution: Dirichlet) -> None:
    """Draw the density over the simplex, cut off at ``MAX_DENSITY``."""
    mu, triangles = _simplex_grid()
    height = distribution.log_prob(mu).exp().clamp(max=MAX_DENSITY)
    x, y = (mu @ CORNERS).T.numpy()
    ax.computed_zorder = False  # it would draw the outline of the simplex over the surface
    ax.plot(*torch.cat([CORNERS, CORNERS[:1]]).T.numpy(), 0.0, color=DATA, linewidth=0.8)
    ax.plot_trisurf(
        x,
        y,
        height.numpy(),
        triangles=triangles.numpy(),
        cmap="viridis",
        linewidth=0.0,
        antialiased=False,
        vmin=0.0,
        vmax=MAX_DENSITY,
        zorder=3.0,
    )
    ax.set(title=f"αₖ = {alpha:g}", zlim=(0.0, MAX_DENSITY), xticks=[], yticks=[], zticks=[0, 10, 20])
    ax.view_init(elev=28, azim=-60)
    ax.set_box_aspect((1.0, 0.87, 0.75), zoom=1.1)


def _simplex_grid() -> tuple[Tensor, Tensor]:
    """Return points inside the simplex, ``[P, 3]``, and the triangles between them, ``[T, 3]``."""
    steps = STEPS - 1
    points = [(i, j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    index = {point: k for k, point in enumerate(points)}
    upright = [(index[i, j], index[i + 1, j], index[i, j + 1]) for i, j in points if i + j < steps]
    turned = [(index[i + 1, j], index[i + 1, j + 1], index[i, j + 1]) for i, j in points if i + j < steps - 1]
    first, second = torch.tensor(points, dtype=torch.float64).unbind(1)
    mu = (torch.stack([first, second, steps - first - second], 1) + 1.0 / 3.0) / STEPS
    return mu, torch.tensor(upright + turned)


def _scatter(ax: Axes, draws: Tensor) -> None:
    from matplotlib.patches import Polygon

    ax.add_patch(Polygon(CORNERS.tolist(), fill=False, edgecolor=DATA, linewidth=0.8))
    x, y = (draws @ CORNERS).T.numpy()
    ax.scatter(x, y, s=5.0, color=EPISTEMIC, alpha=0.5, linewidth=0.0)
    for corner, name, (dx, dy) in zip(
        CORNERS.tolist(), ("μ₁", "μ₂", "μ₃"), ((-9.0, -5.0), (9.0, -5.0), (0.0, 8.0)), strict=True
    ):
        ax.annotate(name, corner, (dx, dy), textcoords="offset points", ha="center", va="center")
    ax.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.08, 0.96))
    ax.set_axis_off()
