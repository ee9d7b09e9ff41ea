"""Probabilistic PCA with missing values (Bishop 12.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes, subspace_angles

from credo.decomposition import ProbabilisticPCA
from credo.experiments._shared import add_ellipse, add_legend
from credo.experiments.decomposition._oil_flow import COLORS, load_oil_flow, scatter_classes
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 100
MISSING_FRACTION = 0.3
REPETITIONS: dict[Budget, int] = {"full": 20, "quick": 5, "smoke": 2}
NORMAL_95 = 1.96


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
def run(config: RunConfig) -> Result:
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
    data = load_oil_flow(config)
    points, labels = data.train[:POINTS], data.train_class[:POINTS]
    complete = _fit(points, config)
    reference = _project(complete, points)
    found = []
    for repetition in range(REPETITIONS[config.budget]):
        config.report(f"30 % missing, {repetition + 1} of {REPETITIONS[config.budget]}")
        random = np.random.default_rng(derive(config.seed, repetition))
        observed = np.where(random.random(points.shape) < MISSING_FRACTION, np.nan, points)
        model = _fit(observed, config)
        projection = _project(model, observed).rotated_to(reference)
        found.append((_measure(points, observed, complete, model, reference, projection), projection))
    quantities = found[0][0]
    rows = tuple(Row(name, tuple(measured[name] for measured, _ in found)) for name in quantities)
    return Result(rows, {"projections": _figure(reference, found[0][1], labels)})


def _fit(points: NDArray[np.float64], config: RunConfig) -> ProbabilisticPCA:
    model = ProbabilisticPCA(
        2, method="em", tol=1e-7, max_iter=5000, device=config.device, random_state=config.seed % 2**32
    )
    return model.fit(points)


def _project(model: ProbabilisticPCA, points: NDArray[np.float64]) -> Projection:
    posterior = model.posterior(points)
    covariance = posterior.covariance.expand(len(points), 2, 2)
    return Projection(posterior.mean.cpu().numpy(), covariance.cpu().numpy())


def _measure(
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


def _figure(complete: Projection, partial: Projection, labels: NDArray[np.uint8]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("All values", "30 % of the values missing")
    for ax, projection, title in zip(panels, (complete, partial), titles, strict=True):
        for mean, covariance, label in zip(projection.mean, projection.covariance, labels, strict=True):
            color = COLORS[int(label)]
            add_ellipse(ax, mean, covariance, facecolor="none", edgecolor=color, alpha=0.35, linewidth=0.5)
        scatter_classes(ax, projection.mean, labels, size=22.0)
        ax.set(title=title, xlabel="$z_1$", aspect="equal")
    panels[0].set(ylabel="$z_2$")
    add_legend(figure, panels[0])
    return figure
