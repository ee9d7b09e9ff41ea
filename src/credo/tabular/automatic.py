"""Which method ``method="auto"`` is for a table, and why.

``benchmarks/table_defaults.py`` compares Hamiltonian Monte Carlo with Bayes by Backprop inside training folds. Sampling
is chosen only where it was found better: for regression, between 200 rows and what chains get through in 40 seconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sklearn.base import is_regressor

from credo.errors import InputError, unknown_name
from credo.methods.sampler import Sampler
from credo.tabular import methods
from credo.tabular.methods import TabularMethod
from credo.tabular.sampled import SamplingPlan

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

NAME = "auto"
MIN_GRADIENTS = 4_000
"""With fewer in its time, the chains are too short."""
_OUTPUTS = 2


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


def choose(estimator: TableEstimator, rows: int, features: int, further_rows: bool) -> Choice:
    """The method for a table.

    Args:
        estimator: the estimator, whose arguments may decide.
        rows: the number of rows to train on.
        features: the number of features of the encoded table.
        further_rows: whether further rows will come, by ``partial_fit``.

    Returns:
        The method that is asked for, or for ``"auto"``: Hamiltonian Monte Carlo for regression, if there are 200 rows
        or more but few enough for chains of a sufficient length; Bayes by Backprop otherwise, and where the arguments
        are about training.
    """
    if estimator.method != NAME:
        return Choice(methods.get(estimator.method), "as requested")
    trained, sampled = methods.get("bbb"), methods.get("hmc")
    if further_rows:
        return Choice(trained, "because partial_fit needs a posterior that can be the next prior")
    given = [name for name in ("epochs", "batch_size", "method_options") if getattr(estimator, name) is not None]
    if given:
        return Choice(trained, f"because {given[0]} was given, which is about methods that are trained in epochs")
    if not is_regressor(estimator):
        return Choice(trained, "which is the default for classes")
    if rows < methods.FEW_ROWS:
        return Choice(trained, f"which is the default for fewer than {methods.FEW_ROWS} rows")
    size = f"{rows:,} rows of {features:,} features"
    widths = [features, *methods.hidden_layers(estimator.hidden, rows), _OUTPUTS]
    weights = sum((a + 1) * b for a, b in pairwise(widths)) + features * _OUTPUTS
    if SamplingPlan.make(rows, weights).gradients >= MIN_GRADIENTS:
        return Choice(sampled, f"because {size} are few enough to draw from the posterior itself, in about 40 seconds")
    return Choice(trained, f"because {size} are too many to draw from the posterior itself in a minute")


def notes(estimator: TableEstimator) -> list[str]:
    """Sentences about the method of a fitted estimator: why it was chosen, and whether its chains have converged."""
    found = []
    if estimator.method == NAME:
        found.append(f"The method is {methods.get(estimator.method_).title}, {estimator.method_reason_}.")
    report = estimator.model_._report if isinstance(estimator.model_, Sampler) else None
    return found if report is None else [*found, report.sentence()]
