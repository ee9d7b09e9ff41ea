"""The data: rows to check, the target, and the columns of the table."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from credo._text import counted
from credo.plots.style import EPISTEMIC
from credo.report.formatting import (
    decimals_for,
    escape_for_figure,
    format_fixed,
    format_number,
    format_percent,
    format_range,
    format_rows,
    join_words,
    quote,
    truncate,
)
from credo.report.holdout import LEVEL, HoldoutResult
from credo.report.page import (
    HEIGHT,
    Cell,
    Column,
    Gallery,
    Notes,
    Part,
    Picture,
    ReportTable,
    Section,
    Text,
    draw_figure,
)
from credo.tabular.column_types import ColumnSummary
from credo.tabular.parsing import is_missing
from credo.tabular.targets import RegressionTarget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_ROWS = 8  # in a table of rows
_MAX_ROW_COLUMNS = 5
_MAX_COLUMNS, _MAX_VISIBLE_COLUMNS = 60, 12  # in the table of columns; with more than 12 it is collapsed
_MAX_CLASSES = 20  # in the figure of classes
_NUMBER_COLUMNS = (
    Column("Observed", "number"),
    Column("Predicted", "number"),
    Column(f"{format_percent(LEVEL)} interval", "number"),
    Column("Error in standard deviations", "number"),
)
_CLASS_COLUMNS = (
    Column("Observed"),
    Column("Predicted"),
    Column("Probability of the predicted class", "number"),
    Column("Probability of the observed class", "number"),
    Column("Entropy in nats", "number"),
)


def rows_section(result: HoldoutResult) -> Section:
    """Return tables of the least certain and the least probable rows."""
    columns = "the columns associated with the uncertainty" if result.associations else "the first columns"
    lead = Text(
        f"Rows have the numbers (from 0) or names that they have in the table. Beside each prediction are {columns}."
    )
    nll = -result.scored.prediction.log_prob(result.scored.y)
    least_certain = _row_table(result, result.scored.uncertainty, "The least certain predictions")
    least_probable = _row_table(result, nll, "The least probable observations given their prediction")
    return Section("rows", "Rows to check", [lead, least_certain, least_probable])


def data_section(result: HoldoutResult) -> Section:
    """Return notes, a figure of the target, and a table of the columns."""
    columns = result.model.columns_
    inputs, features = counted(len(columns.names), "column"), counted(len(columns.feature_names), "feature")
    parts: list[Part] = [Text(f"{inputs} gave {features} for the network.{_describe_target(result)}")]
    notes = [*result.model.notes_, *result.notes]
    if notes:
        parts.append(Notes(notes))
    picture = _class_counts(result) if result.classes else _target_histogram(result)
    parts += [Gallery([picture]), _column_table(columns.summary())]
    return Section("data", "Data", parts)


def _row_table(result: HoldoutResult, order: Tensor, caption: str) -> ReportTable:
    indices = torch.argsort(order, descending=True, stable=True)[:_MAX_ROWS].tolist()
    columns = _row_columns(result)
    numbers = set(result.model.columns_.scaling.names)
    headings = _CLASS_COLUMNS if result.classes else _NUMBER_COLUMNS
    cells = _class_cells if result.classes else _number_cells
    return ReportTable(
        caption=caption,
        columns=[
            Column("Row"),
            *headings,
            *(Column(truncate(column), "number" if column in numbers else "label") for column in columns),
        ],
        rows=[
            [
                Cell(truncate(result.frame.index[i])),
                *cells(result, i),
                *(Cell(_format_value(result.frame[column].iloc[i])) for column in columns),
            ]
            for i in indices
        ],
    )


def _number_cells(result: HoldoutResult, i: int) -> list[Cell]:
    scored = result.scored
    y, mean, lower, upper = (float(t[i]) for t in (scored.y, scored.mean, *scored.interval))
    deviation = float((scored.y[i] - scored.mean[i]) / scored.uncertainty[i])
    decimals = decimals_for(float(scored.uncertainty.median()))
    missed = "" if lower <= y <= upper else "missed"
    return [
        Cell(format_fixed(y, decimals)),
        Cell(format_fixed(mean, decimals)),
        Cell(f"{format_fixed(lower, decimals)} to {format_fixed(upper, decimals)}", missed),
        Cell(f"{deviation:+.1f}".replace("-", "−")),
    ]


def _class_cells(result: HoldoutResult, i: int) -> list[Cell]:
    predictions = result.scored.class_predictions
    label, predicted = int(predictions.label[i]), int(predictions.predicted[i])
    return [
        Cell(truncate(result.classes[label])),
        Cell(truncate(result.classes[predicted]), "" if label == predicted else "wrong"),
        Cell(format_percent(float(predictions.probability[i, predicted]))),
        Cell(format_percent(float(predictions.probability[i, label]))),
        Cell(f"{float(result.scored.uncertainty[i]):.2f}"),
    ]


def _row_columns(result: HoldoutResult) -> list[str]:
    """Return a few columns: first those associated with the uncertainty, then in the order of the table."""
    associated = [association.column for association in result.associations]
    columns = dict.fromkeys([*associated, *result.model.columns_.names])
    return [column for column in columns if column not in result.unused_columns][:_MAX_ROW_COLUMNS]


def _format_value(value: object) -> str:
    if is_missing(value):
        return "missing"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date().isoformat()
    if isinstance(value, float | np.floating):
        return format_number(float(value), 4, trim=True)
    return truncate(value)


def _describe_target(result: HoldoutResult) -> str:
    target = result.model.target_
    if not isinstance(target, RegressionTarget):
        return ""
    return (
        f" The training targets have a mean of {format_number(target.mean)} and a standard deviation of "
        f"{format_number(target.scale)}."
    )


def _target_histogram(result: HoldoutResult) -> Picture:
    y = result.scored.y.numpy()
    lowest, median, highest = np.quantile(y, [0.0, 0.5, 1.0])
    label = escape_for_figure(result.target or "target", 40)

    def plot(ax: Axes) -> None:
        ax.hist(y, bins=min(30, max(5, round(np.sqrt(len(y))))), color=EPISTEMIC, alpha=0.45, edgecolor="white")
        ax.set(xlabel=label, ylabel="held-out rows")

    return draw_figure(
        plot,
        alt=f"Histogram of the target in {format_rows(len(y))}: from {format_range(lowest, highest)}, with a median of "
        f"{format_number(median)}.",
        caption="The distribution of the target.",
    )


def _class_counts(result: HoldoutResult) -> Picture:
    counts = np.bincount(result.scored.y, minlength=len(result.classes))
    shown = np.argsort(-counts, kind="stable")[:_MAX_CLASSES]
    labels = [escape_for_figure(result.classes[k], 20) for k in shown]
    numbers = join_words([f"{quote(result.classes[k])} {counts[k]:,}" for k in shown])
    n_hidden = len(result.classes) - len(shown)

    def plot(ax: Axes) -> None:
        bars = ax.barh(range(len(shown)), counts[shown], color=EPISTEMIC, alpha=0.45)
        ax.bar_label(bars, padding=3)
        ax.set_yticks(range(len(shown)), labels)
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        ax.set(xlabel="held-out rows", xlim=(0, 1.12 * counts.max()))

    return draw_figure(
        plot,
        alt=f"The number of held-out rows per class: {numbers}.",
        caption="The distribution of the target."
        + (f" The {n_hidden} rarest classes are not shown." if n_hidden else ""),
        height=min(0.9 + 0.3 * len(shown), 2 * HEIGHT),
    )


def _column_table(summaries: list[ColumnSummary]) -> ReportTable:
    total = f"{len(summaries):,}"
    capped = len(summaries) > _MAX_COLUMNS
    return ReportTable(
        caption=f"The first {_MAX_COLUMNS} of {total} training columns" if capped else "Training columns",
        columns=[
            Column("Column"),
            Column("Kind"),
            Column("Written", "prose"),
            Column("Missing", "number"),
            Column("Distinct values", "number"),
            Column("Content", "prose"),
            Column("Processing", "prose"),
        ],
        rows=[
            [
                Cell(truncate(s.name, 40)),
                Cell(s.kind),
                Cell(truncate(s.reading, 60)),
                Cell(format_percent(s.missing)),
                Cell(f"{s.distinct:,}"),
                Cell(truncate(s.content, 80)),
                Cell(truncate(s.treatment, 100)),
            ]
            for s in summaries[:_MAX_COLUMNS]
        ],
        toggle=f"Columns ({total})" if len(summaries) > _MAX_VISIBLE_COLUMNS else None,
    )
