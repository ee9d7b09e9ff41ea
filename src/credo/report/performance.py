"""How good the predictions are: a summary, a table of metrics, and predicted against observed values."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from credo import plots
from credo.metrics import Score
from credo.report.formatting import (
    capitalize,
    escape_for_figure,
    format_better,
    format_number,
    format_percent,
    format_rows,
    format_score,
    format_score_interval,
    quote,
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
    Tile,
    draw_figure,
)

_MAX_CLASSES = 12  # with more, the table of classes is collapsed
_MIN_SIDE, _MAX_SIDE = 1.3 * HEIGHT, 2.1 * HEIGHT  # of the confusion matrix, inches
_CELL = 0.42  # inches


def summary(result: HoldoutResult) -> str:
    """Return the main result in words, in the unit of the target."""
    return _class_summary(result) if result.classes else _number_summary(result)


def tiles(result: HoldoutResult) -> list[Tile]:
    """Return the most important scores."""
    scored, level = result.scored, format_percent(LEVEL)
    if not scored.is_classification:
        return [
            score_tile(scored.score("rmse"), "Typical error (RMSE)"),
            score_tile(scored.score("r2"), "Explained variance (R²)"),
            score_tile(scored.score("coverage"), f"Coverage of {level} intervals"),
            score_tile(scored.score("width"), f"Mean width of {level} intervals"),
        ]
    confidence = format_percent(float(scored.class_predictions.confidence.mean()))
    return [
        score_tile(scored.score("accuracy"), "Accuracy"),
        Tile("Mean confidence", confidence, "should equal the accuracy"),
        score_tile(scored.score("ece"), "Calibration error (ECE)"),
        score_tile(scored.score("nll"), "Negative log likelihood"),
    ]


def score_tile(score: Score, label: str) -> Tile:
    """Return a score in large print."""
    return Tile(label, format_score(score), f"95 % interval {format_score_interval(score)}")


def metrics_section(result: HoldoutResult) -> Section:
    """Return the table of all scores."""
    scored = result.scored
    lead = Text(
        f"From {format_rows(len(scored))} that were not used for training. The 95 % intervals estimate the score "
        "on infinitely many rows of the same distribution: binomial intervals for fractions, a score interval for the "
        "AUROC, and bootstrap intervals for the other metrics. With few rows they are approximate."
    )
    table = ReportTable(
        caption="Metrics on held-out rows",
        columns=[
            Column("Metric"),
            Column("Value", "number"),
            Column("95 % interval", "number"),
            Column("Better"),
            Column("Meaning", "prose"),
        ],
        rows=[
            [
                Cell(capitalize(score.label)),
                Cell(format_score(score), strong=True),
                Cell(format_score_interval(score)),
                Cell(format_better(score)),
                Cell(capitalize(score.meaning)),
            ]
            for score in scored.scores
        ],
    )
    return Section("metrics", "Metrics", [lead, table])


def observed_section(result: HoldoutResult) -> Section:
    """Return a figure of predicted against observed values; for classes also a table."""
    parts: list[Part]
    if result.classes:
        parts = [Gallery([_confusion_matrix(result)]), _class_table(result)]
    else:
        parts = [Gallery([_scatter_plot(result.scored)])]
    return Section("observed", "Predicted vs. observed", parts)


def _number_summary(result: HoldoutResult) -> str:
    scored = result.scored
    rmse = scored.score("rmse").value
    baseline = float((scored.y - result.training_mean).square().mean().sqrt())
    coverage = format_percent(scored.score("coverage").value)
    return (
        f"The typical error is {format_number(rmse, 2)} (RMSE {format_number(rmse)}; always predicting the mean gives "
        f"{format_number(baseline)}). {format_percent(LEVEL)} intervals cover {coverage} of "
        f"{format_rows(len(scored))}."
    )


def _class_summary(result: HoldoutResult) -> str:
    scored, predictions = result.scored, result.scored.class_predictions
    counts = predictions.label.bincount()
    majority = int(counts.argmax())
    accuracy, baseline = float(predictions.correct.mean()), float(counts[majority]) / len(scored)
    return (
        f"The predicted class is correct for {format_percent(accuracy)} of {format_rows(len(scored))} (always "
        f"predicting {quote(result.classes[majority])} is correct for {format_percent(baseline)}). The mean "
        f"confidence is {format_percent(float(predictions.confidence.mean()))}."
    )


def _scatter_plot(scored: ScoredPredictions) -> Picture:
    y, mean = scored.y.numpy(), scored.mean.numpy()
    lower, upper = scored.interval
    missed = int(((scored.y < lower) | (scored.y > upper)).sum())
    varied = np.ptp(y) > 0 and np.ptp(mean) > 0
    correlation = f" Their correlation is {np.corrcoef(mean, y)[0, 1]:.2f}." if varied else ""
    return draw_figure(
        lambda ax: plots.predicted_vs_observed(scored.prediction, scored.y, ax, level=LEVEL),
        alt=f"Predicted against observed values with {format_percent(LEVEL)} intervals.{correlation} The intervals "
        f"miss {missed:,} of {format_rows(len(y))}.",
        caption="Correct predictions lie on the diagonal. Intervals that miss the observed value are red.",
        width=1.2 * WIDTH,
        height=1.3 * HEIGHT,
    )


def _confusion_matrix(result: HoldoutResult) -> Picture:
    scored, names = result.scored, [escape_for_figure(label, 20) for label in result.classes]
    wrong = int(scored.loss.sum())
    side = min(max(_CELL * len(names), _MIN_SIDE), _MAX_SIDE)
    return draw_figure(
        lambda ax: plots.confusion(scored.prediction, scored.y, ax, names=names),
        alt=f"Confusion matrix of {len(names)} classes: {len(scored) - wrong:,} of "
        f"{format_rows(len(scored))} are on the diagonal, {wrong:,} off the diagonal.{_most_confused(result)}",
        caption="The number of rows per true class (rows) and predicted class (columns). Shades show fractions of the "
        "true class.",
        width=1.15 * side,
        height=side,
    )


def _most_confused(result: HoldoutResult) -> str:
    predictions = result.scored.class_predictions
    wrong = predictions.label != predictions.predicted
    if not bool(wrong.any()):
        return ""
    pairs, counts = np.unique(
        np.stack([predictions.label[wrong], predictions.predicted[wrong]], 1), axis=0, return_counts=True
    )
    true, predicted = (quote(result.classes[k]) for k in pairs[counts.argmax()])
    return f" The most frequent error predicts {predicted} for {true}: {counts.max():,} of {counts.sum():,}."


def _class_table(result: HoldoutResult) -> ReportTable:
    predictions, classes = result.scored.class_predictions, result.classes
    precision, recall, _, support = precision_recall_fscore_support(
        predictions.label, predictions.predicted, labels=range(len(classes)), zero_division=np.nan
    )
    return ReportTable(
        caption="Recall and precision per class",
        columns=[Column("Class"), *(Column(c, "number") for c in ("Held-out rows", "Recall", "Precision"))],
        rows=[
            [Cell(label), Cell(f"{support[k]:,}"), Cell(format_percent(recall[k])), Cell(format_percent(precision[k]))]
            for k, label in enumerate(classes)
        ],
        toggle=f"All {len(classes)} classes" if len(classes) > _MAX_CLASSES else None,
    )
