"""What a page is made of, whatever it tells, and how it becomes one HTML file."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from credo.report.wording import printable

if TYPE_CHECKING:
    import jinja2


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do for a page: show it. No script runs, nothing is fetched and nothing sent."""


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
        source: the image itself, as a ``data:`` address.
        alt: what it shows, with its numbers, for those who cannot see it.
        caption: how to read it.
        size: in CSS pixels; it shrinks where there is no room.
    """

    source: str
    alt: str
    caption: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Gallery:
    """Figures beside each other where there is room."""

    kind: ClassVar[str] = "gallery"

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Column:
    """The heading of a column, and what it holds: a ``"number"`` is set to the right, ``"prose"`` is not squeezed."""

    heading: str
    holds: Literal["label", "number", "prose"] = "label"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, a smaller ``note`` below it, and whether it stands out."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        caption: what it holds.
        columns: their headings.
        rows: as many cells each as there are columns.
        folded: what a reader clicks on to see it; ``None`` where it is shown at once.
    """

    kind: ClassVar[str] = "table"

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    folded: str | None = None


@dataclass(frozen=True)
class Facts:
    """Terms and what is said of each."""

    kind: ClassVar[str] = "facts"

    items: Sequence[tuple[str, str]]


Part: TypeAlias = Text | Notes | Gallery | Table | Facts


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading; ``anchor`` is its name in links."""

    anchor: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Finding:
    """A sentence of the verdict: a ``"warning"``, that all is ``"good"``, or a ``"hint"`` at what to know or to do."""

    tone: Literal["warning", "good", "hint"]
    text: str


@dataclass(frozen=True)
class Verdict:
    """What to make of it all."""

    title: str
    findings: Sequence[Finding]

    @property
    def tone(self) -> Literal["warning", "good"]:
        """Good unless something is to be warned of."""
        return "warning" if any(finding.tone == "warning" for finding in self.findings) else "good"


@dataclass(frozen=True)
class Tile:
    """A number that everybody should see, what it is called, and a note below it."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: its heading.
        byline: what it is about, in a few words each.
        headline: what was found, in one or two sentences.
        verdict: what to make of it.
        tiles: the few numbers that matter most.
        sections: all the rest.
        footer: how it was made.
    """

    title: str
    byline: Sequence[str]
    headline: str
    verdict: Verdict
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str


def to_html(page: Page) -> str:
    """The page as one HTML file that needs nothing else: no network, no scripts, no fonts."""
    html = _environment().get_template("report.html.j2").render(page=page, policy=POLICY)
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", html)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("credo.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
