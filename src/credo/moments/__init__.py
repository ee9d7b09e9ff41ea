"""Moment propagation: means and variances through a network in one pass, instead of draws of its weights."""

from credo.moments import elementwise, layers, shapes  # their rules are registered by the import
from credo.moments.evaluation import MomentEvaluator

__all__ = ["MomentEvaluator", "elementwise", "layers", "shapes"]
