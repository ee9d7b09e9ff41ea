"""Explanations with uncertainty: which columns a model uses, what they do, and which of them make it uncertain.

All are computed under each posterior draw, so that they have an epistemic band: where it is wide, more training rows
could change the explanation.
"""

from credo.explain.dependence import accumulated_local_effects, partial_dependence
from credo.explain.effects import ColumnEffect, IndividualEffects
from credo.explain.importance import PermutationImportance, permutation_importance
from credo.explain.model import ModelExplanation, explain_model
from credo.explain.uncertainty import PartImportance, UncertaintyImportance, uncertainty_importance

__all__ = [
    "ColumnEffect",
    "IndividualEffects",
    "ModelExplanation",
    "PartImportance",
    "PermutationImportance",
    "UncertaintyImportance",
    "accumulated_local_effects",
    "explain_model",
    "partial_dependence",
    "permutation_importance",
    "uncertainty_importance",
]
