"""Figures of beliefs. Every function takes the axes to draw on, makes its own where there are none, and returns them.

``with credo.plots.paper():`` around the calls gives figures fit to print.
"""

from credo.plots.bands import draws, predictive_bands
from credo.plots.classification import leading_classes, rotated_digit, uncertainty_histogram
from credo.plots.style import OKABE_ITO, paper

__all__ = [
    "OKABE_ITO",
    "draws",
    "leading_classes",
    "paper",
    "predictive_bands",
    "rotated_digit",
    "uncertainty_histogram",
]
