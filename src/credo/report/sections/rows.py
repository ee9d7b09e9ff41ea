"""Single rows worth a look: those the model is least sure of, and those it did not expect."""

from __future__ import annotations

import datetime

import numpy as np
import torch
from torch import Tensor

from credo.report.evidence import Evidence
from credo.report.forecast import LEVEL
from credo.report.page import Cell, Column, Section, Table, Text
from credo.report.wording import cut, decimals_of, fixed, number, percent
from credo.tabular.parsing import is_missing

_ROWS = 8
_COLUMNS = 5
_NUMBER_COLUMNS = (
    Column("Observed", "number"),
    Column("Predicted", "number"),
    Column(f"{percent(LEVEL)} interval", "number"),
    Column("Error in standard deviations", "number"),
)
_CLASS_COLUMNS = (
    Column("Observed"),
    Column("Predicted"),
    Column("Its probability", "number"),
    Column("Probability of the observed", "number"),
    Column("Entropy in nats", "number"),
)


def section(evidence: Evidence) -> Section:
    """Two tables of rows."""
    lead = Text(
        "Rows carry the numbers or names that they have in the table, numbers counted from 0. Beside the prediction "
        f"stand {'the columns that go with the uncertainty' if evidence.associations else 'the first columns'}."
    )
    surprise = -evidence.forecast.p.log_prob(evidence.forecast.y)
    least_sure = _table(evidence, evidence.forecast.uncertainty, "The rows the model is least sure of")
    least_expected = _table(evidence, surprise, "The rows the model expected least, given what was observed")
    return Section("rows", "Rows to look at", [lead, least_sure, least_expected])


def _table(evidence: Evidence, order: Tensor, caption: str) -> Table:
    shown = torch.argsort(order, descending=True, stable=True)[:_ROWS].tolist()
    columns = _columns(evidence)
    numbers = set(evidence.model.columns_.scaling.names)
    predicted = _CLASS_COLUMNS if evidence.classes else _NUMBER_COLUMNS
    cells = _class_cells if evidence.classes else _number_cells
    return Table(
        caption=caption,
        columns=[
            Column("Row"),
            *predicted,
            *(Column(cut(column), "number" if column in numbers else "label") for column in columns),
        ],
        rows=[[Cell(cut(evidence.frame.index[i])), *cells(evidence, i), *_values(evidence, i, columns)] for i in shown],
    )


def _number_cells(evidence: Evidence, i: int) -> list[Cell]:
    forecast = evidence.forecast
    y, mean, lower, upper = (float(t[i]) for t in (forecast.y, forecast.mean, *forecast.interval))
    deviation = float((forecast.y[i] - forecast.mean[i]) / forecast.uncertainty[i])
    decimals = decimals_of(float(forecast.uncertainty.median()))
    missed = "" if lower <= y <= upper else "missed"
    return [
        Cell(fixed(y, decimals)),
        Cell(fixed(mean, decimals)),
        Cell(f"{fixed(lower, decimals)} to {fixed(upper, decimals)}", missed),
        Cell(f"{deviation:+.1f}".replace("-", "−")),
    ]


def _class_cells(evidence: Evidence, i: int) -> list[Cell]:
    answers = evidence.forecast.answers
    label, predicted = int(answers.label[i]), int(answers.predicted[i])
    return [
        Cell(cut(evidence.classes[label])),
        Cell(cut(evidence.classes[predicted]), "" if label == predicted else "wrong"),
        Cell(percent(float(answers.probability[i, predicted]))),
        Cell(percent(float(answers.probability[i, label]))),
        Cell(f"{float(evidence.forecast.uncertainty[i]):.2f}"),
    ]


def _columns(evidence: Evidence) -> list[str]:
    """A few columns: first those that go with the uncertainty, then in the order of the table."""
    telling = [association.column for association in evidence.associations]
    columns = dict.fromkeys([*telling, *evidence.model.columns_.names])
    return [column for column in columns if column not in evidence.left_out][:_COLUMNS]


def _values(evidence: Evidence, i: int, columns: list[str]) -> list[Cell]:
    return [Cell(_shown(evidence.frame[column].iloc[i])) for column in columns]


def _shown(value: object) -> str:
    if is_missing(value):
        return "missing"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date().isoformat()
    return number(float(value), 4, trim=True) if isinstance(value, float | np.floating) else cut(value)
