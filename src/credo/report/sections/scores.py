"""How good: the standard scores, how sure one may be of them, and what they mean."""

from __future__ import annotations

from credo.report import scorecard
from credo.report.evidence import Evidence
from credo.report.page import Cell, Column, Section, Table, Text
from credo.report.wording import rows


def section(evidence: Evidence) -> Section:
    """A table of all scores."""
    forecast = evidence.forecast
    note = Text(
        f"From {rows(len(forecast))} that the model was not trained on. The 95 % intervals say where a score on very "
        "many rows of the same kind would be: binomial intervals for shares, a score interval for the AUROC, and "
        "bootstrap intervals for the other scores. With few rows they are approximate."
    )
    table = Table(
        caption="Scores on held-out rows",
        columns=[
            Column("Score"),
            Column("Value", "number"),
            Column("95 % interval", "number"),
            Column("Better"),
            Column("What it says", "prose"),
        ],
        rows=[
            [
                Cell(scorecard.heading(score)),
                Cell(scorecard.value(score), strong=True),
                Cell(scorecard.bounds(score)),
                Cell(scorecard.better(score)),
                Cell(scorecard.meaning(score)),
            ]
            for score in forecast.scores
        ],
    )
    return Section("scores", "Scores", [note, table])
