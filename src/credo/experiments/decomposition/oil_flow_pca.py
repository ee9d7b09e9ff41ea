"""Probabilistic and Bayesian PCA of the oil flow data (Bishop 12.11 and section 12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes, subspace_angles

from credo.datasets.files import arrays
from credo.decomposition import BayesianPCA, ProbabilisticPCA
from credo.experiments._shared import add_ellipse, add_legend
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import EPISTEMIC, MARKERS, MUTED, OKABE_ITO, TRUTH
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The readings of class 0 are proportional to the phase fractions, in class 2 the horizontal beams are independent.
CLASSES = ("homogeneous", "annular", "stratified")
COLORS = (OKABE_ITO["vermilion"], OKABE_ITO["blue"], OKABE_ITO["green"])
COLUMNS = 12
SYNTHETIC_ROWS = 150

POINTS = 100
MISSING_FRACTION = 0.3
REPETITIONS: dict[Budget, int] = {"full": 20, "quick": 5, "smoke": 2}
NORMAL_95 = 1.96

FEWER_ROWS = (25, 50, 100)


@dataclass(frozen=True, eq=False)
class OilFlow:
    """Readings of 12 gamma beams through a pipe, and the configuration of oil, water and gas in it.

    Attributes:
        train: training readings ``[N, 12]``.
        train_class: configurations of the training rows ``[N]``, as indices into ``CLASSES``.
        test: test readings ``[M, 12]``.
    """

    train: NDArray[np.float64]
    train_class: NDArray[np.uint8]
    test: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Projection:
    """Posterior of the latent variables of each point.

    Attributes:
        mean: means ``[N, 2]``.
        covariance: covariances ``[N, 2, 2]``.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    def rotated_to(self, other: Projection) -> Projection:
        """Apply the rotation or reflection that brings the means closest to those of ``other``."""
        rotation, _ = orthogonal_procrustes(self.mean, other.mean)
        return Projection(self.mean @ rotation, rotation.T @ self.covariance @ rotation)


@experiment(
    "pca-missing-values",
    title="Probabilistic PCA with 30 % of the values missing",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 12.11",
    figures=["projections"],
)
def missing_values(config: RunConfig) -> Result:
    """The first 100 points of the oil flow data in two dimensions, from all their values and from 70 % of them.

    The book's figure. Posterior means of the latent variables of probabilistic PCA for the first 100 points: on the
    left from all values, on the right after 30 % of the values have been removed at random, which EM integrates out.
    The two look very similar although nearly every point has lost some of its values. The book gives no numbers.

    What is run. Probabilistic PCA by EM on both, the second several times with other values removed. W is determined
    only up to a rotation of z, so the projections from fewer values are rotated to match the others before they are
    compared. The table has the distance that points move, the angle between the subspaces, and the error of the imputed
    values, beside that of the column mean. The figure adds one posterior standard deviation around each point of the
    first repetition. A smoke run uses three Gaussian classes in 12 columns instead.
    """
    data = _load_oil_flow(config)
    points, labels = data.train[:POINTS], data.train_class[:POINTS]
    complete = _fit_by_em(points, config)
    reference = _project(complete, points)
    found = []
    for repetition in range(REPETITIONS[config.budget]):
        config.report(f"30 % missing, {repetition + 1} of {REPETITIONS[config.budget]}")
        random = np.random.default_rng(derive(config.seed, repetition))
        observed = np.where(random.random(points.shape) < MISSING_FRACTION, np.nan, points)
        model = _fit_by_em(observed, config)
        projection = _project(model, observed).rotated_to(reference)
        found.append((_missing_values_rows(points, observed, complete, model, reference, projection), projection))
    quantities = found[0][0]
    rows = tuple(Row(name, tuple(measured[name] for measured, _ in found)) for name in quantities)
    return Result(rows, {"projections": _missing_values_figure(reference, found[0][1], labels)})


@experiment(
    "pca-number-of-components",
    title="The number of components of the oil flow data: probabilistic and Bayesian PCA",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, sections 12.2.1 and 12.2.3, and Appendix A",
    figures=["projections", "dimensions"],
)
def number_of_components(config: RunConfig) -> Result:
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
    data = _load_oil_flow(config)
    config.report("probabilistic PCA")
    by_count = {k: ProbabilisticPCA(k, device=config.device).fit(data.train) for k in range(1, COLUMNS)}
    config.report("Bayesian PCA")
    bayesian, *of_fewer = (_fit_bayesian(data.train[:n], config) for n in (len(data.train), *FEWER_ROWS))
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


def _load_oil_flow(config: RunConfig) -> OilFlow:
    """The oil flow data; for a smoke run, three Gaussian classes with two latent dimensions in 12 columns."""
    if config.budget != "smoke":
        stored = arrays("small/oil_flow.npz")
        return OilFlow(stored["train_X"], stored["train_label"], stored["test_X"])
    random = np.random.default_rng(config.seed)
    centers = random.normal(size=(3, COLUMNS))
    label = random.integers(3, size=2 * SYNTHETIC_ROWS)
    within = random.normal(size=(2, COLUMNS))
    latent = random.normal(scale=0.3, size=(len(label), 2))
    x = centers[label] + latent @ within + 0.1 * random.normal(size=(len(label), COLUMNS))
    return OilFlow(x[:SYNTHETIC_ROWS], label[:SYNTHETIC_ROWS].astype(np.uint8), x[SYNTHETIC_ROWS:])


def _scatter_classes(ax: Axes, points: NDArray[np.float64], labels: NDArray[np.uint8], size: float) -> None:
    """Draw ``points [N, 2]`` with a color and a marker for each class."""
    for k, (name, color, marker) in enumerate(zip(CLASSES, COLORS, MARKERS, strict=False)):
        x, y = points[labels == k].T
        ax.scatter(x, y, s=size, c=color, marker=marker, alpha=0.75, linewidths=0.0, label=name)


def _fit_by_em(points: NDArray[np.float64], config: RunConfig) -> ProbabilisticPCA:
    model = ProbabilisticPCA(
        2, method="em", tol=1e-7, max_iter=5000, device=config.device, random_state=config.seed % 2**32
    )
    return model.fit(points)


def _project(model: ProbabilisticPCA, points: NDArray[np.float64]) -> Projection:
    posterior = model.posterior(points)
    covariance = posterior.covariance.expand(len(points), 2, 2)
    return Projection(posterior.mean.cpu().numpy(), covariance.cpu().numpy())


def _missing_values_rows(
    points: NDArray[np.float64],
    observed: NDArray[np.float64],
    complete: ProbabilisticPCA,
    model: ProbabilisticPCA,
    reference: Projection,
    projection: Projection,
) -> dict[str, float]:
    missing = np.isnan(observed)
    imputed = model.predict_missing(observed)
    error = (points - imputed.mean)[missing]
    by_mean = (points - np.nanmean(observed, axis=0))[missing]
    moved = np.linalg.norm(projection.mean - reference.mean, axis=1)
    angles = subspace_angles(model.components_.T, complete.components_.T)
    return {
        "points with a missing value, share": float(missing.any(1).mean()),
        "mean distance that a point moves, in standard deviations of z": float(moved.mean()),
        "correlation of the coordinates, first component": _correlation(projection, reference, 0),
        "correlation of the coordinates, second component": _correlation(projection, reference, 1),
        "largest angle between the subspaces, degrees": float(np.degrees(angles.max())),
        "noise std / that from all values": float(np.sqrt(model.noise_variance_ / complete.noise_variance_)),
        "error of imputed values, root mean square": float(np.sqrt(np.mean(error**2))),
        "the same with the mean of the column imputed": float(np.sqrt(np.mean(by_mean**2))),
        "95 % intervals of imputed values: coverage": float(np.mean(np.abs(error) < NORMAL_95 * imputed.std[missing])),
    }


def _correlation(a: Projection, b: Projection, coordinate: int) -> float:
    return float(np.corrcoef(a.mean[:, coordinate], b.mean[:, coordinate])[0, 1])


def _missing_values_figure(complete: Projection, partial: Projection, labels: NDArray[np.uint8]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("All values", "30 % of the values missing")
    for ax, projection, title in zip(panels, (complete, partial), titles, strict=True):
        for mean, covariance, label in zip(projection.mean, projection.covariance, labels, strict=True):
            color = COLORS[int(label)]
            add_ellipse(ax, mean, covariance, facecolor="none", edgecolor=color, alpha=0.35, linewidth=0.5)
        _scatter_classes(ax, projection.mean, labels, size=22.0)
        ax.set(title=title, xlabel="$z_1$", aspect="equal")
    panels[0].set(ylabel="$z_2$")
    add_legend(figure, panels[0])
    return figure


def _fit_bayesian(rows: NDArray[np.float64], config: RunConfig) -> BayesianPCA:
    return BayesianPCA(tol=1e-8, max_iter=20_000, device=config.device).fit(rows)


def _projections_figure(data: OilFlow, plain: NDArray[np.float64], chosen: NDArray[np.float64]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("Probabilistic PCA, 2 components", "Bayesian PCA, two largest components")
    for ax, points, title in zip(panels, (plain, chosen), titles, strict=True):
        _scatter_classes(ax, points, data.train_class, size=11.0)
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
