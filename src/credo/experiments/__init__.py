"""Whole jobs, from data to table and figure, one file each.

A published table or figure is reproduced by ``credo reproduce NAME``, or from Python:

    credo.experiments.names()
    credo.experiments.run("bbb-regression", effort="quick", out="reproductions")

A new one is a new file in this folder: a docstring that says what the paper claims, what is run and what differs, and
one function under :func:`~credo.experiments.registry.experiment`. The name is that of the file.
"""

from credo.experiments.registry import Experiment, Result, Row, Setting, experiment, get, names
from credo.experiments.runner import Reproduction, run

__all__ = ["Experiment", "Reproduction", "Result", "Row", "Setting", "experiment", "get", "names", "run"]
