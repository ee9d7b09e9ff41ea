"""Numbers, names and scores as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credo import metrics
from credo.report import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (54.123, "54.1"),
        (0.04512, "0.0451"),
        (1234.6, "1,235"),
        (-3.0, "−3.00"),
        (0.0, "0"),
        (1.5e9, "1.5e+09"),
        (1e-7, "1e−07"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_format_number(value: float, text: str) -> None:
    assert formatting.format_number(value) == text


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (2.5, "2.5"), (100.0, "100"), (0.0, "0")])
def test_trailing_zeros_are_trimmed(value: float, text: str) -> None:
    assert formatting.format_number(value, 4, trim=True) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.943, "94 %"),
        (0.997, "99.7 %"),
        (0.004, "0.4 %"),
        (0.99999, "over 99.9 %"),
        (0.00001, "under 0.1 %"),
        (math.nan, "–"),
    ],
)
def test_percentages_are_never_rounded_to_0_or_100(fraction: float, text: str) -> None:
    assert formatting.format_percent(fraction) == text


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c")]
)
def test_join_words(items: list[str], text: str) -> None:
    assert formatting.join_words(items) == text


@given(st.text(st.characters(), max_size=100))
def test_truncate_gives_printable_text(text: str) -> None:
    shown = formatting.truncate(text)
    assert len(shown) <= 24
    assert "\n" not in shown
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert not set(shown) & set(map(chr, [*range(32), 127, 0x202E, 0xFFFE]))


def test_scores_and_intervals_have_the_same_decimals() -> None:
    score = metrics.Score("ece", 0.0151, 0.0034, 0.163)
    assert (formatting.format_score(score), formatting.format_score_interval(score)) == ("0.015", "0.003 to 0.163")
    coverage = metrics.Score("coverage", 0.9, 0.8, 1.0, 0.95)
    assert (formatting.format_score(coverage), formatting.format_score_interval(coverage)) == ("90 %", "80 % to 100 %")
    assert formatting.format_score(score, [metrics.Score("ece", 2.5, 2.0, 3.0)]) == "0.02"
    assert formatting.format_better(coverage) == "near 95 %"
    assert formatting.format_better(score) == "lower"
    assert formatting.format_score_interval(metrics.Score("r2", math.nan, math.nan, math.nan)) == "undefined"
    assert formatting.format_score(metrics.Score("nll", math.inf, 1.0, math.inf)) == "∞"
