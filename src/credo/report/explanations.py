"""What drives the predictions and their uncertainty: importance, partial dependence, and drivers of uncertainty."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from credo._text import counted
from credo.explain import ColumnEffect, ModelExplanation, PermutationImportance, UncertaintyImportance, explain_model
from credo.explain._draws import mean_over_draws
from credo.explain.uncertainty import PartImportance
from credo.report.formatting import format_number, format_percent, format_range, join_words, quote, truncate
from credo.report.holdout import LEVEL, HoldoutResult
from credo.report.page import (
    HEIGHT,
    Cell,
    Column,
    Gallery,
    Part,
    Picture,
    ReportTable,
    Section,
    Text,
    draw_figure,
)
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLE = "What drives the predictions, and what drives the uncertainty"

_MIN_ROWS, _MAX_ROWS = 10, 200  # rows that are permuted
_MAX_COLUMNS = 100  # with more, permuting one after the other takes too long
_MAX_SHOWN = 12  # columns in a figure
_PERMUTATIONS = 60  # in all; at least 1 and at most 5 per column
_SAMPLES = 50
_EFFECTS, _SINGLE_ROWS = 4, 15
_CERTAIN = 0.95  # share of the draws from which the order of two columns counts as certain
_SCORES = {"r2": "R²", "log_score": "the log score"}


def explanation_section(result: HoldoutResult) -> Section:
    """Return the importance of the columns, the drivers of the uncertainty, and the effects of the first columns.

    Of many held-out rows 200 are used, and 50 draws, so that it takes a few seconds.
    """
    columns = result.model.columns_
    used = len(columns.scaling.names) + len(columns.categories)
    if len(result.scored) < _MIN_ROWS:
        return Section("drivers", TITLE, [Text(f"This needs at least {_MIN_ROWS} held-out rows.")])
    if used > _MAX_COLUMNS:
        few = f"The model uses {counted(used, 'column')}, too many to try one after the other here."
        return Section("drivers", TITLE, [Text(f"{few} On the command line, credo explain does it for a run.")])
    target = result.model.target_
    y = result.scored.y.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # those about the rows are in the section on the data
        found = explain_model(
            result.model,
            result.frame,
            target.decode(y) if isinstance(target, ClassTarget) else y,
            effects=min(_EFFECTS, used),
            individual=_SINGLE_ROWS,
            repeats=int(np.clip(_PERMUTATIONS // used, 1, 5)),
            level=LEVEL,
            samples=min(result.model.samples, _SAMPLES),
            max_rows=_MAX_ROWS,
            seed=result.scored.seed,
        )
    return Section("drivers", TITLE, _parts(_printable(found)))


def _parts(found: ModelExplanation) -> list[Part]:
    assert found.importance is not None
    used = describe_importance(found.importance)
    drivers = describe_uncertainty(found.uncertainty)
    effects: list[Part] = [
        Text(_effects_lead(found.effects)),
        Gallery([_effect_picture(effect) for effect in found.effects]),
    ]
    return [
        Text(used),
        Text(drivers),
        Gallery([_importance_picture(found.importance, used), _uncertainty_picture(found.uncertainty, drivers)]),
        *effects,
        _table(found.importance, found.uncertainty),
    ]


def describe_importance(found: PermutationImportance) -> str:
    """Return which columns the predictions use, and how certain their order is, in sentences."""
    order, score = found.order, _SCORES[found.score]
    relevant = [int(j) for j in order if found.importance[j] > 2 * found.standard_error[j]]
    if not relevant:
        return (
            f"None of {counted(len(order), 'column')} is needed for the predictions: shuffling its values does not "
            f"lower {score} measurably."
        )
    falls = [f"{format_number(found.importance[j], 2)} for {quote(found.names[j])}" for j in relevant[:3]]
    text = (
        f"If the values of one column are shuffled among the rows, {score}, {format_number(found.base, 2)} "
        f"otherwise, falls by {join_words(falls)}."
    )
    if len(relevant) < len(order):
        text += f" For {counted(len(order) - len(relevant), 'column')} it does not fall measurably."
    return text + _describe_order(found, relevant[:4]) + _describe_correlations(found)


def describe_uncertainty(found: UncertaintyImportance) -> str:
    """Return which columns drive both parts of the uncertainty, in sentences."""
    sentences = [
        _describe_part("epistemic", "which more training rows would reduce", found.epistemic, found.names),
        _describe_part("aleatoric", "the noise", found.aleatoric, found.names),
    ]
    return " ".join(sentences)


def _describe_part(name: str, meaning: str, part: PartImportance, names: Sequence[str]) -> str:
    if not part.mean:
        return f"There is no {name} uncertainty in these rows."
    if not part.std:
        return f"The {name} uncertainty, {meaning}, is the same for all rows."
    order = np.argsort(-part.share, kind="stable")
    relevant = [int(j) for j in order if part.share[j] > 2 * part.standard_error[j]][:2]
    if not relevant:
        return f"No column stands out as a driver of the {name} uncertainty, {meaning}."
    shares = [f"{quote(names[j])} ({_format_share(part.share[j])})" for j in relevant]
    return f"The {name} uncertainty, {meaning}, varies from row to row mostly with {join_words(shares)}."


def _describe_order(found: PermutationImportance, first: Sequence[int]) -> str:
    """Return whether the draws agree on the order of the first columns."""
    if len(found.draws) == 1 or len(first) < 2:
        return ""
    for j, following in pairwise(first):
        above = float(mean_over_draws(found.draws[:, [j]] > found.draws[:, [following]], found.weights)[0])
        if above < _CERTAIN:
            return (
                f" The order of {quote(found.names[j])} and {quote(found.names[following])} is not certain: the former "
                f"is more important in {format_percent(above)} of the posterior draws."
            )
    return " The posterior draws agree on this order."


def _describe_correlations(found: PermutationImportance) -> str:
    """Return what the largest set of correlated columns is worth together."""
    if not found.correlated:
        return ""
    most = int(np.argmax(found.correlated_importance))
    names = found.correlated[most]
    shown = [quote(name) for name in names[:3]] + ([f"{len(names) - 3} others"] if len(names) > 3 else [])
    value = format_number(found.correlated_importance[most], 2)
    return (
        f" {join_words(shown)} are correlated, so that the model can use one in place of the other: shuffled together, "
        f"{_SCORES[found.score]} falls by {value}."
    )


def _importance_picture(found: PermutationImportance, description: str) -> Picture:
    fall = f"The fall of {_SCORES[found.score]}"
    bands = (
        f" Bars contain {format_percent(found.level)} of the posterior draws, each by itself: where they overlap, more "
        "training rows could change the order."
    )
    return draw_figure(
        lambda ax: found.plot(ax, max_columns=_MAX_SHOWN),
        alt=f"The importance of the columns with standard errors and epistemic bands. {description}",
        caption=f"{fall} if the values of a column are shuffled among the rows, with two standard errors."
        + bands * (len(found.draws) > 1),
        height=_height(len(found.names)),
    )


def _uncertainty_picture(found: UncertaintyImportance, description: str) -> Picture:
    return draw_figure(
        lambda ax: found.plot(ax, max_columns=_MAX_SHOWN),
        alt=f"The share of each column in the variation of both parts of the uncertainty. {description}",
        caption=f"How much of the variation of the uncertainty ({found.unit}) from row to row needs a column, with two "
        "standard errors. Shares of columns that act together add up to more than 1.",
        height=_height(len(found.names)),
    )


def _effects_lead(effects: Sequence[ColumnEffect]) -> str:
    """Return how to read the figures of effects."""
    first = effects[0]
    band = f" The band contains {format_percent(first.level)} of the posterior draws." * (len(first.draws) > 1)
    single = " Thin lines are single rows." * (len(first.classes) <= 2)
    return (
        "What the most important columns do: the prediction if all rows had the same value of the column, averaged "
        f"over the rows.{band}{single} Marks at the bottom are deciles of the rows. Where columns are correlated, this "
        "includes combinations of values that do not occur."
    )


def _effect_picture(effect: ColumnEffect) -> Picture:
    name, description = quote(effect.columns[0]), _describe_effect(effect)
    return draw_figure(
        lambda ax: effect.plot(ax),
        alt=f"Partial dependence on {name} at {counted(len(effect.grid[0]), 'value')}: {description}",
        caption=f"{name}: {description}",
    )


def _describe_effect(effect: ColumnEffect) -> str:
    """Return the lowest and the highest mean prediction, and where they are."""
    mean, what = effect.mean, "the mean prediction"
    if effect.classes:
        changed = int(np.argmax(np.ptp(mean, axis=0)))
        mean, what = mean[:, changed], f"the mean probability of {quote(effect.classes[changed])}"
    ends = []
    for position in sorted({int(mean.argmin()), int(mean.argmax())}):
        value = format_percent(mean[position]) if effect.classes else format_number(float(mean[position]))
        ends.append(f"{value} at {_format_cell(effect.grid[0][position], effect.kinds[0])}")
    return f"{what} is between {ends[0]} and {ends[-1]}." if len(ends) > 1 else f"{what} is {ends[0]}."


def _format_cell(cell: Any, kind: str) -> str:
    if kind == "category":
        return quote(cell)
    return str(np.datetime_as_string(cell, unit="D")) if kind == "date" else format_number(float(cell), trim=True)


def _table(importance: PermutationImportance, uncertainty: UncertaintyImportance) -> ReportTable:
    shown = importance.order[:_MAX_COLUMNS]
    has_draws = len(importance.draws) > 1
    band = [Column(f"{format_percent(importance.level)} of the draws", "number")] * has_draws
    rows = []
    for j in shown:
        ends = [Cell(format_range(importance.lower[j], importance.upper[j], 2))] * has_draws
        rows.append(
            [
                Cell(truncate(importance.names[j])),
                Cell(format_number(importance.importance[j], 2)),
                Cell(format_number(importance.standard_error[j], 2)),
                *ends,
                Cell(_format_share(uncertainty.epistemic.share[j])),
                Cell(_format_share(uncertainty.aleatoric.share[j])),
            ]
        )
    return ReportTable(
        caption=f"Importance for the predictions (fall of {_SCORES[importance.score]}) and for their uncertainty",
        columns=[
            Column("Column"),
            Column("Importance", "number"),
            Column("Standard error", "number"),
            *band,
            Column("Share of the epistemic variation", "number"),
            Column("Share of the aleatoric variation", "number"),
        ],
        rows=rows,
        toggle="Numbers for all columns",
    )


def _printable(found: ModelExplanation) -> ModelExplanation:
    """The explanation with names that can be printed in a figure."""
    assert found.importance is not None
    names = tuple(truncate(name) for name in found.importance.names)
    effects = tuple(
        replace(
            effect,
            columns=tuple(truncate(name) for name in effect.columns),
            target=truncate(effect.target),
            classes=tuple(truncate(name, 16) for name in effect.classes),
            grid=tuple(
                np.array([truncate(value) for value in cells], dtype=object) if kind == "category" else cells
                for cells, kind in zip(effect.grid, effect.kinds, strict=True)
            ),
        )
        for effect in found.effects
    )
    correlated = tuple(tuple(truncate(name) for name in group) for group in found.importance.correlated)
    return ModelExplanation(
        replace(found.importance, names=names, correlated=correlated), replace(found.uncertainty, names=names), effects
    )


def _format_share(share: float) -> str:
    return format_percent(min(float(share), 1.0)) if share <= 1.0 else "over 100 %"


def _height(columns: int) -> float:
    return max(HEIGHT, 0.9 + 0.27 * min(columns, _MAX_SHOWN))
