"""The elements of a page, its figures, and its HTML."""

from __future__ import annotations

import base64
import functools
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from credo import plots
from credo.report.formatting import replace_unprintable

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The content security policy of a page: no script runs, nothing is loaded and nothing is sent."""

WIDTH, HEIGHT = 4.8, 3.3  # of a figure in inches; two fit side by side on a page
_PIXELS_PER_INCH = 96  # in CSS
_FIGURE_SETTINGS: Final[dict[str, Any]] = {
    "font.sans-serif": ["Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "savefig.bbox": None,  # the whole figure, so that all have the same size
    "svg.hashsalt": "credo",  # the same figure gives the same file
    "svg.image_inline": True,
}


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"

    text: str


@dataclass(frozen=True)
class Notes:
    """A list of sentences."""

    kind: ClassVar[str] = "notes"

    items: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        source: the image as a ``data:`` URL.
        alt: what it shows, with numbers, for screen readers.
        caption: how to read it.
        size: in CSS pixels; it shrinks on narrow screens.
    """

    source: str
    alt: str
    caption: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Gallery:
    """Figures side by side if there is room."""

    kind: ClassVar[str] = "gallery"

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading and its kind of content; numbers are right-aligned, prose gets more room."""

    heading: str
    content: Literal["label", "number", "prose"] = "label"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a ``note`` in small print below, and whether the text is bold."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table whose first column holds the row headings.

    Attributes:
        caption: what it contains.
        columns: one per column.
        rows: one cell per column and row.
        toggle: the text to click on to show the table; ``None`` if it is always shown.
    """

    kind: ClassVar[str] = "table"

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    toggle: str | None = None


@dataclass(frozen=True)
class Definitions:
    """Terms and their descriptions."""

    kind: ClassVar[str] = "definitions"

    items: Sequence[tuple[str, str]]


Part: TypeAlias = Text | Notes | Gallery | ReportTable | Definitions


@dataclass(frozen=True)
class Section:
    """Parts of the page under a heading; ``anchor`` is the target of links to it."""

    anchor: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Finding:
    """A result of the diagnostics: a ``"warning"``, a ``"good"`` result, or a ``"hint"``."""

    tone: Literal["warning", "good", "hint"]
    text: str


@dataclass(frozen=True)
class Diagnostics:
    """The findings of all tests under a title."""

    title: str
    findings: Sequence[Finding]

    @property
    def tone(self) -> Literal["warning", "good"]:
        """Return "warning" if there is a warning among the findings, "good" otherwise."""
        return "warning" if any(finding.tone == "warning" for finding in self.findings) else "good"


@dataclass(frozen=True)
class Tile:
    """A number in large print with its label and a note."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: its heading.
        byline: short facts below the heading, such as the source of the data.
        summary: the main result in one or two sentences.
        diagnostics: warnings and hints.
        tiles: the most important numbers.
        sections: the rest of the page.
        footer: the last line.
    """

    title: str
    byline: Sequence[str]
    summary: str
    diagnostics: Diagnostics
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str


def draw_figure(
    plot: Callable[[Axes], object], *, alt: str, caption: str, width: float = WIDTH, height: float = HEIGHT
) -> Picture:
    """Draw a figure as a vector image inside the page.

    Args:
        plot: draws on the axes it is given.
        alt: what the figure shows, with numbers.
        caption: how to read it.
        width: in inches.
        height: in inches.
    """
    source = f"data:image/svg+xml;base64,{base64.b64encode(_draw_svg(plot, width, height)).decode()}"
    return Picture(source, alt, caption, (round(width * _PIXELS_PER_INCH), round(height * _PIXELS_PER_INCH)))


def _draw_svg(plot: Callable[[Axes], object], width: float, height: float) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with warnings.catch_warnings(), plots.paper(), mpl.rc_context(_FIGURE_SETTINGS):  # type: ignore[arg-type]
        # Text stays text in SVG, and browsers have fonts that matplotlib does not have.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        plot(figure.subplots())
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def to_html(page: Page) -> str:
    """Return the page as one self-contained HTML file: no network, no scripts, no fonts."""
    html = _environment().get_template("report.html.j2").render(page=page, policy=POLICY)
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", html)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("credo.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: replace_unprintable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
