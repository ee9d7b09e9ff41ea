"""Which method ``method="auto"`` is for a table, and why.

The settings of the stacked ensemble were chosen on tables that ``benchmarks/tables.py`` does not have, and inside the
training folds of those of ``benchmarks/uci.py``; ``docs/tables.md`` has the main figures. Both benchmarks compare it,
with Bayes by Backprop or with other libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from credo.errors import InputError, unknown_name
from credo.methods.sampler import Sampler
from credo.tabular import methods, sampled, stacked  # noqa: F401 (samplers are registered)
from credo.tabular.methods import TabularMethod

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

NAME = "auto"
MIN_STACKED_ROWS = 50
"""Rows from which on the stacked ensemble is chosen: with fewer, parts of them say little about the rest."""


class Choice(NamedTuple):
    """A method and the reason for it, half a sentence."""

    method: TabularMethod
    reason: str


def check(estimator: TableEstimator) -> None:
    """Raise InputError if ``method`` is unknown, or has no use for ``epochs`` or ``batch_size``, which are given."""
    name = estimator.method
    if name == NAME:
        return
    if name not in methods.names():
        raise unknown_name("method", name, [NAME, *methods.names()])
    given = [argument for argument in ("epochs", "batch_size") if getattr(estimator, argument) is not None]
    if given and not methods.get(name).has_epochs:
        raise InputError(
            f"method={name!r} uses all rows in every step, so that {given[0]} does not apply: leave it out, or set the "
            "length of the chains by method_options={'warmup': ..., 'draws': ..., 'leapfrog_steps': ...}"
        )


def choose(estimator: TableEstimator, rows: int, further_rows: bool) -> Choice:
    """The method for a table.

    Args:
        estimator: the estimator, whose arguments may decide.
        rows: the number of rows to train on.
        further_rows: whether further rows will come, by ``partial_fit``.

    Returns:
        The method that is asked for, or for ``"auto"``: a stacked ensemble from :data:`MIN_STACKED_ROWS` rows on; Bayes
        by Backprop for fewer rows, for ``partial_fit``, and where arguments are about its training.
    """
    if estimator.method != NAME:
        return Choice(methods.get(estimator.method), "as requested")
    trained = methods.get("bbb")
    if further_rows:
        return Choice(trained, "because partial_fit needs a posterior that can be the next prior")
    given = [name for name in ("epochs", "batch_size", "method_options") if getattr(estimator, name) is not None]
    if given:
        return Choice(trained, f"because {given[0]} was given, which is about methods that are trained in epochs")
    if rows < MIN_STACKED_ROWS:
        return Choice(trained, f"because {rows:,} rows are too few to hold some out in turn")
    return Choice(methods.get(stacked.NAME), f"the default for a table of {rows:,} rows")


def notes(estimator: TableEstimator) -> list[str]:
    """Sentences about the method of a fitted estimator: why it was chosen, and whether its chains have converged."""
    found = []
    if estimator.method == NAME:
        found.append(f"The method is {methods.get(estimator.method_).title}, {estimator.method_reason_}.")
    report = estimator.model_._report if isinstance(estimator.model_, Sampler) else None
    return found if report is None else [*found, report.sentence()]
