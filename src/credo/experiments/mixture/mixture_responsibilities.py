"""The responsibilities of a Gaussian mixture (Bishop 9.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import entr
from scipy.stats import multivariate_normal

from credo.experiments._shared import add_ellipse
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.mixture import GaussianMixture
from credo.plots.style import MUTED, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.28, 0.42], [0.52, 0.50], [0.76, 0.60]])
COVARIANCES = np.array(
    [[[0.020, 0.012], [0.012, 0.022]], [[0.018, -0.014], [-0.014, 0.020]], [[0.010, 0.008], [0.008, 0.024]]]
)
COLORS = tuple(OKABE_ITO[name] for name in ("vermilion", "green", "blue"))
POINTS: dict[Budget, int] = {"full": 500, "quick": 500, "smoke": 200}


@experiment(
    "mixture-responsibilities",
    title="The latent components of a mixture and their responsibilities",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 9.5",
    figures=["responsibilities"],
)
def run(config: RunConfig) -> Result:
    """The latent components of a mixture: 500 points with their components, without them, and with responsibilities.

    What the book shows. Points drawn from three Gaussians: (a) colored by the component that each came from, the
    complete data; (b) without colors, the incomplete data, which is all that is observed; (c) with the three colors
    mixed by the responsibilities γ(z_nk), so that a point between two components has a color between theirs.

    What is run. The same with a mixture of three overlapping Gaussians of our own (the book gives no parameters), and a
    fourth panel with the responsibilities of a mixture fitted to the incomplete data by EM. The table has how well the
    true parameters, and those of EM, recover the components.
    """
    random = np.random.default_rng(config.seed)
    component = random.choice(3, POINTS[config.budget], p=WEIGHTS)
    noise = random.normal(size=(len(component), 2))
    x = MEANS[component] + np.einsum("nij,nj->ni", np.linalg.cholesky(COVARIANCES)[component], noise)
    log_joint = np.stack([multivariate_normal(*each).logpdf(x) for each in zip(MEANS, COVARIANCES, strict=True)], 1)
    log_joint += np.log(WEIGHTS)
    log_density = np.logaddexp.reduce(log_joint, axis=1)
    model = GaussianMixture(3, n_init=5, tol=1e-6, max_iter=5000, random_state=config.seed).fit(x)
    order = _match_components(model.means_)
    true, fitted = np.exp(log_joint - log_density[:, None]), model.predict_proba(x)[:, order]

    rows = []
    for name, r in (("true parameters", true), ("EM", fitted)):
        measured = {
            "points whose true component has the highest responsibility": (r.argmax(1) == component).mean(),
            "mean responsibility of the true component": r[np.arange(len(x)), component].mean(),
            "entropy of the responsibilities, nats per point": entr(r).sum(1).mean(),
        }
        rows += [Row(f"{name}: {quantity}", (float(value),)) for quantity, value in measured.items()]
    distances = np.linalg.norm(model.means_[order] - MEANS, axis=1)
    rows += [
        Row("true parameters: log likelihood, nats per point", (float(log_density.mean()),)),
        Row("EM: log likelihood, nats per point", (model.score(x),)),
        Row("EM: largest error of a weight", (float(np.abs(model.weights_[order] - WEIGHTS).max()),)),
        Row("EM: largest distance of a mean from the true one", (float(distances.max()),)),
    ]
    estimate = (model.means_[order], model.covariances_[order])
    return Result(tuple(rows), {"responsibilities": _figure(x, component, true, fitted, estimate)})


def _match_components(means: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the order of the fitted components that matches the true ones."""
    distances = np.linalg.norm(MEANS[:, None] - means, axis=-1)
    return np.asarray(linear_sum_assignment(distances)[1])


def _figure(
    x: NDArray[np.float64],
    component: NDArray[np.int64],
    true: NDArray[np.float64],
    fitted: NDArray[np.float64],
    estimate: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> Figure:
    from matplotlib.colors import to_rgb, to_rgba
    from matplotlib.figure import Figure

    palette = np.array([to_rgb(color) for color in COLORS])
    figure = Figure(figsize=(10.4, 3.0), layout="constrained")
    panels = figure.subplots(1, 4, sharex=True, sharey=True)
    titles = ("(a) complete", "(b) incomplete", "(c) true responsibilities", "(d) responsibilities by EM")
    colors = (palette[component], to_rgba(MUTED), true @ palette, fitted @ palette)
    for ax, title, color in zip(panels, titles, colors, strict=True):
        ax.scatter(x[:, 0], x[:, 1], s=7.0, c=np.atleast_2d(color), linewidths=0.0)
        ax.set(title=title, aspect="equal", xticks=(0.0, 0.5, 1.0), yticks=(0.0, 0.5, 1.0))
    for ax, gaussians in ((panels[2], (MEANS, COVARIANCES)), (panels[3], estimate)):
        for mean, covariance, color in zip(*gaussians, COLORS, strict=True):
            add_ellipse(ax, mean, covariance, 2.0, fill=False, edgecolor=color, linewidth=1.2)
    return figure
