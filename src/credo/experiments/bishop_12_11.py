"""The first 100 points of the oil flow data in two dimensions, from all their values and from 70 % of them.

The book's figure. Posterior means of the latent variables of probabilistic PCA for the first 100 points; on the left
from all values, on the right after 30 % of the values have been removed at random, which EM integrates out. The two
look very much alike although nearly every point has lost some of its values. The book gives no numbers.

What is run. Probabilistic PCA by EM on both, the second several times with other values removed. W is known up to a
rotation of z only, so the projections from fewer values are turned onto the others before they are compared. The table
measures how far points move, by how much the subspace turns, and how well the missing values are filled in, beside
filling in the mean of the column; the figure adds to each point of the first repetition one standard deviation of what
is believed of it. A smoke run takes three Gaussian classes in 12 columns instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes, subspace_angles

from credo.decomposition import ProbabilisticPCA
from credo.experiments._flow import COLORS, flow, scatter_classes
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100
SHARE_MISSING = 0.3
REPETITIONS: dict[Effort, int] = {"full": 20, "quick": 5, "smoke": 2}
NORMAL_95 = 1.96


@dataclass(frozen=True, eq=False)
class Projection:
    """Where a model puts the points, and how sure it is.

    Attributes:
        mean: ``[N, 2]``.
        covariance: ``[N, 2, 2]``.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    def turned_onto(self, other: Projection) -> Projection:
        """The same after the rotation or reflection that brings its means closest to those of ``other``."""
        turn, _ = orthogonal_procrustes(self.mean, other.mean)
        return Projection(self.mean @ turn, turn.T @ self.covariance @ turn)


@experiment(
    title="Probabilistic PCA with 30 % of the values missing",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 12.11",
    figures=["projections"],
)
def run(setting: Setting) -> Result:
    """Project all values and some of them, several times, and compare."""
    data = flow(setting)
    points, labels = data.train[:POINTS], data.train_class[:POINTS]
    complete = _fit(points, setting)
    reference = _project(complete, points)
    found = []
    for repetition in range(REPETITIONS[setting.effort]):
        setting.report(f"30 % missing, {repetition + 1} of {REPETITIONS[setting.effort]}")
        random = np.random.default_rng(derive(setting.seed, repetition))
        gappy = np.where(random.random(points.shape) < SHARE_MISSING, np.nan, points)
        model = _fit(gappy, setting)
        projection = _project(model, gappy).turned_onto(reference)
        found.append((_measure(points, gappy, complete, model, reference, projection), projection))
    quantities = found[0][0]
    rows = tuple(Row(name, tuple(measured[name] for measured, _ in found)) for name in quantities)
    return Result(rows, {"projections": _figure(reference, found[0][1], labels)})


def _fit(points: NDArray[np.float64], setting: Setting) -> ProbabilisticPCA:
    model = ProbabilisticPCA(
        2, method="em", tol=1e-7, max_iter=5000, device=setting.device, random_state=setting.seed % 2**32
    )
    return model.fit(points)


def _project(model: ProbabilisticPCA, points: NDArray[np.float64]) -> Projection:
    belief = model.posterior(points)
    covariance = belief.covariance.expand(len(points), 2, 2)
    return Projection(belief.mean.cpu().numpy(), covariance.cpu().numpy())


def _measure(
    points: NDArray[np.float64],
    gappy: NDArray[np.float64],
    complete: ProbabilisticPCA,
    model: ProbabilisticPCA,
    reference: Projection,
    projection: Projection,
) -> dict[str, float]:
    absent = np.isnan(gappy)
    filled = model.predict_missing(gappy)
    error = (points - filled.mean)[absent]
    by_mean = (points - np.nanmean(gappy, axis=0))[absent]
    moved = np.linalg.norm(projection.mean - reference.mean, axis=1)
    angles = subspace_angles(model.components_.T, complete.components_.T)
    return {
        "points with a missing value, share": float(absent.any(1).mean()),
        "mean distance that a point moves, in standard deviations of z": float(moved.mean()),
        "correlation of the coordinates, first component": _correlation(projection, reference, 0),
        "correlation of the coordinates, second component": _correlation(projection, reference, 1),
        "largest angle between the subspaces, degrees": float(np.degrees(angles.max())),
        "noise std / that from all values": float(np.sqrt(model.noise_variance_ / complete.noise_variance_)),
        "error of filled-in values, root mean square": float(np.sqrt(np.mean(error**2))),
        "the same where the mean of the column is filled in": float(np.sqrt(np.mean(by_mean**2))),
        "95 % intervals of filled-in values cover": float(np.mean(np.abs(error) < NORMAL_95 * filled.std[absent])),
    }


def _correlation(a: Projection, b: Projection, coordinate: int) -> float:
    return float(np.corrcoef(a.mean[:, coordinate], b.mean[:, coordinate])[0, 1])


def _figure(complete: Projection, partial: Projection, labels: NDArray[np.uint8]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("All values", "30 % of the values missing")
    for ax, projection, title in zip(panels, (complete, partial), titles, strict=True):
        _ellipses(ax, projection, labels)
        scatter_classes(ax, projection.mean, labels, size=22.0)
        ax.set(title=title, xlabel="$z_1$", aspect="equal")
    panels[0].set(ylabel="$z_2$")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def _ellipses(ax: Axes, projection: Projection, labels: NDArray[np.uint8]) -> None:
    """One standard deviation of what is believed of each point."""
    from matplotlib.patches import Ellipse

    for mean, covariance, label in zip(projection.mean, projection.covariance, labels, strict=True):
        variances, axes = np.linalg.eigh(covariance)
        width, height = 2.0 * np.sqrt(variances[::-1])
        angle = np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
        color = COLORS[int(label)]
        outline = {"facecolor": "none", "edgecolor": color, "alpha": 0.35, "linewidth": 0.5}
        ax.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, **outline))
