"""The number of components of a variational mixture (Bishop 10.7)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo._threads import one_thread
from credo.experiments._shared import ERUPTION_LABELS, add_ellipse, eruptions, standardize
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.mixture import GaussianMixture, VariationalGaussianMixture
from credo.plots.style import MUTED, OKABE_ITO
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STARTS: dict[Budget, int] = {"full": 100, "quick": 10, "smoke": 2}
MAX_COMPONENTS = 6
MIN_DEVIATION = 0.03
COLORS = (OKABE_ITO["vermilion"], OKABE_ITO["blue"])


@experiment(
    "mixture-number-of-components",
    title="The number of clusters of Old Faithful's eruptions, by variational Bayes",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.7",
    figures=["clusters", "bound"],
)
def run(config: RunConfig) -> Result:
    """The number of clusters of the eruptions of Old Faithful, by a variational mixture.

    What the book shows. Figure 10.7 plots the lower bound against the number of components K, from 100 random starts
    for each. It has a distinct peak at two, unlike the likelihood of EM, which grows with every component.

    What is run. First a variational mixture of six components with α₀ = 10⁻³ from many random starts: the number of
    components that are left, and their parameters. Then, as in the figure, mixtures with α₀ = 1 and K = 1 … 6, the
    bound of each start, and beside it the log likelihood of EM from the same kind of start. For EM no standard
    deviation may be below 0.03 of that of the data, or components would collapse onto single eruptions. All columns are
    standardized. A mixture does not change when its components are permuted, so its posterior has K! equal modes, and
    the bound covers one of them; as the book advises for comparing numbers of components, log K! is added in a further
    row. A smoke run uses two Gaussian clusters.
    """
    x = eruptions(config)
    z = standardize(x)
    numbers = range(1, MAX_COMPONENTS + 1)
    seeds = [derive(config.seed, start) % 2**32 for start in range(STARTS[config.budget])]
    with one_thread():
        config.report("six components, small concentration")
        six = [_variational(z, MAX_COMPONENTS, 1e-3, seed) for seed in seeds]
        bounds, likelihoods = [], []
        for k in numbers:
            config.report(f"{k} of {MAX_COMPONENTS} components")
            bounds.append([_variational(z, k, 1.0, seed).lower_bound_ for seed in seeds])
            likelihoods.append([_maximum_likelihood(z, k, seed).lower_bound_ for seed in seeds])
    best = max(six, key=lambda model: model.lower_bound_)
    kept = _kept_components(best, x)
    highest = 1 + int(np.argmax([max(of_k) for of_k in bounds]))
    rows = [
        Row("components left of 6", tuple(float(m.effective_components_) for m in six), 2.0, "section 10.2.1"),
        Row("number of components with the highest bound", (float(highest),), 2.0, "Figure 10.7"),
    ]
    for name, (weight, mean, _) in zip(("short", "long"), kept, strict=False):
        rows += [
            Row(f"{name} eruptions: weight", (weight,)),
            Row(f"{name} eruptions: {ERUPTION_LABELS[0]}", (float(mean[0]),)),
            Row(f"{name} eruptions: {ERUPTION_LABELS[1]}", (float(mean[1]),)),
        ]
    for k, of_bound, of_likelihood in zip(numbers, bounds, likelihoods, strict=True):
        rows += [
            Row(f"K = {k}: lower bound, mean over starts, nats", (fmean(of_bound),)),
            Row(f"K = {k}: highest lower bound + log K!, nats", (max(of_bound) + math.lgamma(k + 1.0),)),
            Row(f"K = {k}: log likelihood of EM, mean over starts, nats", (fmean(of_likelihood),)),
        ]
    return Result(
        tuple(rows), {"clusters": _clusters_figure(x, best, kept), "bound": _bounds_figure(bounds, likelihoods)}
    )


def _variational(z: NDArray[np.float64], k: int, concentration: float, seed: int) -> VariationalGaussianMixture:
    return VariationalGaussianMixture(
        k,
        weight_concentration_prior=concentration,
        init_params="random_from_data",
        tol=1e-6,
        max_iter=10_000,
        random_state=seed,
    ).fit(z)


def _maximum_likelihood(z: NDArray[np.float64], k: int, seed: int) -> GaussianMixture:
    return GaussianMixture(
        k,
        reg_covar=MIN_DEVIATION**2,
        init_params="random_from_data",
        tol=1e-6,
        max_iter=10_000,
        random_state=seed,
    ).fit(z)


KeptComponent = tuple[float, NDArray[np.float64], NDArray[np.float64]]


def _kept_components(model: VariationalGaussianMixture, x: NDArray[np.float64]) -> list[KeptComponent]:
    """Weight, mean and covariance, in minutes, of the components that have rows, short eruptions first."""
    indices = np.flatnonzero(model.weight_concentration_ - model.weight_concentration_prior_ >= 1.0)
    scale, center = x.std(0), x.mean(0)
    found = [
        (float(model.weights_[k]), center + scale * model.means_[k], np.outer(scale, scale) * model.covariances_[k])
        for k in indices
    ]
    return sorted(found, key=lambda component: float(component[1][0]))


def _clusters_figure(x: NDArray[np.float64], model: VariationalGaussianMixture, kept: list[KeptComponent]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    left.scatter(x[:, 0], x[:, 1], s=9.0, color=MUTED, linewidths=0.0)
    for (weight, mean, covariance), color in zip(kept, COLORS, strict=False):
        for deviations in (1.0, 2.0):
            add_ellipse(left, mean, covariance, deviations, fill=False, edgecolor=color, linewidth=1.4)
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "linewidth": 0.0, "alpha": 0.85}
        left.annotate(f"{weight:.0%}", mean, color=color, ha="center", va="center", weight="bold", bbox=box)
    left.set(xlabel=ERUPTION_LABELS[0], ylabel=ERUPTION_LABELS[1], title=f"{len(kept)} clusters are left")
    order = np.argsort(-model.weights_)
    right.bar(range(1, MAX_COMPONENTS + 1), model.weights_[order], color=OKABE_ITO["blue"], width=0.7)
    right.set(
        xlabel="component", ylabel="expected weight", title="of six components", xticks=range(1, MAX_COMPONENTS + 1)
    )
    return figure


def _bounds_figure(bounds: list[list[float]], likelihoods: list[list[float]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_starts(left, bounds, OKABE_ITO["blue"], "variational Bayes", "lower bound of the evidence, nats")
    _draw_starts(right, likelihoods, OKABE_ITO["vermilion"], "EM", "log likelihood, nats")
    return figure


def _draw_starts(ax: Axes, values: list[list[float]], color: str, title: str, label: str) -> None:
    """Draw a cross for every start, with jitter, and a line through the best."""
    random = np.random.default_rng(0)
    numbers = range(1, len(values) + 1)
    for k, of_k in zip(numbers, values, strict=True):
        ax.plot(k + random.uniform(-0.15, 0.15, len(of_k)), of_k, "+", color=color, markersize=5.0, alpha=0.6)
    ax.plot(numbers, [max(of_k) for of_k in values], color=color, linewidth=1.0)
    ax.set(xlabel="number of components K", ylabel=label, title=title, xticks=numbers)
