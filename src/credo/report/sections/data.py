"""The table: what its columns held, what became of them, and what was to be predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credo._text import counted
from credo.plots.style import EPISTEMIC
from credo.report import figures
from credo.report.evidence import Evidence
from credo.report.page import Cell, Column, Gallery, Notes, Part, Picture, Section, Table, Text
from credo.report.wording import cut, for_figure, interval, joined, name, number, percent, rows
from credo.tabular.column_types import ColumnSummary
from credo.tabular.targets import RegressionTarget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 60
_COLUMNS_AT_ONCE = 12
_CLASSES = 20


def section(evidence: Evidence) -> Section:
    """Notes, a figure of the target, and a table of the columns."""
    columns = evidence.model.columns_
    given, used = counted(len(columns.names), "column"), counted(len(columns.feature_names), "feature")
    parts: list[Part] = [Text(f"{given} became {used} for the network.{_spread(evidence)}")]
    notes = [*evidence.model.notes_, *evidence.remarks]
    if notes:
        parts.append(Notes(notes))
    picture = _class_counts(evidence) if evidence.classes else _histogram(evidence)
    parts += [Gallery([picture]), _summary(columns.summary())]
    return Section("data", "The data", parts)


def _spread(evidence: Evidence) -> str:
    target = evidence.model.target_
    if not isinstance(target, RegressionTarget):
        return ""
    return (
        f" In training the target was {number(target.mean)} on average, with a standard deviation of "
        f"{number(target.scale)}."
    )


def _histogram(evidence: Evidence) -> Picture:
    y = evidence.forecast.y.numpy()
    lowest, median, highest = np.quantile(y, [0.0, 0.5, 1.0])
    label = for_figure(evidence.target or "target", 40)

    def paint(ax: Axes) -> None:
        ax.hist(y, bins=min(30, max(5, round(np.sqrt(len(y))))), color=EPISTEMIC, alpha=0.45, edgecolor="white")
        ax.set(xlabel=label, ylabel="held-out rows")

    return figures.draw(
        paint,
        alt=f"Histogram of the target in {rows(len(y))}: from {interval(lowest, highest)}, half of them below "
        f"{number(median)}.",
        caption="What was to be predicted.",
    )


def _class_counts(evidence: Evidence) -> Picture:
    counts = np.bincount(evidence.forecast.y, minlength=len(evidence.classes))
    shown = np.argsort(-counts, kind="stable")[:_CLASSES]
    labels = [for_figure(evidence.classes[k], 20) for k in shown]
    told = joined([f"{name(evidence.classes[k])} {counts[k]:,}" for k in shown])
    more = len(evidence.classes) - len(shown)

    def paint(ax: Axes) -> None:
        bars = ax.barh(range(len(shown)), counts[shown], color=EPISTEMIC, alpha=0.45)
        ax.bar_label(bars, padding=3)
        ax.set_yticks(range(len(shown)), labels)
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        ax.set(xlabel="held-out rows", xlim=(0, 1.12 * counts.max()))

    return figures.draw(
        paint,
        alt=f"How many held-out rows each class has: {told}.",
        caption="What was to be predicted." + (f" The {more} rarest classes are not shown." if more else ""),
        height=min(0.9 + 0.3 * len(shown), 2 * figures.HEIGHT),
    )


def _summary(summaries: list[ColumnSummary]) -> Table:
    total = f"{len(summaries):,}"
    capped = len(summaries) > _COLUMNS
    return Table(
        caption=f"The first {_COLUMNS} of {total} columns in training" if capped else "The columns in training",
        columns=[
            Column("Column"),
            Column("Kind"),
            Column("Missing", "number"),
            Column("Different values", "number"),
            Column("Content", "prose"),
            Column("What became of it", "prose"),
        ],
        rows=[
            [
                Cell(cut(s.name, 40)),
                Cell(s.kind),
                Cell(percent(s.missing)),
                Cell(f"{s.distinct:,}"),
                Cell(cut(s.content, 80)),
                Cell(cut(s.treatment, 100)),
            ]
            for s in summaries[:_COLUMNS]
        ],
        folded=f"The columns ({total})" if len(summaries) > _COLUMNS_AT_ONCE else None,
    )
