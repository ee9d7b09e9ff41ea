"""The quality of the uncertainty: its calibration, its two parts, and how well it ranks the errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from credo import metrics, plots
from credo._text import counted
from credo.predictive import ConformalPredictive
from credo.report.formatting import (
    escape_for_figure,
    format_number,
    format_percent,
    format_range,
    format_rows,
    join_words,
    truncate,
)
from credo.report.holdout import LEVEL, HoldoutResult, ScoredPredictions
from credo.report.page import (
    HEIGHT,
    WIDTH,
    Cell,
    Column,
    Gallery,
    Part,
    Picture,
    ReportTable,
    Section,
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
    scored = result.scored
    parts = _class_calibration(scored) if scored.is_classification else _number_calibration(scored)
    return Section("calibration", "Calibration", parts)


def calibration_section_of_methods(scored_by_method: Mapping[str, ScoredPredictions]) -> Section:
    """Return the calibration of several methods by name."""
    first = next(iter(scored_by_method.values()))
    pictures = (
        [_reliability_diagram(scored, method) for method, scored in scored_by_method.items()]
        if first.is_classification
        else [_interval_calibration_of_methods(scored_by_method)]
    )
    return Section("calibration", "Calibration", [Gallery(pictures)])


def uncertainty_section(result: HoldoutResult) -> Section:
    """Return the two parts of the uncertainty, its relation to the errors, and the columns associated with it."""
    scored = result.scored
    split, review = _describe_parts(scored), _describe_review(scored)
    parts: list[Part] = [
        Text(split),
        Text(review),
        Gallery([_uncertainty_parts(scored, split), _risk_curve(scored, review)]),
        _association_table(result),
    ]
    return Section("uncertainty", "Sources of uncertainty", parts)


def uncertainty_section_of_methods(scored_by_method: Mapping[str, ScoredPredictions]) -> Section:
    """Return how well the uncertainty of several methods, by name, ranks their errors."""
    losses = {escape_for_figure(method): scored.loss for method, scored in scored_by_method.items()}
    uncertainties = {escape_for_figure(method): scored.uncertainty for method, scored in scored_by_method.items()}
    areas = [
        f"{format_number(metrics.aurc(e.loss, e.uncertainty))} for {method}" for method, e in scored_by_method.items()
    ]
    label = _loss_label(next(iter(scored_by_method.values())))
    picture = draw_figure(
        lambda ax: plots.risk_coverage(losses, uncertainties, ax, label=label),
        alt=f"Risk–coverage curves: the {label} of the most certain rows against their fraction. The mean over all "
        f"fractions is {join_words(areas)}.",
        caption=_RISK_CAPTION,
        width=1.2 * WIDTH,
        height=1.3 * HEIGHT,
    )
    return Section("uncertainty", "Does uncertainty rank the errors?", [Gallery([picture])])


def _number_calibration(scored: ScoredPredictions) -> list[Part]:
    fractions = [
        f"{format_percent(share)} are inside {format_percent(level)} intervals"
        for level, share in scored.coverage.items()
    ]
    sentence = f"Of {format_rows(len(scored))}, {join_words(fractions)}."
    return [Text(sentence), Gallery([_interval_calibration(scored, sentence), _pit_histogram(scored)])]


def _interval_calibration(scored: ScoredPredictions, description: str) -> Picture:
    return draw_figure(
        lambda ax: plots.interval_calibration(scored.prediction, scored.y, ax),
        alt=f"Interval calibration: the fraction of observations inside intervals against their level. {description}",
        caption=_INTERVAL_CAPTION,
    )


def _interval_calibration_of_methods(scored_by_method: Mapping[str, ScoredPredictions]) -> Picture:
    predictions = {escape_for_figure(method): scored.prediction for method, scored in scored_by_method.items()}
    y = next(iter(scored_by_method.values())).y
    coverages = [f"{format_percent(e.score('coverage').value)} for {method}" for method, e in scored_by_method.items()]
    return draw_figure(
        lambda ax: plots.interval_calibration(predictions, y, ax),
        alt=f"Interval calibration of every method. {format_percent(LEVEL)} intervals cover {join_words(coverages)}.",
        caption=_INTERVAL_CAPTION,
        width=1.2 * WIDTH,
        height=1.3 * HEIGHT,
    )


def _pit_histogram(scored: ScoredPredictions) -> Picture:
    transform = metrics.pit(scored.prediction, scored.y, scored.seed).numpy()
    fractions = np.histogram(transform, _PIT_BINS, (0.0, 1.0))[0] / len(transform)
    is_conformal = isinstance(scored.prediction, ConformalPredictive)
    conformal = " It shows the model without the conformal correction, which changes the intervals only."
    return draw_figure(
        lambda ax: plots.pit_histogram(scored.prediction, scored.y, ax, bins=_PIT_BINS),
        alt="Histogram of F(y), the predicted probability of a value below the observed one; each bin should contain "
        f"10 % of the rows. From the lowest to the highest bin: {join_words([format_percent(f) for f in fractions])}.",
        caption="Where observations fall in the predicted distribution. A flat histogram is calibrated; a U shape is "
        "overconfident, a peak in the middle underconfident, and a slope is a bias." + (conformal * is_conformal),
    )


def _class_calibration(scored: ScoredPredictions) -> list[Part]:
    predictions = scored.class_predictions
    confidence, accuracy = float(predictions.confidence.mean()), float(predictions.correct.mean())
    lead = Text(
        f"The mean confidence is {format_percent(confidence)}, and the predicted class is correct for "
        f"{format_percent(accuracy)} of {format_rows(len(scored))}."
    )
    return [lead, Gallery([_reliability_diagram(scored), _entropy_histogram(scored)])]


def _reliability_diagram(scored: ScoredPredictions, method: str = "") -> Picture:
    bins = metrics.reliability(scored.prediction, scored.y)
    values = [
        f"confidence {format_percent(confidence)}, accuracy {format_percent(accuracy)} ({counted(int(count), 'row')})"
        for confidence, accuracy, count in torch.stack([bins.confidence, bins.accuracy, bins.count], 1).tolist()
        if count
    ]
    return draw_figure(
        lambda ax: plots.reliability(scored.prediction, scored.y, ax),
        alt=f"Reliability diagram{f' of {method}' if method else ''}: the accuracy against the confidence. "
        f"ECE {format_number(scored.score('ece').value)}. {'; '.join(values)}.",
        caption=f"{f'{method}: accuracy' if method else 'Accuracy'} against confidence. Below the diagonal, the model "
        "is overconfident. Error bars show the variation by chance; the gray steps show the number of rows.",
    )


def _entropy_histogram(scored: ScoredPredictions) -> Picture:
    wrong, entropy = scored.loss.bool(), scored.uncertainty
    parts = {
        label: values for label, values in (("correct", entropy[~wrong]), ("wrong", entropy[wrong])) if len(values)
    }
    groups = {f"{label} ({len(values):,})": values for label, values in parts.items()}
    means = [f"{float(v.mean()):.2f} nats for {counted(len(v), f'{label} prediction')}" for label, v in parts.items()]
    max_entropy = math.log(scored.mean.shape[1])

    def plot(ax: Axes) -> None:
        plots.uncertainty_histogram(groups, ax, bins=20, limits=(0.0, max_entropy))
        ax.legend()

    return draw_figure(
        plot,
        alt=f"Histograms of the predictive entropy of correct and wrong predictions; the mean is {join_words(means)}.",
        caption="Is the model less certain when it is wrong? The further apart the two histograms, the better the "
        "uncertainty ranks the errors.",
    )


def _describe_parts(scored: ScoredPredictions) -> str:
    share = scored.epistemic_share
    if math.isnan(share):
        return "The model predicts no uncertainty for any row."
    if not scored.has_epistemic_part:
        return (
            "Inside the training range all of the uncertainty is aleatoric, the noise that these columns do not "
            "explain: this method does not estimate the uncertainty of the model itself."
        )
    return (
        f"Of the uncertainty, {format_percent(share)} is epistemic, from too few training rows, and "
        f"{format_percent(1.0 - share)} is aleatoric, the noise that these columns do not explain."
    )


def _describe_review(scored: ScoredPredictions) -> str:
    risk = metrics.risk_coverage(scored.loss, scored.uncertainty).risk
    kept = math.ceil((1.0 - REVIEWED) * len(scored))
    before, after = float(risk[-1]), float(risk[kept - 1])
    if scored.is_classification:
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


def _uncertainty_parts(scored: ScoredPredictions, split: str) -> Picture:
    low, high = float(scored.uncertainty.min()), float(scored.uncertainty.max())
    quantity = "entropy (nats)" if scored.is_classification else "standard deviation"
    return draw_figure(
        lambda ax: plots.uncertainty_parts(scored.prediction, ax),
        alt=f"The two parts of the uncertainty of {format_rows(len(scored))}, most certain first. {split} The "
        f"{quantity} per row ranges from {format_range(low, high)}.",
        caption="All rows, most certain first, and the two parts of their uncertainty. More training rows would "
        "reduce the epistemic part.",
    )


def _risk_curve(scored: ScoredPredictions, review: str) -> Picture:
    label = _loss_label(scored)
    return draw_figure(
        lambda ax: plots.risk_coverage(scored.loss, {"model": scored.uncertainty}, ax, label=label),
        alt=f"Risk–coverage curve: the {label} of the most certain rows against their fraction. {review}",
        caption=_RISK_CAPTION,
    )


def _loss_label(scored: ScoredPredictions) -> str:
    return "error rate" if scored.is_classification else "mean squared error"


def _association_table(result: HoldoutResult) -> Text | ReportTable:
    found = result.associations
    if not found:
        return Text("No column is significantly associated with the uncertainty.")
    which = "Columns" if len(found) <= _MAX_COLUMNS else f"The first {_MAX_COLUMNS} of {len(found):,} columns"
    return ReportTable(
        caption=f"{which} associated with the uncertainty, not necessarily its cause",
        columns=[Column("Column"), Column("Strength, 0 to 1", "number"), Column("Association", "prose")],
        rows=[[Cell(truncate(a.column)), Cell(f"{a.strength:.2f}"), Cell(a.description)] for a in found[:_MAX_COLUMNS]],
    )
