"""The evidence chooses the order of a polynomial without a test set.

What the book shows. For the sine data of chapter 1 and polynomials of order M = 0 … 9 with the precision of the prior
fixed at α = 0.005, the log evidence has its maximum at M = 3: lower orders fit badly, and higher ones spread their bets
over functions that the data do not need. The sine is odd about its middle, so even terms add nothing, and
the evidence falls from M = 1 to M = 2. The book shows the curve of one data set, and no numbers.

What is run. The same with N = 10 and β = 1/0.3², for 200 data sets: their mean against its expectation in closed form.
With C = β⁻¹I + α⁻¹ΦΦᵀ and s the true curve, y ~ N(s, β⁻¹I) gives

    E log p(y) = −½ (N log 2π + log|C| + tr C⁻¹(ssᵀ + β⁻¹I)).

The figure shows this curve, the mean with its standard error, and the first data set.

What differs. The book does not say which β it takes here; ours is the one that made the data. Its figure has the
maximum at M = 3, as have some of our data sets, the first among them. In expectation M = 4 leads by 0.8 nats: the cubic
closest to the sine has weights up to 32 in size, which a prior of standard deviation 14 grudges, and with x⁴ smaller
ones will do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo.experiments._sine import NOISE, evenly_spaced, truth
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.linear import BayesianLinearRegression

ORDERS = range(10)
ALPHA, BETA, POINTS = 5e-3, NOISE**-2, 10
SETS: dict[Effort, int] = {"full": 200, "quick": 200, "smoke": 10}


@experiment(
    title="The evidence over the order of a polynomial",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.14",
    figures=["evidence"],
)
def run(setting: Setting) -> Result:
    """The log evidence of every order for every data set, and its expectation."""
    random = np.random.default_rng(setting.seed)
    sets = [evenly_spaced(POINTS, random) for _ in range(SETS[setting.effort])]
    setting.report(f"{len(sets)} data sets")
    x = sets[0].x
    found = np.array([[_model(order).fit(data.x, data.y).log_evidence_ for order in ORDERS] for data in sets])
    expected = np.array([_expectation(order, x) for order in ORDERS])
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / math.sqrt(len(sets))
    best = np.bincount(found.argmax(axis=1), minlength=len(ORDERS)) / len(sets)
    rows = [
        *(Row(f"M = {order}: mean log evidence, nats", (float(mean[order]),)) for order in ORDERS),
        *(
            Row(f"M = {order}: expected log evidence in closed form, nats", (float(expected[order]),))
            for order in ORDERS
        ),
        Row("largest distance of the two, in standard errors", (float(np.abs((mean - expected) / error).max()),)),
        Row("order of the highest expected evidence", (float(expected.argmax()),), note="3 in the book's data set"),
        *(Row(f"share of data sets whose evidence is highest at M = {m}", (float(best[m]),)) for m in (3, 4)),
    ]
    return Result(tuple(rows), {"evidence": _figure(found[0], mean, error, expected)})


def _model(order: int) -> BayesianLinearRegression:
    from credo.linear import BayesianLinearRegression, Polynomial

    return BayesianLinearRegression(
        Polynomial(order, include_bias=True),
        weight_precision=ALPHA,
        noise_precision=BETA,
        fit_intercept=False,
    )


def _expectation(order: int, x: NDArray[np.float64]) -> float:
    """E log p(y) over data sets with the inputs ``x``."""
    from credo.linear import Polynomial

    features, curve = Polynomial(order, include_bias=True)(x), truth(x)
    covariance = np.eye(len(x)) / BETA + features @ features.T / ALPHA
    moment = np.outer(curve, curve) + np.eye(len(x)) / BETA
    quadratic = np.trace(np.linalg.solve(covariance, moment))
    return float(-0.5 * (len(x) * math.log(2.0 * math.pi) + np.linalg.slogdet(covariance)[1] + quadratic))


def _figure(
    first: NDArray[np.float64], mean: NDArray[np.float64], error: NDArray[np.float64], expected: NDArray[np.float64]
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    ax = figure.subplots()
    ax.plot(ORDERS, first, color=MUTED, marker="^", markersize=4, linewidth=1.0, label="one data set")
    ax.plot(ORDERS, expected, color=TRUTH, linewidth=1.2, label="expectation, closed form")
    ax.errorbar(ORDERS, mean, 2 * error, color=EPISTEMIC, fmt="o", markersize=4, capsize=2, label="mean, ± 2 s.e.")
    ax.set(xlabel="order M", ylabel="log evidence, nats", xticks=list(ORDERS))
    ax.legend(loc="lower right")
    return figure
