"""Reproductions of published tables and figures, from data to table and picture.

Run one with ``credo reproduce NAME``, or from Python:

    credo.experiments.names()
    credo.experiments.run("bbb-regression", budget="quick", out="reproductions")

The folders group them by part of the library. To add one, write a function under
:func:`~credo.experiments.registry.experiment` in a file of one of these folders. Its docstring describes what the paper
shows, what is run and what differs. The registry finds it by itself.
"""

from credo.experiments.registry import Budget, Experiment, Result, Row, RunConfig, experiment, get, names
from credo.experiments.runner import Reproduction, run

__all__ = ["Budget", "Experiment", "Reproduction", "Result", "Row", "RunConfig", "experiment", "get", "names", "run"]
