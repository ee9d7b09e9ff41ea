"""Whether the stated uncertainty can be taken at its word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from credo import metrics, plots
from credo.predictive import ConformalPredictive
from credo.report import figures
from credo.report.evidence import Evidence
from credo.report.forecast import LEVEL, Forecast
from credo.report.page import Gallery, Part, Picture, Section, Text
from credo.report.wording import for_figure, joined, number, percent, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TENTHS = 10
_INTERVALS = (
    "Do intervals hold as many rows as they promise? Below the diagonal they are too narrow, above too wide; the gray "
    "band is what chance explains."
)


def section(evidence: Evidence) -> Section:
    """Calibration of intervals and quantiles, or of class probabilities."""
    forecast = evidence.forecast
    parts = _of_classes(forecast) if forecast.is_of_classes else _of_numbers(forecast)
    return Section("calibration", "Calibration: does it know how good it is?", parts)


def section_of_several(forecasts: Mapping[str, Forecast]) -> Section:
    """The same of several methods, by their names."""
    first = next(iter(forecasts.values()))
    pictures = (
        [_reliability(forecast, of=name) for name, forecast in forecasts.items()]
        if first.is_of_classes
        else [_intervals_of_several(forecasts)]
    )
    return Section("calibration", "Calibration: do they know how good they are?", [Gallery(pictures)])


def _of_numbers(forecast: Forecast) -> list[Part]:
    shares = [f"{percent(share)} lie inside {percent(level)} intervals" for level, share in forecast.coverage.items()]
    sentence = f"Of {rows(len(forecast))}, {joined(shares)}."
    return [Text(sentence), Gallery([_intervals(forecast, sentence), _quantiles(forecast)])]


def _intervals(forecast: Forecast, told: str) -> Picture:
    return figures.draw(
        lambda ax: plots.interval_calibration(forecast.p, forecast.y, ax),
        alt=f"Interval calibration: the share of observations inside intervals over what they promise. {told}",
        caption=_INTERVALS,
    )


def _intervals_of_several(forecasts: Mapping[str, Forecast]) -> Picture:
    predictions = {for_figure(name): forecast.p for name, forecast in forecasts.items()}
    y = next(iter(forecasts.values())).y
    told = joined([f"{percent(forecast.score('coverage').value)} for {name}" for name, forecast in forecasts.items()])
    return figures.draw(
        lambda ax: plots.interval_calibration(predictions, y, ax),
        alt=f"Interval calibration of every method. {percent(LEVEL)} intervals hold {told}.",
        caption=_INTERVALS,
        width=1.2 * figures.WIDTH,
        height=1.3 * figures.HEIGHT,
    )


def _quantiles(forecast: Forecast) -> Picture:
    transform = metrics.pit(forecast.p, forecast.y, forecast.seed).numpy()
    shares = np.histogram(transform, _TENTHS, (0.0, 1.0))[0] / len(transform)
    told = joined([percent(share) for share in shares])
    of_base = " It is the model's own; the conformal correction moves the intervals alone."
    return figures.draw(
        lambda ax: plots.pit_histogram(forecast.p, forecast.y, ax, bins=_TENTHS),
        alt="Histogram of F(y), the predicted probability of less than was observed, which should hold a tenth of rows "
        f"in each bin. From the lowest bin to the highest it holds {told}.",
        caption="Where do observations fall within what was predicted? Flat is right; a valley is too sure, a hill too "
        "unsure, a slope too high or too low." + (of_base if isinstance(forecast.p, ConformalPredictive) else ""),
    )


def _of_classes(forecast: Forecast) -> list[Part]:
    confidence, accuracy = float(forecast.answers.confidence.mean()), float(forecast.answers.correct.mean())
    lead = Text(
        f"On average the model gives its answer a probability of {percent(confidence)}, and the answer is right for "
        f"{percent(accuracy)} of {rows(len(forecast))}."
    )
    return [lead, Gallery([_reliability(forecast), _right_and_wrong(forecast)])]


def _reliability(forecast: Forecast, of: str = "") -> Picture:
    bins = metrics.reliability(forecast.p, forecast.y)
    told = [
        f"{percent(float(sure))} sure, {percent(float(right))} right ({int(count):,} answers)"
        for sure, right, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True)
        if count
    ]
    return figures.draw(
        lambda ax: plots.reliability(forecast.p, forecast.y, ax),
        alt=f"Reliability diagram{f' of {of}' if of else ''}: the share of right answers over the stated confidence. "
        f"ECE {number(forecast.score('ece').value)}. {'; '.join(told)}.",
        caption=f"{f'{of}: is' if of else 'Is'} it right as often as it says? Below the diagonal it is too sure of "
        "itself. Bars are what chance allows; the steps in gray are how many answers there are.",
    )


def _right_and_wrong(forecast: Forecast) -> Picture:
    wrong, entropy = forecast.loss.bool(), forecast.uncertainty
    parts = {label: values for label, values in (("right", entropy[~wrong]), ("wrong", entropy[wrong])) if len(values)}
    groups = {f"{label} ({len(values):,})": values for label, values in parts.items()}
    told = [f"{float(values.mean()):.2f} nats over {len(values):,} {label} answers" for label, values in parts.items()]
    most = math.log(forecast.mean.shape[1])

    def paint(ax: Axes) -> None:
        plots.uncertainty_histogram(groups, ax, bins=20, limits=(0.0, most))
        ax.legend()

    return figures.draw(
        paint,
        alt=f"Histograms of the predictive entropy of right and of wrong answers; it is {joined(told)} on average.",
        caption="Is it less sure when it is wrong? The further apart the two, the better doubts tell mistakes.",
    )
