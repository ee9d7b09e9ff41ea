"""What was predicted beside what was observed."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from credo import plots
from credo.report import figures
from credo.report.evidence import Evidence
from credo.report.forecast import LEVEL, Forecast
from credo.report.page import Cell, Column, Gallery, Part, Picture, Section, Table
from credo.report.wording import for_figure, name, percent, rows

_CLASSES_SHOWN = 12
_SIDE, _LARGEST_SIDE = 1.3 * figures.HEIGHT, 2.1 * figures.HEIGHT
_CELL = 0.42  # inches, as long as there is room


def section(evidence: Evidence) -> Section:
    """One figure of all rows; of classes also a table."""
    parts: list[Part]
    if evidence.classes:
        parts = [Gallery([_confusion(evidence)]), _by_class(evidence)]
    else:
        parts = [Gallery([_scatter(evidence.forecast)])]
    return Section("observed", "Predicted against observed", parts)


def _scatter(forecast: Forecast) -> Picture:
    y, mean = forecast.y.numpy(), forecast.mean.numpy()
    lower, upper = forecast.interval
    missed = int(((forecast.y < lower) | (forecast.y > upper)).sum())
    varied = np.ptp(y) > 0 and np.ptp(mean) > 0
    correlation = f" Their correlation is {np.corrcoef(mean, y)[0, 1]:.2f}." if varied else ""
    return figures.draw(
        lambda ax: plots.predicted_vs_observed(forecast.p, forecast.y, ax, level=LEVEL),
        alt=f"Predicted over observed values with {percent(LEVEL)} intervals.{correlation} The intervals miss "
        f"{missed:,} of {rows(len(y))}.",
        caption="On the diagonal a prediction is right. Bars that do not reach it, in red, are intervals that missed.",
        width=1.2 * figures.WIDTH,
        height=1.3 * figures.HEIGHT,
    )


def _confusion(evidence: Evidence) -> Picture:
    forecast, names = evidence.forecast, [for_figure(label, 20) for label in evidence.classes]
    wrong = int(forecast.loss.sum())
    side = min(max(_CELL * len(names), _SIDE), _LARGEST_SIDE)
    return figures.draw(
        lambda ax: plots.confusion(forecast.p, forecast.y, ax, names=names),
        alt=f"Confusion matrix of {len(names)} classes: {len(forecast) - wrong:,} of {rows(len(forecast))} on the "
        f"diagonal, {wrong:,} beside it.{_most_confused(evidence)}",
        caption="How often each true class, a row, was taken for each class, a column. Shades are shares of the true "
        "class.",
        width=1.15 * side,
        height=side,
    )


def _most_confused(evidence: Evidence) -> str:
    answers = evidence.forecast.answers
    wrong = answers.label != answers.predicted
    if not bool(wrong.any()):
        return ""
    pairs, counts = np.unique(np.stack([answers.label[wrong], answers.predicted[wrong]], 1), axis=0, return_counts=True)
    true, taken = (name(evidence.classes[k]) for k in pairs[counts.argmax()])
    return f" Most often {true} is taken for {taken}: {counts.max():,} of {counts.sum():,}."


def _by_class(evidence: Evidence) -> Table:
    answers, classes = evidence.forecast.answers, evidence.classes
    precision, recall, _, support = precision_recall_fscore_support(
        answers.label, answers.predicted, labels=range(len(classes)), zero_division=np.nan
    )
    return Table(
        caption="Class by class",
        columns=[Column("Class"), *(Column(c, "number") for c in ("Held-out rows", "Found", "Right when named"))],
        rows=[
            [Cell(label), Cell(f"{support[k]:,}"), Cell(percent(recall[k])), Cell(percent(precision[k]))]
            for k, label in enumerate(classes)
        ],
        folded=f"All {len(classes)} classes, one by one" if len(classes) > _CLASSES_SHOWN else None,
    )
