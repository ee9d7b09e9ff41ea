"""Several methods on the same rows: which predicts best, and whether the difference means anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from credo._text import counted
from credo._version import __version__
from credo.errors import InputError
from credo.metrics import Score
from credo.plots.style import EPISTEMIC, MUTED
from credo.report import figures, scorecard
from credo.report.forecast import Forecast
from credo.report.page import Cell, Column, Facts, Gallery, Page, Part, Picture, Section, Table, Text, Tile, to_html
from credo.report.sections import calibration, glossary, uncertainty
from credo.report.verdict import judge_several
from credo.report.wording import for_figure, joined, name, number, today

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.tabular.comparison import Comparison


def render_comparison(comparison: Comparison, *, title: str | None = None) -> str:
    """A page that compares methods, as one HTML file that needs nothing else.

    Args:
        comparison: from :func:`credo.tabular.comparison.compare`.
        title: the heading; by default what is predicted.
    """
    if not comparison.results:
        raise InputError("comparison must hold the results of at least one method, got none")
    forecasts = {result.title: Forecast(result.predictive, comparison.y, 0) for result in comparison.results}
    cross_validation = f"{counted(comparison.folds, 'fold')} of cross-validation"
    return to_html(
        Page(
            title=title or f"Methods compared on {name(comparison.target)}",
            byline=[comparison.task, counted(comparison.n_rows, "row"), cross_validation, today()],
            headline=comparison.verdict,
            verdict=judge_several(forecasts),
            tiles=_tiles(comparison),
            sections=[
                _scores(comparison),
                _differences(comparison),
                calibration.section_of_several(forecasts),
                uncertainty.section_of_several(forecasts),
                glossary.section(),
            ],
            footer=f"Made by credo {__version__}.",
        )
    )


def _tiles(comparison: Comparison) -> list[Tile]:
    best = comparison.best
    score = {score.name: score for score in best.scores}
    shown = ("nll", "accuracy", "ece") if comparison.task == "classification" else ("nll", "rmse", "coverage")
    return [
        Tile("First by log likelihood", best.title, f"of {counted(len(comparison.results), 'method')}"),
        *(scorecard.tile(score[key], f"Its {score[key].label}") for key in shown),
    ]


def _scores(comparison: Comparison) -> Section:
    first = comparison.results[0].scores
    of_all = {score.name: [result.scores[k] for result in comparison.results] for k, score in enumerate(first)}
    headings = [*map(scorecard.heading, first), "Seconds"]
    table = Table(
        caption="Scores on rows that the models were not trained on",
        columns=[Column("Method"), *(Column(heading, "number") for heading in headings)],
        rows=[
            [
                Cell(result.title),
                *(_score_cell(score, of_all[score.name]) for score in result.scores),
                Cell(number(result.seconds, 2)),
            ]
            for result in comparison.results
        ],
    )
    lead = Text("Below each score stands its 95 % confidence interval; the best of a column is bold.")
    meanings = Facts([(scorecard.heading(s), f"{scorecard.meaning(s)}; better: {scorecard.better(s)}") for s in first])
    return Section("scores", "Scores", [lead, table, meanings])


def _score_cell(score: Score, of_all: Sequence[Score]) -> Cell:
    best = _best(of_all)
    text = scorecard.value(score, of_all)
    stands_out = best is not None and text == scorecard.value(best, of_all)
    return Cell(text, scorecard.bounds(score, of_all), stands_out)


def _best(scores: Sequence[Score]) -> Score | None:
    """The lowest of the scores, the highest, or the closest to its level; ``None`` where none can be called best."""
    defined = [score for score in scores if not math.isnan(score.value)]
    if not defined or scores[0].name == "width":  # a narrow interval that does not hold its share is no good
        return None
    return min(defined, key=_cost)


def _cost(score: Score) -> float:
    if score.better == "level":
        return abs(score.value - (score.level or 0.0))
    return score.value if score.better == "lower" else -score.value


def _differences(comparison: Comparison) -> Section:
    folds = Table(
        caption="Mean negative log likelihood of every fold, in nats",
        columns=[Column("Method"), *(Column(f"Fold {k + 1}", "number") for k in range(comparison.folds))],
        rows=[[Cell(r.title), *(Cell(number(value)) for value in r.fold_nll)] for r in comparison.results],
        folded="Fold by fold",
    )
    parts: list[Part] = [Gallery([_gap_chart(comparison)]), folds] if len(comparison.results) > 1 else [folds]
    return Section("differences", "Is the difference more than chance?", parts)


def _gap_chart(comparison: Comparison) -> Picture:
    best, gaps = comparison.best, [gap for gap in comparison.gaps if math.isfinite(gap.mean)]
    labels = [for_figure(title) for title in (best.title, *(gap.title for gap in gaps))]
    told = joined([str(gap) for gap in comparison.gaps])

    def paint(ax: Axes) -> None:
        ax.axvline(0.0, color=MUTED, linestyle="--", linewidth=1.0)
        for place, gap in enumerate(gaps, start=1):
            ax.errorbar(gap.mean, place, xerr=2.0 * gap.standard_error, fmt="o", color=EPISTEMIC, capsize=3)
        ax.plot(0.0, 0.0, "D", color=EPISTEMIC)
        ax.set_yticks(range(len(labels)), labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("nats a row behind the first")

    return figures.draw(
        paint,
        alt=f"How far each method is behind {best.title} in mean log likelihood, in nats: {told}.",
        caption="How far each method is behind the first, with two standard errors of the paired differences to each "
        "side. A bar that reaches the dashed line may be chance.",
        width=1.2 * figures.WIDTH,
        height=0.8 + 0.42 * len(labels),
    )
