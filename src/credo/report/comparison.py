"""The report on several methods: their scores on the same rows, and whether the differences are significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from credo._text import counted
from credo.errors import InputError
from credo.metrics import Score
from credo.plots.style import EPISTEMIC, MUTED
from credo.report.diagnostics import diagnose_methods
from credo.report.formatting import (
    capitalize,
    escape_for_figure,
    format_better,
    format_number,
    format_score,
    format_score_interval,
    join_words,
    quote,
    today,
)
from credo.report.holdout import ScoredPredictions
from credo.report.page import (
    WIDTH,
    Cell,
    Column,
    Definitions,
    Gallery,
    Page,
    Part,
    Picture,
    ReportTable,
    Section,
    Text,
    Tile,
    draw_figure,
    to_html,
)
from credo.report.performance import score_tile
from credo.report.rendering import FOOTER, glossary_section
from credo.report.uncertainty import calibration_section_of_methods, uncertainty_section_of_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.tabular.comparison import Comparison


def render_comparison(comparison: Comparison, *, title: str | None = None) -> str:
    """Return a report that compares methods as one self-contained HTML file.

    Args:
        comparison: the result of :func:`credo.tabular.comparison.compare`.
        title: the heading; by default, it names the target.

    Returns:
        The HTML text.

    Raises:
        InputError: if the comparison has no results.

    Example:
        >>> compared = credo.tabular.comparison.compare(frame, "price", task="regression")
        >>> html = credo.report.render_comparison(compared)
    """
    if not comparison.results:
        raise InputError("comparison must contain the results of at least one method, got none")
    scored_by_method = {
        result.title: ScoredPredictions(result.predictive, comparison.y, 0, result.scores)
        for result in comparison.results
    }
    return to_html(
        Page(
            title=title or f"Comparison of methods for {quote(comparison.target)}",
            byline=[
                comparison.task,
                counted(comparison.n_rows, "row"),
                f"cross-validation with {counted(comparison.folds, 'fold')}, split {comparison.split}",
                today(),
            ],
            summary=comparison.verdict,
            diagnostics=diagnose_methods(scored_by_method),
            tiles=_tiles(comparison),
            sections=[
                _metrics_section(comparison),
                _differences_section(comparison),
                calibration_section_of_methods(scored_by_method),
                uncertainty_section_of_methods(scored_by_method),
                glossary_section(),
            ],
            footer=FOOTER,
        )
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    best = comparison.best
    score = {score.name: score for score in best.scores}
    names = ("nll", "accuracy", "ece") if comparison.task == "classification" else ("nll", "rmse", "coverage")
    return [
        Tile("Highest log likelihood", best.title, f"of {counted(len(comparison.results), 'method')}"),
        *(score_tile(score[name], f"Its {score[name].label}") for name in names),
    ]


def _metrics_section(comparison: Comparison) -> Section:
    first = comparison.results[0].scores
    columns = {score.name: [result.scores[k] for result in comparison.results] for k, score in enumerate(first)}
    headings = [*(capitalize(score.label) for score in first), "Seconds"]
    table = ReportTable(
        caption="Metrics on rows that were not used for training",
        columns=[Column("Method"), *(Column(heading, "number") for heading in headings)],
        rows=[
            [
                Cell(result.title),
                *(_score_cell(score, columns[score.name]) for score in result.scores),
                Cell(format_number(result.seconds, 2)),
            ]
            for result in comparison.results
        ],
    )
    lead = Text("Below each score is its 95 % confidence interval; the best score of each column is bold.")
    meanings = [(capitalize(s.label), f"{capitalize(s.meaning)}; better: {format_better(s)}") for s in first]
    return Section("metrics", "Metrics", [lead, table, Definitions(meanings)])


def _score_cell(score: Score, column: Sequence[Score]) -> Cell:
    best = _best(column)
    text = format_score(score, column)
    is_best = best is not None and text == format_score(best, column)
    return Cell(text, format_score_interval(score, column), is_best)


def _best(scores: Sequence[Score]) -> Score | None:
    """Return the best of the scores; ``None`` if all are undefined or none can be called best."""
    defined = [score for score in scores if not math.isnan(score.value)]
    if not defined or scores[0].name == "width":  # a narrow interval is good at equal coverage only
        return None
    return min(defined, key=_cost)


def _cost(score: Score) -> float:
    if score.better == "level":
        return abs(score.value - (score.level or 0.0))
    return score.value if score.better == "lower" else -score.value


def _differences_section(comparison: Comparison) -> Section:
    folds = ReportTable(
        caption="Mean negative log likelihood per fold, in nats per row",
        columns=[Column("Method"), *(Column(f"Fold {k + 1}", "number") for k in range(comparison.folds))],
        rows=[[Cell(r.title), *(Cell(format_number(value)) for value in r.fold_nll)] for r in comparison.results],
        toggle="Results per fold",
    )
    parts: list[Part] = [Gallery([_difference_plot(comparison)]), folds] if len(comparison.results) > 1 else [folds]
    return Section("differences", "Is the difference significant?", parts)


def _difference_plot(comparison: Comparison) -> Picture:
    best, gaps = comparison.best, [gap for gap in comparison.gaps if math.isfinite(gap.mean)]
    labels = [escape_for_figure(title) for title in (best.title, *(gap.title for gap in gaps))]

    def plot(ax: Axes) -> None:
        ax.axvline(0.0, color=MUTED, linestyle="--", linewidth=1.0)
        for position, gap in enumerate(gaps, start=1):
            ax.errorbar(gap.mean, position, xerr=2.0 * gap.standard_error, fmt="o", color=EPISTEMIC, capsize=3)
        ax.plot(0.0, 0.0, "D", color=EPISTEMIC)
        ax.set_yticks(range(len(labels)), labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("difference from the best method, nats per row")

    return draw_figure(
        plot,
        alt=f"Difference in mean log likelihood from {best.title}, in nats per row: "
        f"{join_words([str(gap) for gap in comparison.gaps])}.",
        caption="The difference of each method from the best one, with an error bar of two standard errors of the "
        "paired differences to each side. A difference whose bar reaches the dashed line may be chance.",
        width=1.2 * WIDTH,
        height=0.8 + 0.42 * len(labels),
    )
