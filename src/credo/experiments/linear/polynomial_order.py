"""The order of a polynomial: overfitting, and the evidence (Bishop 1.5 and 3.14)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from credo.experiments._shared import SINE_NOISE, SineData, add_legend, sine, sine_at_random, sine_evenly_spaced
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import EPISTEMIC, MUTED, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.linear import BayesianLinearRegression

ORDERS = range(10)
ESTIMATORS = ("least squares", "Bayes")
TRAINING_POINTS, TEST_POINTS = 10, 100
ALPHA, BETA, OVERFITTING_BETA = 5e-3, SINE_NOISE**-2, 11.1
DATA_SETS: dict[Budget, int] = {"full": 200, "quick": 200, "smoke": 10}


@experiment(
    "polynomial-overfitting",
    title="Overfitting by polynomials, and the Bayesian remedy",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 1.5",
    figures=["errors"],
)
def overfitting(config: RunConfig) -> Result:
    """Training and test error of polynomials by least squares, and with a prior.

    What the book shows. Polynomials of order M = 0 … 9 are fitted by least squares to N = 10 noisy observations of
    sin(2πx). The error on the training set falls to 0 at M = 9, where there are ten weights for ten points. The error
    on a test set of 100 is small for M between 3 and 8 and very large at M = 9. The book shows one data set and gives
    no numbers.

    What is run. The same with the book's data (inputs spread evenly over [0, 1], noise of standard deviation 0.3),
    together with the posterior mean of Bayesian regression with the precisions of the book's Figure 1.17, α = 0.005 and
    β = 11.1. One set of ten points is not representative, so the figure shows the first data set and the median over
    many; the table has the medians and the errors on the first set.

    What differs. The random numbers.
    """
    random = np.random.default_rng(config.seed)
    n_sets = DATA_SETS[config.budget]
    pairs = [(sine_evenly_spaced(TRAINING_POINTS, random), sine_at_random(TEST_POINTS, random)) for _ in range(n_sets)]
    config.report(f"{n_sets} data sets")
    errors = np.array([_errors(training, test) for training, test in pairs])
    median = np.median(errors, axis=0)
    rows = [
        Row(f"{estimator}, M = {order}: {kind} error, median over data sets", (float(median[order, e, k]),))
        for order in (0, 1, 3, 9)
        for e, estimator in enumerate(ESTIMATORS)
        for k, kind in enumerate(("training", "test"))
    ]
    rows.append(Row("least squares, M = 9: test error on the first data set", (float(errors[0, 9, 0, 1]),)))
    rows.append(Row("Bayes, M = 9: test error on the first data set", (float(errors[0, 9, 1, 1]),)))
    return Result(tuple(rows), {"errors": _errors_figure(errors[0], median, n_sets)})


@experiment(
    "polynomial-evidence",
    title="The evidence over the order of a polynomial",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.14",
    figures=["evidence"],
)
def evidence(config: RunConfig) -> Result:
    """The evidence chooses the order of a polynomial without a test set.

    What the book shows. For the sine data of chapter 1 and polynomials of order M = 0 … 9 with the precision of the
    prior fixed at α = 0.005, the log evidence has its maximum at M = 3: lower orders fit badly, and higher orders
    spread their probability over functions that the data do not need. The sine is odd about its middle, so even terms
    add nothing, and the evidence falls from M = 1 to M = 2. The book shows the curve of one data set, and no numbers.

    What is run. The same with N = 10 and β = 1/0.3², for 200 data sets: their mean against its expectation in closed
    form. With C = β⁻¹I + α⁻¹ΦΦᵀ and s the true curve, y ~ N(s, β⁻¹I) gives

        E log p(y) = −½ (N log 2π + log|C| + tr C⁻¹(ssᵀ + β⁻¹I)).

    The figure shows this curve, the mean with its standard error, and the first data set.

    What differs. The book does not state its β; ours is that of the data. The book's figure has the maximum at M = 3,
    as have some of our data sets, including the first. In expectation M = 4 is best by 0.8 nats: the cubic closest to
    the sine has weights up to 32, which are unlikely under a prior with standard deviation 14, and with x⁴ smaller
    weights suffice.
    """
    random = np.random.default_rng(config.seed)
    sets = [sine_evenly_spaced(TRAINING_POINTS, random) for _ in range(DATA_SETS[config.budget])]
    config.report(f"{len(sets)} data sets")
    x = sets[0].x
    found = np.array(
        [[_polynomial_model(order).fit(data.x, data.y).log_evidence_ for order in ORDERS] for data in sets]
    )
    expected = np.array([_expected_evidence(order, x) for order in ORDERS])
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / math.sqrt(len(sets))
    best = np.bincount(found.argmax(axis=1), minlength=len(ORDERS)) / len(sets)
    rows = [
        *(Row(f"M = {order}: mean log evidence, nats", (float(mean[order]),)) for order in ORDERS),
        *(
            Row(f"M = {order}: expected log evidence in closed form, nats", (float(expected[order]),))
            for order in ORDERS
        ),
        Row("largest difference of the two, in standard errors", (float(np.abs((mean - expected) / error).max()),)),
        Row("order of the highest expected evidence", (float(expected.argmax()),), note="3 in the book's data set"),
        *(Row(f"share of data sets whose evidence is highest at M = {m}", (float(best[m]),)) for m in (3, 4)),
    ]
    return Result(tuple(rows), {"evidence": _evidence_figure(found[0], mean, error, expected)})


def _polynomial_model(order: int, noise_precision: float = BETA) -> BayesianLinearRegression:
    from credo.linear import BayesianLinearRegression, Polynomial

    return BayesianLinearRegression(
        Polynomial(order, include_bias=True),
        weight_precision=ALPHA,
        noise_precision=noise_precision,
        fit_intercept=False,
    )


def _expected_evidence(order: int, x: NDArray[np.float64]) -> float:
    """E log p(y) over data sets with the inputs ``x``."""
    from credo.linear import Polynomial

    features, curve = Polynomial(order, include_bias=True)(x), sine(x)
    covariance = np.eye(len(x)) / BETA + features @ features.T / ALPHA
    moment = np.outer(curve, curve) + np.eye(len(x)) / BETA
    quadratic = np.trace(np.linalg.solve(covariance, moment))
    return float(-0.5 * (len(x) * math.log(2.0 * math.pi) + np.linalg.slogdet(covariance)[1] + quadratic))


def _evidence_figure(
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


def _errors(training: SineData, test: SineData) -> NDArray[np.float64]:
    """Root mean square errors by order, estimator and data set, ``[10, 2, 2]``."""
    from credo.linear import Polynomial

    errors = np.empty((len(ORDERS), 2, 2))
    for order in ORDERS:
        basis = Polynomial(order, include_bias=True)
        weights = np.linalg.lstsq(basis(training.x), training.y, rcond=None)[0]
        model = _polynomial_model(order, OVERFITTING_BETA).fit(training.x, training.y)
        for k, data in enumerate((training, test)):
            for e, mean in enumerate((basis(data.x) @ weights, model.predict(data.x))):
                errors[order, e, k] = np.sqrt(np.mean((mean - data.y) ** 2))
    return errors


def _errors_figure(first: NDArray[np.float64], median: NDArray[np.float64], sets: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, title, errors in zip(panels, ("one data set", f"median of {sets} data sets"), (first, median), strict=True):
        _errors_panel(ax, errors)
        ax.set(title=title, xlabel="order M")
    panels[0].set(ylabel="root mean square error", ylim=(0.0, 1.0), xticks=list(ORDERS))
    add_legend(figure, panels[0])
    return figure


def _errors_panel(ax: Axes, errors: NDArray[np.float64]) -> None:
    ax.axhline(SINE_NOISE, color="0.75", linewidth=0.8, linestyle=":", label="noise")
    for e, (estimator, color) in enumerate(zip(ESTIMATORS, (TRUTH, EPISTEMIC), strict=True)):
        for k, (kind, marker, dash) in enumerate((("training", "o", "--"), ("test", "s", "-"))):
            ax.plot(
                ORDERS, errors[:, e, k], dash, color=color, marker=marker, markersize=4, label=f"{estimator}, {kind}"
            )
