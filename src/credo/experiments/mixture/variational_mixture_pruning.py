"""A variational mixture removes the components it does not need (Bishop 10.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from credo._rows import Rows
from credo._threads import one_thread
from credo.em import Expectation, fit_em
from credo.experiments._shared import add_ellipse, eruptions, standardize
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.mixture import KMeans
from credo.mixture._components import Assignment, assign_rows, nearest_component
from credo.mixture._covariances import FullComponents
from credo.mixture.variational import MixturePosterior, MixturePrior
from credo.plots.style import MUTED, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPONENTS = 6
CONCENTRATION = 1e-3
ITERATIONS = (0, 15, 60, 120)


@experiment(
    "variational-mixture-pruning",
    title="Variational Bayes removes the components of a mixture that the data do not need",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.6",
    figures=["iterations"],
)
def run(config: RunConfig) -> Result:
    """A variational mixture that starts with six Gaussians and keeps two.

    What the book shows. A Bayesian mixture of K = 6 Gaussians with α₀ = 10⁻³ on the standardized Old Faithful data,
    after 0, 15, 60 and 120 iterations: ellipses of one standard deviation, with an opacity proportional to the expected
    weight of the component. Components that the data do not need disappear, until only two differ from their prior.

    What is run. The same, from the clusters of k-means; β₀ = 1, m₀ = 0, ν₀ = 2 and W₀⁻¹ the covariance of the data,
    which the book does not give. A component counts as kept if the sum of its responsibilities is at least one
    eruption. A smoke run uses two Gaussian clusters instead of the geyser.
    """
    from matplotlib.figure import Figure

    x = standardize(eruptions(config))
    states = _states(x, config.seed)
    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    rows = []
    for iteration, ax in zip(ITERATIONS, panels.flat, strict=True):
        bound, posterior = states[min(iteration, len(states) - 1)]
        kept = int((posterior.concentration - CONCENTRATION >= 1.0).sum())
        last = iteration == ITERATIONS[-1]
        rows += [
            Row(
                f"components kept after {iteration} iterations",
                (float(kept),),
                published=2.0 if last else None,
                source="section 10.2.1: two after convergence" if last else "",
            ),
            Row(f"lower bound after {iteration} iterations, nats", (bound,)),
        ]
        _panel(ax, x, posterior, f"{iteration} iterations: {kept} components")
    panels[1, 0].set(xlabel="length of an eruption, standardized", ylabel="time to the next, standardized")
    return Result(tuple(rows), {"iterations": figure})


def _states(x: NDArray[np.float64], seed: int) -> list[tuple[float, MixturePosterior]]:
    """The bound and q(π, μ, Λ) at the start and after every iteration until convergence."""
    rows = Rows((x,), torch.device("cpu"), lambda chunk: chunk)
    prior = MixturePrior(CONCENTRATION, 1.0, torch.zeros(2, dtype=torch.float64), 2.0, torch.from_numpy(np.cov(x.T)))
    centers = KMeans(COMPONENTS, random_state=seed).fit(x).cluster_centers_
    states: list[tuple[float, MixturePosterior]] = []

    def start(_: int) -> Assignment[FullComponents]:
        return assign_rows(rows, FullComponents.with_unit_covariance(torch.from_numpy(centers)), nearest_component)

    def record(_: int, __: Assignment[FullComponents], expectation: Expectation[MixturePosterior]) -> None:
        states.append((expectation.bound, expectation.statistics))

    with one_thread():
        fit_em(
            start,
            prior.update,
            lambda posterior: posterior.assign(rows),
            rows=len(x),
            tolerance=0.0,
            max_iter=ITERATIONS[-1],
            callback=record,
        )
    return states


def _panel(ax: Axes, x: NDArray[np.float64], posterior: MixturePosterior, title: str) -> None:
    ax.scatter(x[:, 0], x[:, 1], s=8.0, color=MUTED, linewidths=0.0)
    weights = (posterior.concentration / posterior.concentration.sum()).numpy()
    components = posterior.components
    for weight, mean, covariance in zip(weights, components.means.numpy(), components.covariances.numpy(), strict=True):
        if weight > 1e-3:
            alpha = min(0.08 + 0.75 * weight, 1.0)
            add_ellipse(ax, mean, covariance, facecolor=OKABE_ITO["vermilion"], alpha=alpha, linewidth=0.0)
            add_ellipse(ax, mean, covariance, fill=False, edgecolor=OKABE_ITO["vermilion"], linewidth=1.0)
    ax.set(title=title)
