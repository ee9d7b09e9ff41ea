"""Numbers and names as a page shows them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credo import metrics
from credo.report import figures, scorecard, wording


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
def test_numbers(value: float, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (2.5, "2.5"), (100.0, "100"), (0.0, "0")])
def test_numbers_without_zeros_at_the_end(value: float, text: str) -> None:
    assert wording.number(value, 4, trim=True) == text


@pytest.mark.parametrize(
    ("share", "text"),
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
def test_shares_are_never_rounded_to_none_or_all(share: float, text: str) -> None:
    assert wording.percent(share) == text


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c")]
)
def test_lists(items: list[str], text: str) -> None:
    assert wording.joined(items) == text


@given(st.text(st.characters(), max_size=100))
def test_any_text_fits_into_a_page(text: str) -> None:
    shown = wording.cut(text)
    assert len(shown) <= 24
    assert "\n" not in shown
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert not set(shown) & set(map(chr, [*range(32), 127, 0x202E, 0xFFFE]))


@pytest.mark.parametrize(
    "text", ["$x$", "$", r"\$", "a$b$c", "$$", r"\frac{1}{", "<&>", "\x00\x1b", "名前 😀", "\ud800"]
)
def test_any_text_can_be_drawn(text: str) -> None:
    picture = figures.draw(
        lambda ax: ax.set(xlabel=wording.for_figure(text)), alt="a", caption="c", width=1.5, height=1.0
    )
    assert picture.size == (144, 96)


def test_the_same_figure_is_the_same_file() -> None:
    first, second = (figures.draw(lambda ax: ax.plot([0, 1], [0, 1]), alt="a", caption="c") for _ in range(2))
    assert first == second


def test_a_score_and_its_interval_have_the_same_decimals() -> None:
    score = metrics.Score("ece", 0.0151, 0.0034, 0.163)
    assert (scorecard.value(score), scorecard.bounds(score)) == ("0.015", "0.003 to 0.163")
    coverage = metrics.Score("coverage", 0.9, 0.8, 1.0, 0.95)
    assert (scorecard.value(coverage), scorecard.bounds(coverage)) == ("90 %", "80 % to 100 %")
    assert scorecard.value(score, [metrics.Score("ece", 2.5, 2.0, 3.0)]) == "0.02"
    assert scorecard.better(coverage) == "near 95 %"
    assert scorecard.better(score) == "lower"
    assert scorecard.bounds(metrics.Score("r2", math.nan, math.nan, math.nan)) == "undefined"
    assert scorecard.value(metrics.Score("nll", math.inf, 1.0, math.inf)) == "∞"
