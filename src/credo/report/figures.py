"""Figures as they stand in a page: drawn by :mod:`credo.plots`, all of one size, as vector images inside the file."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from credo import plots
from credo.report.page import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.8, 3.3  # inches; two fit beside each other on a page
_PIXELS = 96  # to the inch, in CSS
_SETTINGS: Final[dict[str, Any]] = {
    "font.sans-serif": ["Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "savefig.bbox": None,  # the whole figure, so that all are of one size
    "svg.hashsalt": "credo",  # the same figure is the same file
    "svg.image_inline": True,
}


def draw(
    paint: Callable[[Axes], object], *, alt: str, caption: str, width: float = WIDTH, height: float = HEIGHT
) -> Picture:
    """A figure.

    Args:
        paint: draws on the axes it is given.
        alt: what it shows, with its numbers.
        caption: how to read it.
        width: in inches.
        height: in inches.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with warnings.catch_warnings(), plots.paper(), mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
        # Text stays text, and the reader's browser has fonts that matplotlib has not.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure.subplots())
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    source = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(source, alt, caption, (round(width * _PIXELS), round(height * _PIXELS)))
