"""A network evaluated for many draws: at once or one after the other, with the work they share done once."""

from credo.evaluation.evaluator import WAYS, Evaluator
from credo.evaluation.findings import Findings

__all__ = ["WAYS", "Evaluator", "Findings"]
