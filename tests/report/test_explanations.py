"""The section on what drives predictions and uncertainty: its sentences, and when it is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from credo.explain import PartImportance, PermutationImportance, UncertaintyImportance
from credo.report import explanations
from credo.report import page as page_module
from credo.report.holdout import evaluate_holdout
from credo.report.page import Gallery, ReportTable, Text

from . import cases


def importance(**changes) -> PermutationImportance:
    found = PermutationImportance(
        names=("age", "size", "noise"),
        score="r2",
        base=0.9,
        importance=np.array([0.5, 0.7, 0.001]),
        standard_error=np.array([0.01, 0.02, 0.01]),
        draws=np.array([[0.5, 0.6, 0.0], [0.7, 0.6, 0.01], [0.4, 0.8, 0.0], [0.5, 0.9, -0.01]]),
        weights=None,
        level=0.95,
        rows=100,
        correlated=(),
        correlated_importance=np.zeros(0),
        correlated_error=np.zeros(0),
    )
    return replace(found, **changes)


def part(*share: float, mean: float = 1.0, std: float = 0.5) -> PartImportance:
    return PartImportance(np.array(share), np.full(3, 0.05), np.zeros(3), mean, std)


def test_important_columns_and_their_order_in_words():
    text = explanations.describe_importance(importance())
    assert "R², 0.90 otherwise, falls by 0.70 for “size” and 0.50 for “age”." in text
    assert "For 1 column it does not fall measurably." in text
    assert "The order of “size” and “age” is not certain: the former is more important in 75 % of" in text


def test_weights_of_the_draws_count():
    text = explanations.describe_importance(importance(weights=np.array([0.01, 0.01, 0.49, 0.49])))
    assert "The posterior draws agree on this order." in text


def test_one_function_has_no_order_of_draws():
    text = explanations.describe_importance(importance(draws=np.array([[0.5, 0.7, 0.0]])))
    assert "draws" not in text


def test_correlated_columns_are_named():
    sets = (("age", "size"), ("noise", "a", "b", "c", "d"))
    both = importance(correlated=sets, correlated_importance=np.array([0.1, 1.5]), correlated_error=np.ones(2))
    text = explanations.describe_importance(both)
    assert "“noise”, “a”, “b” and 2 others are correlated" in text
    assert "shuffled together, R² falls by 1.5." in text


def test_no_important_column():
    text = explanations.describe_importance(importance(importance=np.zeros(3)))
    assert text.startswith("None of 3 columns is needed")


def test_drivers_of_the_uncertainty_in_words():
    names = ("age", "size", "noise")
    found = UncertaintyImportance(names, part(0.2, 0.7, 0.01), part(0.0, 0.0, 1.2), "standard deviation", 100)
    text = explanations.describe_uncertainty(found)
    assert "mostly with “size” (70 %) and “age” (20 %)" in text
    assert "mostly with “noise” (over 100 %)" in text
    constant = replace(found, aleatoric=part(0.0, 0.0, 0.0, std=0.0), epistemic=part(0.0, 0.0, 0.0, mean=0.0, std=0.0))
    text = explanations.describe_uncertainty(constant)
    assert "There is no epistemic uncertainty in these rows." in text
    assert "The aleatoric uncertainty, the noise, is the same for all rows." in text
    vague = replace(found, epistemic=part(0.05, 0.06, 0.02))
    assert "No column stands out" in explanations.describe_uncertainty(vague)


@pytest.mark.parametrize("target", ["amount", "kind"])
def test_section_has_figures_and_a_table(monkeypatch: pytest.MonkeyPatch, target: str):
    monkeypatch.setattr(page_module, "_draw_svg", lambda plot, width, height: b"")
    model = cases.regressor() if target == "amount" else cases.classifier()
    section = explanations.explanation_section(evaluate_holdout(model, *cases.held_out(target), 0))
    galleries = [item for item in section.parts if isinstance(item, Gallery)]
    assert [len(gallery.pictures) for gallery in galleries] == [2, 4]
    (table,) = [item for item in section.parts if isinstance(item, ReportTable)]
    assert len(table.rows) == 4  # the constant column is not used
    assert all(" is between " in picture.caption for picture in galleries[1].pictures)


def test_section_is_left_out_for_few_rows_and_many_columns(monkeypatch: pytest.MonkeyPatch):
    result = evaluate_holdout(cases.regressor(), *cases.held_out("amount", 9), 0)
    (text,) = explanations.explanation_section(result).parts
    assert isinstance(text, Text)
    assert "at least 10 held-out rows" in text.text
    monkeypatch.setattr(explanations, "_MAX_COLUMNS", 3)
    result = evaluate_holdout(cases.regressor(), *cases.held_out("amount"), 0)
    (text,) = explanations.explanation_section(result).parts
    assert isinstance(text, Text)
    assert "uses 4 columns, too many" in text.text
