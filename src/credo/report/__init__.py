"""Reports: one HTML file that says what was predicted, how well, and whether the error bars can be believed."""

from credo.report.comparison import render_comparison
from credo.report.rendering import render, write

__all__ = ["render", "render_comparison", "write"]
