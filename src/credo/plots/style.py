"""Colors for all kinds of color vision, and settings for print."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

# Okabe & Ito (2008), "Color universal design": distinct under every common kind of color blindness.
OKABE_ITO: Final = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}

# One color per quantity, the same in every figure of the library.
EPISTEMIC: Final = OKABE_ITO["blue"]
ALEATORIC: Final = OKABE_ITO["orange"]
DATA: Final = "#222222"
TRUTH: Final = OKABE_ITO["vermilion"]
MUTED: Final = "#8A8A8A"

CYCLE: Final = tuple(OKABE_ITO[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black"))
# In addition to colors, so that figures are readable in gray.
DASHES: Final = ("-", "--", "-.", ":")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<")


def paper() -> AbstractContextManager[None]:
    """Return a context with matplotlib settings for print: ``with credo.plots.paper(): ...``.

    Small sans-serif type, no box around the axes, Okabe–Ito colors, 200 dots per inch for saved files. The previous
    settings are restored at the end.

    Returns:
        The context manager.
    """
    import matplotlib as mpl
    from cycler import cycler

    settings: dict[str, Any] = {
        "font.family": "sans-serif",
        "font.size": 9.0,
        "axes.titlesize": 10.0,
        "axes.titleweight": "bold",
        "axes.labelsize": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=list(CYCLE)),
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 8.0,
        "lines.linewidth": 1.5,
        "figure.dpi": 110.0,
        "savefig.dpi": 200.0,
        "savefig.bbox": "tight",
        "svg.fonttype": "none",
    }
    return mpl.rc_context(settings)  # type: ignore[arg-type]
