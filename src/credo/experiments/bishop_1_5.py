"""Over-fitting: training and test error of polynomials, and what a prior does about it.

What the book shows. Polynomials of order M = 0 … 9 are fitted by least squares to N = 10 noisy observations of
sin(2πx). The error on the training set falls to 0 at M = 9, where ten weights meet ten points; the error on a test set
of 100 is small for M between 3 and 8 and explodes at M = 9. The book shows one data set and gives no numbers.

What is run. The same on the book's terms (inputs spread evenly over [0, 1], noise of standard deviation 0.3), together
with the posterior mean of Bayesian regression with the precisions that the book uses for its Figure 1.17,
α = 0.005 and β = 11.1. The figure shows the first data set and the median over many of them, since one set of ten
points says little; the table holds the medians and the first set's.

What differs. The random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo.experiments._sine import NOISE, SineData, at_random, evenly_spaced
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import EPISTEMIC, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDERS = range(10)
SETS: dict[Effort, int] = {"full": 200, "quick": 200, "smoke": 10}
ALPHA, BETA = 5e-3, 11.1
TRAINING, TEST = 10, 100
WAYS = ("least squares", "Bayes")


@experiment(
    title="Over-fitting by polynomials, and the Bayesian remedy",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 1.5",
    figures=["errors"],
)
def run(setting: Setting) -> Result:
    """Fit every order in both ways to many data sets."""
    random = np.random.default_rng(setting.seed)
    pairs = [(evenly_spaced(TRAINING, random), at_random(TEST, random)) for _ in range(SETS[setting.effort])]
    setting.report(f"{len(pairs)} data sets")
    errors = np.array([_errors(training, test) for training, test in pairs])
    median = np.median(errors, axis=0)
    rows = [
        Row(f"{way}, M = {order}: {kind} error, median over data sets", (float(median[order, w, k]),))
        for order in (0, 1, 3, 9)
        for w, way in enumerate(WAYS)
        for k, kind in enumerate(("training", "test"))
    ]
    rows.append(Row("least squares, M = 9: test error on the first data set", (float(errors[0, 9, 0, 1]),)))
    rows.append(Row("Bayes, M = 9: test error on the first data set", (float(errors[0, 9, 1, 1]),)))
    return Result(tuple(rows), {"errors": _figure(errors[0], median, len(pairs))})


def _errors(training: SineData, test: SineData) -> NDArray[np.float64]:
    """Root mean squares of training and test error by order and way, ``[10, 2, 2]``."""
    from credo.linear import BayesianLinearRegression, Polynomial

    found = np.empty((len(ORDERS), 2, 2))
    for order in ORDERS:
        basis = Polynomial(order, include_bias=True)
        weights = np.linalg.lstsq(basis(training.x), training.y, rcond=None)[0]
        model = BayesianLinearRegression(basis, weight_precision=ALPHA, noise_precision=BETA, fit_intercept=False)
        model.fit(training.x, training.y)
        for k, data in enumerate((training, test)):
            for w, mean in enumerate((basis(data.x) @ weights, model.predict(data.x))):
                found[order, w, k] = np.sqrt(np.mean((mean - data.y) ** 2))
    return found


def _figure(first: NDArray[np.float64], median: NDArray[np.float64], sets: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, title, errors in zip(panels, ("one data set", f"median of {sets} data sets"), (first, median), strict=True):
        _panel(ax, errors)
        ax.set(title=title, xlabel="order M")
    panels[0].set(ylabel="root mean square error", ylim=(0.0, 1.0), xticks=list(ORDERS))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _panel(ax: Axes, errors: NDArray[np.float64]) -> None:
    ax.axhline(NOISE, color="0.75", linewidth=0.8, linestyle=":", label="noise")
    for w, (way, color) in enumerate(zip(WAYS, (TRUTH, EPISTEMIC), strict=True)):
        for k, (kind, marker, dash) in enumerate((("training", "o", "--"), ("test", "s", "-"))):
            ax.plot(ORDERS, errors[:, w, k], dash, color=color, marker=marker, markersize=4, label=f"{way}, {kind}")
