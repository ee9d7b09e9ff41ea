"""Figures of beliefs. Every function takes the axes to draw on, makes its own where there are none, and returns them.

``with credo.plots.paper():`` around the calls gives figures fit to print.
"""

from credo.plots.bands import draws, predictive_bands
from credo.plots.calibration import interval_calibration, pit_histogram, reliability
from credo.plots.classification import confusion
from credo.plots.images import image_grid
from credo.plots.regression import predicted_vs_observed
from credo.plots.rotation import leading_classes, rotated_digit, softmax_scatter
from credo.plots.style import OKABE_ITO, paper
from credo.plots.training import training_curves
from credo.plots.uncertainty import risk_coverage, uncertainty_histogram, uncertainty_parts
from credo.plots.weights import snr, weight_histogram

__all__ = [
    "OKABE_ITO",
    "confusion",
    "draws",
    "image_grid",
    "interval_calibration",
    "leading_classes",
    "paper",
    "pit_histogram",
    "predicted_vs_observed",
    "predictive_bands",
    "reliability",
    "risk_coverage",
    "rotated_digit",
    "snr",
    "softmax_scatter",
    "training_curves",
    "uncertainty_histogram",
    "uncertainty_parts",
    "weight_histogram",
]
