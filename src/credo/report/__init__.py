"""Reports on fitted estimators as one HTML file: metrics, calibration, sources of uncertainty, and warnings."""

from credo.report.comparison import render_comparison
from credo.report.rendering import render, write

__all__ = ["render", "render_comparison", "write"]
