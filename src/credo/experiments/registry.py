"""The registry of experiments, and the table that each of them returns."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch

from credo._estimate import format_estimate
from credo.errors import InputError, unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Budget = Literal["full", "quick", "smoke"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)

_REGISTRY: dict[str, Experiment] = {}


def _ignore(message: str) -> None:
    """Discard a status message."""


@dataclass(frozen=True)
class RunConfig:
    """The arguments of one run of an experiment.

    Attributes:
        budget: ``"full"``: what the paper did, as far as the machine allows; ``"quick"``: about a minute on two cores;
            ``"smoke"``: a few seconds on data that come with the library, to test that everything works.
        seed: seed of the data, the training and the draws.
        device: device to train on; ``None`` is the CPU.
        report: called with a short status message at every stage.

    Example:
        >>> from credo import experiments
        >>> config = experiments.RunConfig("smoke", seed=1)
        >>> result = experiments.get("beta-bernoulli-update").run(config)
    """

    budget: Budget = "full"
    seed: int = 0
    device: str | None = None
    report: Callable[[str], None] = field(default_factory=lambda: _ignore)


@dataclass(frozen=True)
class Row:
    """One quantity of a table: the published value and ours.

    Attributes:
        quantity: what was measured, and its unit.
        values: our values, one for each repetition: a seed, or a split of the data.
        published: the value in the paper; ``None`` if the paper gives no number.
        source: where the published number is found, such as ``"Table 1"``; required with ``published``.
        note: a remark for the comparison.

    Raises:
        InputError: if ``values`` is empty, or a published value has no source.

    Example:
        >>> Row("test error, %", (1.2, 1.4), published=1.34, source="Table 1").ours
        '1.30 ± 0.10'
    """

    quantity: str
    values: tuple[float, ...]
    published: float | None = None
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError(f"values of {self.quantity!r} must hold at least one number, got none")
        if self.published is not None and not self.source:
            raise InputError(f"the published {self.quantity!r} needs a source, such as 'Table 1'")

    @property
    def mean(self) -> float:
        """The mean over repetitions."""
        return torch.tensor(self.values, dtype=torch.float64).mean().item()

    @property
    def standard_error(self) -> float | None:
        """The standard error s/√n of the mean; ``None`` for one repetition."""
        if len(self.values) == 1:
            return None
        return torch.tensor(self.values, dtype=torch.float64).std().item() / math.sqrt(len(self.values))

    @property
    def ours(self) -> str:
        """The mean for a table, with its standard error if there are several repetitions: ``"0.123 ± 0.004"``."""
        error = self.standard_error
        return f"{self.mean:.3g}" if error is None else format_estimate(self.mean, error)


@dataclass(frozen=True)
class Result:
    """The table and the figures of an experiment.

    Attributes:
        rows: the table.
        figures: the figures by file name, without suffix.

    Example:
        >>> Result.pool([Result((Row("error", (1.0,)),)), Result((Row("error", (3.0,)),))]).rows[0].values
        (1.0, 3.0)
    """

    rows: tuple[Row, ...]
    figures: dict[str, Figure] = field(default_factory=dict)

    @staticmethod
    def pool(results: Sequence[Result]) -> Result:
        """Concatenate the repetitions of several results, row by row.

        Args:
            results: results of the same experiment, such as one for each seed.

        Returns:
            One result with the values of all of them, and the figures of the first.

        Raises:
            InputError: if the results measure different quantities.
        """
        if len({tuple(row.quantity for row in result.rows) for result in results}) != 1:
            raise InputError("results must come from one experiment: they measure different quantities")
        tables = zip(*(result.rows for result in results), strict=True)
        rows = tuple(replace(same[0], values=tuple(v for row in same for v in row.values)) for same in tables)
        return Result(rows, results[0].figures)


@dataclass(frozen=True)
class Experiment:
    """A published table or figure that can be run again.

    Attributes:
        name: the name for ``credo reproduce``.
        title: what it shows, in one line.
        reference: the paper, and the table or figure in it.
        description: what the paper shows, what is run here, and what differs.
        figures: names of the figures, without suffix.
        run: runs the experiment once.
        part: the part of the library that it belongs to, such as ``"linear"``: the name of its folder.

    Example:
        >>> from credo import experiments
        >>> experiments.get("sequential-linear-regression").part
        'linear'
    """

    name: str
    title: str
    reference: str
    description: str
    figures: tuple[str, ...]
    run: Callable[[RunConfig], Result]
    part: str = ""


def experiment(
    name: str, *, title: str, reference: str, figures: Sequence[str] = ()
) -> Callable[[Callable[[RunConfig], Result]], Callable[[RunConfig], Result]]:
    """Register the decorated function as an experiment; its docstring is the description.

    Args:
        name: the name for ``credo reproduce``, in lower case with hyphens. It must be a string literal, because
            :func:`names` reads it from the source without importing the file.
        title: what the experiment shows, in one line.
        reference: the paper, and the table or figure in it.
        figures: names of the figures that it returns, without suffix.

    Returns:
        A decorator that returns the function unchanged.
    """

    def register(run: Callable[[RunConfig], Result]) -> Callable[[RunConfig], Result]:
        description, part = inspect.getdoc(run) or "", run.__module__.split(".")[-2]
        _REGISTRY[name] = Experiment(name, title, reference, description, tuple(figures), run, part)
        return run

    return register


def names() -> list[str]:
    """List the names of all experiments, without importing them.

    Returns:
        The names in alphabetical order.
    """
    return sorted({*_modules(), *_REGISTRY})


def get(name: str) -> Experiment:
    """Import and return one experiment.

    Args:
        name: one of :func:`names`.

    Returns:
        The experiment.

    Raises:
        InputError: if there is no experiment of that name.
    """
    if name not in names():
        raise unknown_name("experiment", name, names())
    if name not in _REGISTRY:
        importlib.import_module(_modules()[name])
    return _REGISTRY[name]


@cache
def _modules() -> dict[str, str]:
    """The module that defines each experiment, by the experiment's name."""
    found = {}
    for path in Path(__file__).parent.glob("*/*.py"):
        for name in re.findall(r'^@experiment\(\s*"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
            found[name] = f"{__package__}.{path.parent.name}.{path.stem}"
    return found
