"""The elements of a page: figures and escaping."""

from __future__ import annotations

import pytest

from credo.report.formatting import escape_for_figure
from credo.report.page import (
    Cell,
    Column,
    Definitions,
    Diagnostics,
    Finding,
    Page,
    ReportTable,
    Section,
    Text,
    Tile,
    draw_figure,
    to_html,
)

from . import cases


@pytest.mark.parametrize(
    "text", ["$x$", "$", r"\$", "a$b$c", "$$", r"\frac{1}{", "<&>", "\x00\x1b", "名前 😀", "\ud800"]
)
def test_any_text_can_be_an_axis_label(text: str) -> None:
    picture = draw_figure(
        lambda ax: ax.set(xlabel=escape_for_figure(text)), alt="a", caption="c", width=1.5, height=1.0
    )
    assert picture.size == (144, 96)


def test_figures_are_deterministic() -> None:
    first, second = (draw_figure(lambda ax: ax.plot([0, 1], [0, 1]), alt="a", caption="c") for _ in range(2))
    assert first == second


def test_every_part_of_a_page_is_escaped() -> None:
    bad = "<img src=x onerror=alert(1)>\x07"
    page = Page(
        title=bad,
        byline=[bad],
        summary=bad,
        diagnostics=Diagnostics(bad, [Finding("warning", bad)]),
        tiles=[Tile(bad, bad, bad)],
        sections=[
            Section(
                "a",
                bad,
                [
                    Text(bad),
                    Definitions([(bad, bad)]),
                    ReportTable(bad, [Column(bad)], [[Cell(bad, bad, True)]]),
                    ReportTable(bad, [Column(bad)], [[Cell(bad)]], toggle=bad),
                ],
            )
        ],
        footer=bad,
    )
    outline = cases.Outline(to_html(page))
    assert outline.all("img") == []
    assert "\x07" not in outline.text
