"""A network evaluated for many draws: at once or one after the other, with the work they share done once."""

from credo.evaluation.captured import Findings
from credo.evaluation.evaluator import Evaluator

__all__ = ["Evaluator", "Findings"]
