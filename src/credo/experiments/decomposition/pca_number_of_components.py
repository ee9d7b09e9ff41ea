"""Probabilistic and Bayesian PCA of the oil flow data (Bishop, section 12.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo.decomposition import BayesianPCA, ProbabilisticPCA
from credo.experiments._shared import add_legend
from credo.experiments.decomposition._oil_flow import COLUMNS, OilFlow, load_oil_flow, scatter_classes
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.plots.style import EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWER_ROWS = (25, 50, 100)


@experiment(
    "pca-number-of-components",
    title="The number of components of the oil flow data: probabilistic and Bayesian PCA",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, sections 12.2.1 and 12.2.3, and Appendix A",
    figures=["projections", "dimensions"],
)
def run(config: RunConfig) -> Result:
    """Twelve readings of an oil pipeline in two dimensions, by probabilistic and by Bayesian PCA.

    The data. Simulated gamma-beam readings through a pipe with oil, water and gas in one of three configurations
    (Bishop & James 1993). Bishop (2006) uses them throughout, and shows projections of them by probabilistic PCA
    (Figure 12.11), but no table of likelihoods.

    What is run. Probabilistic PCA in closed form, and Bayesian PCA with up to 11 components, on the 1000 training rows.
    The figures show the posterior means of the two largest components of both, and the log likelihood of the 1000 test
    rows by the number of components of probabilistic PCA, beside that of Bayesian PCA. The table has the number of
    components that Bayesian PCA keeps, from all rows and from few, those likelihoods, and the difference of the two
    projections. A smoke run uses three Gaussian classes in 12 columns instead.

    What it shows. The readings lie near curved surfaces that extend in all directions, so a thousand rows justify every
    component: Bayesian PCA keeps all 11, and the likelihood of test rows agrees. From few rows it keeps fewer.
    """
    data = load_oil_flow(config)
    config.report("probabilistic PCA")
    by_count = {k: ProbabilisticPCA(k, device=config.device).fit(data.train) for k in range(1, COLUMNS)}
    config.report("Bayesian PCA")
    bayesian, *of_fewer = (_bayesian(data.train[:n], config) for n in (len(data.train), *FEWER_ROWS))
    held_out = {k: model.score(data.test) for k, model in by_count.items()}
    best = max(held_out, key=lambda k: held_out[k])
    plain, chosen = by_count[2].transform(data.train), bayesian.transform(data.train)[:, :2]
    distance = np.sqrt(np.mean(np.sum((plain - chosen) ** 2, axis=1)))
    rows = [
        Row("Bayesian PCA: components kept, of 11", (float(bayesian.n_components_),)),
        *(
            Row(f"the same from the first {n} rows", (float(model.n_components_),))
            for n, model in zip(FEWER_ROWS, of_fewer, strict=True)
        ),
        Row("Bayesian PCA: lower bound, nats per row", (bayesian.lower_bound_ / len(data.train),)),
        Row(
            "Bayesian PCA: test log likelihood, nats per row", (bayesian.score(data.test),), note="at E[W], E[μ], E[τ]"
        ),
        Row("Bayesian PCA: noise std", (float(np.sqrt(bayesian.noise_variance_)),)),
        Row("PPCA: components with the highest test log likelihood", (float(best),)),
        Row("root mean square distance of the two projections, in standard deviations of z", (float(distance),)),
        *(Row(f"PPCA, {k} components: test log likelihood, nats per row", (value,)) for k, value in held_out.items()),
    ]
    figures = {
        "projections": _projections_figure(data, plain, chosen),
        "dimensions": _dimensions_figure(held_out, by_count[COLUMNS - 1], bayesian, bayesian.score(data.test)),
    }
    return Result(tuple(rows), figures)


def _bayesian(rows: NDArray[np.float64], config: RunConfig) -> BayesianPCA:
    return BayesianPCA(tol=1e-8, max_iter=20_000, device=config.device).fit(rows)


def _projections_figure(data: OilFlow, plain: NDArray[np.float64], chosen: NDArray[np.float64]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("Probabilistic PCA, 2 components", "Bayesian PCA, two largest components")
    for ax, points, title in zip(panels, (plain, chosen), titles, strict=True):
        scatter_classes(ax, points, data.train_class, size=11.0)
        ax.set(title=title, xlabel="$E[z_1 \\mid x]$", aspect="equal")
    panels[0].set(ylabel="$E[z_2 \\mid x]$")
    add_legend(figure, panels[0], markerscale=2.0)
    return figure


def _dimensions_figure(
    held_out: dict[int, float], likely: ProbabilisticPCA, bayesian: BayesianPCA, score: float
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(list(held_out), list(held_out.values()), "o-", color=EPISTEMIC, markersize=4.0, label="probabilistic PCA")
    left.axhline(score, color=TRUTH, linestyle="--", linewidth=1.2, label=f"Bayesian PCA ({bayesian.n_components_})")
    left.set(xlabel="components", ylabel="test log likelihood, nats per row", xticks=list(held_out), title="New rows")
    left.legend(loc="lower right")
    number = np.arange(1, COLUMNS)
    right.plot(number, likely.explained_variance_, "o-", color=EPISTEMIC, markersize=4.0, label="variance of the data")
    kept = bayesian.explained_variance_
    right.plot(number[: len(kept)], kept, "x", color=TRUTH, markersize=7.0, label="explained, Bayesian PCA")
    right.axhline(bayesian.noise_variance_, color=MUTED, linestyle=":", linewidth=1.2, label="its noise variance")
    right.set(xlabel="direction", ylabel="variance", yscale="log", xticks=number, title="Directions")
    right.legend(loc="upper right")
    return figure
