"""The quality of the uncertainty: its calibration, its two parts, and how well it ranks the errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from credo import metrics, plots
from credo.predictive.conformal import ConformalPredictive
from credo.report.formatting import (
    escape_for_figure,
    format_number,
    format_percent,
    format_range,
    format_rows,
    join_words,
    truncate,
)
from credo.report.holdout import LEVEL, Evaluation, HoldoutResult
from credo.report.page import (
    HEIGHT,
    WIDTH,
    Cell,
    Column,
    Gallery,
    Part,
    Picture,
    Section,
    Table,
    Text,
    draw_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REVIEWED = 0.2
"""The fraction of rows, the least certain, that a person might review."""

_PIT_BINS = 10
_MAX_COLUMNS = 8
_INTERVAL_CAPTION = (
    "The fraction of rows inside intervals of each level. Below the diagonal, intervals are too narrow; above, too "
    "wide. The gray band shows the variation by chance."
)
_RISK_CAPTION = (
    "The error of the most certain rows only. The lower the curve towards the left, the better the uncertainty ranks "
    "the errors."
)


def calibration_section(result: HoldoutResult) -> Section:
    """Return the calibration of intervals and quantiles, or of class probabilities."""
    evaluation = result.evaluation
    parts = _class_calibration(evaluation) if evaluation.is_classification else _number_calibration(evaluation)
    return Section("calibration", "Calibration", parts)


def calibration_section_of_methods(evaluations: Mapping[str, Evaluation]) -> Section:
    """Return the calibration of several methods by name."""
    first = next(iter(evaluations.values()))
    pictures = (
        [_reliability_diagram(evaluation, method) for method, evaluation in evaluations.items()]
        if first.is_classification
        else [_interval_calibration_of_methods(evaluations)]
    )
    return Section("calibration", "Calibration", [Gallery(pictures)])


def uncertainty_section(result: HoldoutResult) -> Section:
    """Return the two parts of the uncertainty, its relation to the errors, and the columns associated with it."""
    evaluation = result.evaluation
    split, review = _describe_parts(evaluation), _describe_review(evaluation)
    parts: list[Part] = [
        Text(split),
        Text(review),
        Gallery([_uncertainty_parts(evaluation, split), _risk_curve(evaluation, review)]),
        _association_table(result),
    ]
    return Section("uncertainty", "Sources of uncertainty", parts)


def uncertainty_section_of_methods(evaluations: Mapping[str, Evaluation]) -> Section:
    """Return how well the uncertainty of several methods, by name, ranks their errors."""
    losses = {escape_for_figure(method): evaluation.loss for method, evaluation in evaluations.items()}
    uncertainties = {escape_for_figure(method): evaluation.uncertainty for method, evaluation in evaluations.items()}
    areas = [f"{format_number(metrics.aurc(e.loss, e.uncertainty))} for {method}" for method, e in evaluations.items()]
    label = _loss_label(next(iter(evaluations.values())))
    picture = draw_figure(
        lambda ax: plots.risk_coverage(losses, uncertainties, ax, label=label),
        alt=f"Risk–coverage curves: the {label} of the most certain rows against their fraction. The mean over all "
        f"fractions is {join_words(areas)}.",
        caption=_RISK_CAPTION,
        width=1.2 * WIDTH,
        height=1.3 * HEIGHT,
    )
    return Section("uncertainty", "Does uncertainty rank the errors?", [Gallery([picture])])


def _number_calibration(evaluation: Evaluation) -> list[Part]:
    fractions = [
        f"{format_percent(share)} are inside {format_percent(level)} intervals"
        for level, share in evaluation.coverage.items()
    ]
    sentence = f"Of {format_rows(len(evaluation))}, {join_words(fractions)}."
    return [Text(sentence), Gallery([_interval_calibration(evaluation, sentence), _pit_histogram(evaluation)])]


def _interval_calibration(evaluation: Evaluation, description: str) -> Picture:
    return draw_figure(
        lambda ax: plots.interval_calibration(evaluation.prediction, evaluation.y, ax),
        alt=f"Interval calibration: the fraction of observations inside intervals against their level. {description}",
        caption=_INTERVAL_CAPTION,
    )


def _interval_calibration_of_methods(evaluations: Mapping[str, Evaluation]) -> Picture:
    predictions = {escape_for_figure(method): evaluation.prediction for method, evaluation in evaluations.items()}
    y = next(iter(evaluations.values())).y
    coverages = [f"{format_percent(e.score('coverage').value)} for {method}" for method, e in evaluations.items()]
    return draw_figure(
        lambda ax: plots.interval_calibration(predictions, y, ax),
        alt=f"Interval calibration of every method. {format_percent(LEVEL)} intervals cover {join_words(coverages)}.",
        caption=_INTERVAL_CAPTION,
        width=1.2 * WIDTH,
        height=1.3 * HEIGHT,
    )


def _pit_histogram(evaluation: Evaluation) -> Picture:
    transform = metrics.pit(evaluation.prediction, evaluation.y, evaluation.seed).numpy()
    fractions = np.histogram(transform, _PIT_BINS, (0.0, 1.0))[0] / len(transform)
    is_conformal = isinstance(evaluation.prediction, ConformalPredictive)
    conformal = " It shows the model without the conformal correction, which changes the intervals only."
    return draw_figure(
        lambda ax: plots.pit_histogram(evaluation.prediction, evaluation.y, ax, bins=_PIT_BINS),
        alt="Histogram of F(y), the predicted probability of a value below the observed one; each bin should contain "
        f"10 % of the rows. From the lowest to the highest bin: {join_words([format_percent(f) for f in fractions])}.",
        caption="Where observations fall in the predicted distribution. A flat histogram is calibrated; a U shape is "
        "overconfident, a peak in the middle underconfident, and a slope is a bias." + (conformal * is_conformal),
    )


def _class_calibration(evaluation: Evaluation) -> list[Part]:
    predictions = evaluation.class_predictions
    confidence, accuracy = float(predictions.confidence.mean()), float(predictions.correct.mean())
    lead = Text(
        f"The mean confidence is {format_percent(confidence)}, and the predicted class is correct for "
        f"{format_percent(accuracy)} of {format_rows(len(evaluation))}."
    )
    return [lead, Gallery([_reliability_diagram(evaluation), _entropy_histogram(evaluation)])]


def _reliability_diagram(evaluation: Evaluation, method: str = "") -> Picture:
    bins = metrics.reliability(evaluation.prediction, evaluation.y)
    values = [
        f"confidence {format_percent(confidence)}, accuracy {format_percent(accuracy)} ({count:,.0f} rows)"
        for confidence, accuracy, count in torch.stack([bins.confidence, bins.accuracy, bins.count], 1).tolist()
        if count
    ]
    return draw_figure(
        lambda ax: plots.reliability(evaluation.prediction, evaluation.y, ax),
        alt=f"Reliability diagram{f' of {method}' if method else ''}: the accuracy against the confidence. "
        f"ECE {format_number(evaluation.score('ece').value)}. {'; '.join(values)}.",
        caption=f"{f'{method}: accuracy' if method else 'Accuracy'} against confidence. Below the diagonal, the model "
        "is overconfident. Error bars show the variation by chance; the gray steps show the number of rows.",
    )


def _entropy_histogram(evaluation: Evaluation) -> Picture:
    wrong, entropy = evaluation.loss.bool(), evaluation.uncertainty
    parts = {
        label: values for label, values in (("correct", entropy[~wrong]), ("wrong", entropy[wrong])) if len(values)
    }
    groups = {f"{label} ({len(values):,})": values for label, values in parts.items()}
    means = [f"{float(v.mean()):.2f} nats for {len(v):,} {label} predictions" for label, v in parts.items()]
    max_entropy = math.log(evaluation.mean.shape[1])

    def plot(ax: Axes) -> None:
        plots.uncertainty_histogram(groups, ax, bins=20, limits=(0.0, max_entropy))
        ax.legend()

    return draw_figure(
        plot,
        alt=f"Histograms of the predictive entropy of correct and wrong predictions; the mean is {join_words(means)}.",
        caption="Is the model less certain when it is wrong? The further apart the two histograms, the better the "
        "uncertainty ranks the errors.",
    )


def _describe_parts(evaluation: Evaluation) -> str:
    share = evaluation.epistemic_share
    if math.isnan(share):
        return "The model predicts no uncertainty for any row."
    if not evaluation.has_epistemic_part:
        return (
            "Inside the training range all of the uncertainty is aleatoric, the noise that these columns do not "
            "explain: this method does not estimate the uncertainty of the model itself."
        )
    return (
        f"Of the uncertainty, {format_percent(share)} is epistemic, from too few training rows, and "
        f"{format_percent(1.0 - share)} is aleatoric, the noise that these columns do not explain."
    )


def _describe_review(evaluation: Evaluation) -> str:
    risk = metrics.risk_coverage(evaluation.loss, evaluation.uncertainty).risk
    kept = math.ceil((1.0 - REVIEWED) * len(evaluation))
    before, after = float(risk[-1]), float(risk[kept - 1])
    if evaluation.is_classification:
        loss, values = "error rate", (format_percent(before), format_percent(after))
    else:
        loss, values = "typical error (RMSE)", (format_number(math.sqrt(before)), format_number(math.sqrt(after)))
    if values[0] == values[1]:
        change = f"stays at {values[0]}"
    elif after < before:
        change = f"falls from {values[0]} to {values[1]}"
    else:
        change = f"rises from {values[0]} to {values[1]}: here the uncertainty does not rank the errors"
    return f"If a person reviews the least certain {format_percent(REVIEWED)} of rows, the {loss} of the rest {change}."


def _uncertainty_parts(evaluation: Evaluation, split: str) -> Picture:
    low, high = float(evaluation.uncertainty.min()), float(evaluation.uncertainty.max())
    quantity = "entropy in nats" if evaluation.is_classification else "standard deviation"
    return draw_figure(
        lambda ax: plots.uncertainty_parts(evaluation.prediction, ax),
        alt=f"The two parts of the uncertainty of {format_rows(len(evaluation))}, most certain first. {split} The "
        f"{quantity} of a row ranges from {format_range(low, high)}.",
        caption="All rows, most certain first, and the two parts of their uncertainty. More training rows would "
        "reduce the epistemic part.",
    )


def _risk_curve(evaluation: Evaluation, review: str) -> Picture:
    label = _loss_label(evaluation)
    return draw_figure(
        lambda ax: plots.risk_coverage(evaluation.loss, {"model": evaluation.uncertainty}, ax, label=label),
        alt=f"Risk–coverage curve: the {label} of the most certain rows against their fraction. {review}",
        caption=_RISK_CAPTION,
    )


def _loss_label(evaluation: Evaluation) -> str:
    return "error rate" if evaluation.is_classification else "mean squared error"


def _association_table(result: HoldoutResult) -> Text | Table:
    found = result.associations
    if not found:
        return Text("No column is significantly associated with the uncertainty.")
    which = "Columns" if len(found) <= _MAX_COLUMNS else f"The first {_MAX_COLUMNS} of {len(found):,} columns"
    return Table(
        caption=f"{which} associated with the uncertainty, not necessarily its cause",
        columns=[Column("Column"), Column("Strength, 0 to 1", "number"), Column("Association", "prose")],
        rows=[[Cell(truncate(a.column)), Cell(f"{a.strength:.2f}"), Cell(a.description)] for a in found[:_MAX_COLUMNS]],
    )
