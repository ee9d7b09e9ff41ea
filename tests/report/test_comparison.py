"""The report that compares methods."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from credo import metrics, report
from credo.errors import InputError
from credo.report.comparison import _best, _score_cell

from . import cases


@pytest.mark.parametrize("is_classification", [False, True])
def test_report_shows_the_best_method_and_warnings(is_classification: bool) -> None:
    compared = cases.comparison(is_classification)
    html = report.render_comparison(compared)
    outline = cases.Outline(html)
    assert " ".join(compared.verdict.split()) in outline.text
    assert "<Good>" in outline.text
    assert "Bad & Worse" in outline.text
    assert "Comparison of methods for “<y>”" in outline.text
    assert "Bad & Worse: " in outline.text  # the warning
    assert "overconfident" in outline.text
    for score in compared.results[0].scores:
        assert score.label.lower() in outline.text.lower()
    assert not re.search(r"https?://|url\(|<script", html)
    assert all(attributes["alt"] for attributes in outline.all("img"))


def test_best_score_of_a_column() -> None:
    first, second = (result.scores[0] for result in cases.comparison().results)
    assert first.name == "nll"
    assert _best([second, first]) is first
    wrong, accurate = (replace(first, name="accuracy", value=value) for value in (0.8, 0.9))
    assert _best([wrong, accurate]) is accurate
    covers = [replace(first, name="coverage", value=value, level=0.95) for value in (0.90, 0.96, 1.0)]
    assert _best(covers) is covers[1]
    undefined = replace(first, value=math.nan)
    assert _best([undefined, first]) is first
    assert _best([undefined]) is None
    assert _best([replace(first, name="width", level=0.95)]) is None  # narrow intervals are not better in themselves


def test_equal_text_is_bold_in_all_cells() -> None:
    near = metrics.Score("nll", 1.001, 0.5, 1.5)
    scores = [near, replace(near, value=1.0), replace(near, value=1.2)]
    cells = [_score_cell(score, scores) for score in scores]
    assert [(cell.text, cell.strong) for cell in cells] == [("1.00", True), ("1.00", True), ("1.20", False)]


def test_comparison_of_one_method() -> None:
    alone = replace(cases.comparison(), results=cases.comparison().results[:1])
    text = cases.text_of(report.render_comparison(alone, title="Alone"))
    assert "Alone" in text
    assert "nothing to compare it with" in text


def test_empty_comparison_raises() -> None:
    with pytest.raises(InputError, match="at least one method"):
        report.render_comparison(replace(cases.comparison(), results=[]))
