"""Tables: from a file to features, and estimators that learn from them with error bars."""

from credo.tabular import recipes
from credo.tabular.classifier import Classifier
from credo.tabular.columns import Columns
from credo.tabular.reading import read_chunks, read_table
from credo.tabular.recipes import Recipe, register
from credo.tabular.regressor import Regressor
from credo.tabular.targets import ClassTarget, RegressionTarget, guess_task

__all__ = [
    "ClassTarget",
    "Classifier",
    "Columns",
    "Recipe",
    "RegressionTarget",
    "Regressor",
    "guess_task",
    "read_chunks",
    "read_table",
    "recipes",
    "register",
]
