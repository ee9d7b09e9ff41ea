"""Where the uncertainty comes from, and what may be done about it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from credo import metrics, plots
from credo.report import figures
from credo.report.evidence import Evidence
from credo.report.forecast import Forecast
from credo.report.page import Cell, Column, Gallery, Part, Picture, Section, Table, Text
from credo.report.wording import cut, for_figure, interval, joined, number, percent, rows

HANDED_OVER = 0.2
"""The share of rows, the least certain, that a person might look at."""

_COLUMNS = 8
_RISK = "The error among the surest rows alone. The lower the curve towards the left, the better doubts tell mistakes."


def section(evidence: Evidence) -> Section:
    """Its two parts, what it is good for, and the columns that it goes with."""
    forecast = evidence.forecast
    split, handed_over = _split(forecast), _handed_over(forecast)
    parts: list[Part] = [
        Text(split),
        Text(handed_over),
        Gallery([_parts(forecast, split), _risk(forecast, handed_over)]),
        _columns(evidence),
    ]
    return Section("uncertainty", "Where the uncertainty comes from", parts)


def section_of_several(forecasts: Mapping[str, Forecast]) -> Section:
    """What the uncertainty of several methods is good for, by their names."""
    losses = {for_figure(name): forecast.loss for name, forecast in forecasts.items()}
    doubts = {for_figure(name): forecast.uncertainty for name, forecast in forecasts.items()}
    told = joined([f"{number(metrics.aurc(f.loss, f.uncertainty))} for {name}" for name, f in forecasts.items()])
    label = _loss_label(next(iter(forecasts.values())))
    picture = figures.draw(
        lambda ax: plots.risk_coverage(losses, doubts, ax, label=label),
        alt=f"Risk–coverage curves: the {label} of the most certain rows over their share. Its mean over all shares is "
        f"{told}.",
        caption=_RISK,
        width=1.2 * figures.WIDTH,
        height=1.3 * figures.HEIGHT,
    )
    return Section("uncertainty", "Do doubts tell mistakes?", [Gallery([picture])])


def _split(forecast: Forecast) -> str:
    share = forecast.epistemic_share
    if math.isnan(share):
        return "The model is entirely sure of every row."
    if not forecast.has_epistemic_part:
        return (
            "Inside the training range all of the uncertainty is aleatoric, the scatter that columns like these leave: "
            "this method does not say what the model itself does not know."
        )
    return (
        f"Of the uncertainty, {percent(share)} is epistemic, what the model does not know for lack of rows, and "
        f"{percent(1.0 - share)} is aleatoric, the scatter that columns like these leave."
    )


def _handed_over(forecast: Forecast) -> str:
    risk = metrics.risk_coverage(forecast.loss, forecast.uncertainty).risk
    kept = math.ceil((1.0 - HANDED_OVER) * len(forecast))
    before, after = float(risk[-1]), float(risk[kept - 1])
    if forecast.is_of_classes:
        what, shown = "error rate", (percent(before), percent(after))
    else:
        what, shown = "typical error (RMSE)", (number(math.sqrt(before)), number(math.sqrt(after)))
    if shown[0] == shown[1]:
        change = f"stays at {shown[0]}"
    elif after < before:
        change = f"falls from {shown[0]} to {shown[1]}"
    else:
        change = f"rises from {shown[0]} to {shown[1]}: here doubts do not tell mistakes"
    share = percent(HANDED_OVER)
    return f"If the least certain {share} of rows are handed to a person, the {what} of the rest {change}."


def _parts(forecast: Forecast, split: str) -> Picture:
    low, high = float(forecast.uncertainty.min()), float(forecast.uncertainty.max())
    what = "entropy in nats" if forecast.is_of_classes else "standard deviation"
    return figures.draw(
        lambda ax: plots.uncertainty_parts(forecast.p, ax),
        alt=f"The uncertainty of {rows(len(forecast))}, from the surest to the least sure, split in two. {split} The "
        f"{what} of a row goes from {interval(low, high)}.",
        caption="All rows, the most certain first, and what their uncertainty is made of. More rows to learn from "
        "would remove the epistemic part.",
    )


def _risk(forecast: Forecast, handed_over: str) -> Picture:
    label = _loss_label(forecast)
    return figures.draw(
        lambda ax: plots.risk_coverage(forecast.loss, {"model": forecast.uncertainty}, ax, label=label),
        alt=f"Risk–coverage curve: the {label} of the most certain rows over their share. {handed_over}",
        caption=_RISK,
    )


def _loss_label(forecast: Forecast) -> str:
    return "error rate" if forecast.is_of_classes else "mean squared error"


def _columns(evidence: Evidence) -> Text | Table:
    found = evidence.associations
    if not found:
        return Text("No single column goes with the uncertainty beyond what chance explains.")
    which = "Columns" if len(found) <= _COLUMNS else f"The first {_COLUMNS} of {len(found):,} columns"
    return Table(
        caption=f"{which} that the uncertainty goes with, which need not be its cause",
        columns=[Column("Column"), Column("Strength, 0 to 1", "number"), Column("How", "prose")],
        rows=[[Cell(cut(a.column)), Cell(f"{a.strength:.2f}"), Cell(a.how)] for a in found[:_COLUMNS]],
    )
