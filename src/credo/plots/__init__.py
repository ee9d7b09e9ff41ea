"""Figures of predictions and models. Every function draws on the given axes, or on those of a new figure.

Use ``with credo.plots.paper():`` around the calls for figures in print quality.
"""

from credo.plots._graph import Edge, Node, Plate, PlateGraph
from credo.plots._plate_graphs import plate_graph
from credo.plots.calibration import interval_calibration, pit_histogram, reliability
from credo.plots.classification import confusion, leading_classes, rotated_digit, softmax_scatter
from credo.plots.explanations import column_effect, effect_map, importance, uncertainty_shares
from credo.plots.images import image_grid
from credo.plots.models import snr, training_curves, weight_histogram
from credo.plots.plate import plate
from credo.plots.regression import draws, predicted_vs_observed, predictive_bands
from credo.plots.restoration import restoration_maps
from credo.plots.segmentation import segmentation_maps
from credo.plots.style import OKABE_ITO, paper
from credo.plots.uncertainty import risk_coverage, uncertainty_histogram, uncertainty_parts

__all__ = [
    "Edge",
    "Node",
    "OKABE_ITO",
    "Plate",
    "PlateGraph",
    "column_effect",
    "confusion",
    "draws",
    "effect_map",
    "image_grid",
    "importance",
    "interval_calibration",
    "leading_classes",
    "paper",
    "pit_histogram",
    "plate",
    "plate_graph",
    "predicted_vs_observed",
    "predictive_bands",
    "reliability",
    "restoration_maps",
    "risk_coverage",
    "rotated_digit",
    "segmentation_maps",
    "snr",
    "softmax_scatter",
    "training_curves",
    "uncertainty_histogram",
    "uncertainty_parts",
    "uncertainty_shares",
    "weight_histogram",
]
