"""Tables: reading files, encoding columns as features, and estimators with error bars."""

from credo.tabular import methods
from credo.tabular.columns import Columns
from credo.tabular.estimators import Classifier, Regressor
from credo.tabular.files import read_chunks, read_table
from credo.tabular.methods import TabularMethod, register
from credo.tabular.targets import ClassTarget, RegressionTarget, guess_task

__all__ = [
    "ClassTarget",
    "Classifier",
    "Columns",
    "RegressionTarget",
    "Regressor",
    "TabularMethod",
    "guess_task",
    "methods",
    "read_chunks",
    "read_table",
    "register",
]
