"""What an experiment is, and which ones there are."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch

from credo.errors import InputError, unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Effort = Literal["full", "quick", "smoke"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)

_REGISTRY: dict[str, Experiment] = {}


@dataclass(frozen=True)
class Setting:
    """What an experiment is told.

    Attributes:
        effort: ``"full"``: what the paper did, as far as the machine allows; ``"quick"``: about a minute on two cores;
            ``"smoke"``: a few seconds on data that come with the library, to see that everything works.
        seed: fixes the data, the training and the draws.
        device: where to train; ``None`` is the CPU.
        report: told in a few words what is being done.
    """

    effort: Effort = "full"
    seed: int = 0
    device: str | None = None
    report: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Row:
    """One quantity, as published and as found here.

    Attributes:
        quantity: what was measured, and its unit.
        values: ours, one for every repetition: a seed, or a split of the data.
        published: what the paper reports; ``None`` where it gives no number for this.
        source: where the published number stands.
        note: what to know when the two are compared.
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
            raise InputError(f"the published {self.quantity!r} needs a source: say where the number stands")

    @property
    def mean(self) -> float:
        """The mean over repetitions."""
        return torch.tensor(self.values, dtype=torch.float64).mean().item()

    @property
    def standard_error(self) -> float | None:
        """The standard error s/√n of the mean; ``None`` for one repetition, whose spread is not known."""
        if len(self.values) == 1:
            return None
        return torch.tensor(self.values, dtype=torch.float64).std().item() / math.sqrt(len(self.values))

    @property
    def ours(self) -> str:
        """The mean for a table, ``"0.123 ± 0.004"``: the error to two digits, the mean to as many decimals."""
        error = self.standard_error
        if error is None or not 0.0 < error < math.inf:
            return f"{self.mean:.3g}" if error is None else f"{self.mean:.3g} ± {error:.2g}"
        decimals = 1 - math.floor(math.log10(error))
        if decimals > 6 or decimals < 0:
            return f"{self.mean:.4g} ± {error:.2g}"
        return f"{self.mean:.{decimals}f} ± {error:.{decimals}f}"


@dataclass(frozen=True)
class Result:
    """What an experiment found.

    Attributes:
        rows: the table.
        figures: by the name of their file.
    """

    rows: tuple[Row, ...]
    figures: dict[str, Figure] = field(default_factory=dict)

    @staticmethod
    def pooled(results: Sequence[Result]) -> Result:
        """The repetitions of all ``results`` in one table, with the figures of the first."""
        if len({tuple(row.quantity for row in result.rows) for result in results}) != 1:
            raise InputError("results must be of one experiment: they measure different quantities")
        tables = zip(*(result.rows for result in results), strict=True)
        rows = tuple(replace(same[0], values=tuple(v for row in same for v in row.values)) for same in tables)
        return Result(rows, results[0].figures)


@dataclass(frozen=True)
class Experiment:
    """A published table or figure that can be run again.

    Attributes:
        name: what ``credo reproduce`` calls it.
        title: what it shows, in a line.
        reference: the paper, and the table or figure in it.
        description: what the paper claims, what is run here, and what differs.
        figures: names of the pictures that it draws.
        run: does it, for one seed.
    """

    name: str
    title: str
    reference: str
    description: str
    figures: tuple[str, ...]
    run: Callable[[Setting], Result]


def experiment(
    *, title: str, reference: str, figures: Sequence[str] = ()
) -> Callable[[Callable[[Setting], Result]], Callable[[Setting], Result]]:
    """Register the decorated function as the experiment of its file, whose docstring describes it."""

    def register(run: Callable[[Setting], Result]) -> Callable[[Setting], Result]:
        module = sys.modules[run.__module__]
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        _REGISTRY[name] = Experiment(name, title, reference, (module.__doc__ or "").strip(), tuple(figures), run)
        return run

    return register


def names() -> list[str]:
    """The experiments there are, in alphabetical order; none of them is loaded for this."""
    return sorted({*_modules(), *_REGISTRY})


def get(name: str) -> Experiment:
    """The experiment of that name, whose file is loaded now."""
    if name not in names():
        raise unknown_name("experiment", name, names())
    if name not in _REGISTRY:
        importlib.import_module(f"{__package__}.{_modules()[name]}")
    return _REGISTRY[name]


@cache
def _modules() -> dict[str, str]:
    """The modules of this folder that hold an experiment, by its name."""
    files = [path for path in Path(__file__).parent.glob("*.py") if path.name != Path(__file__).name]
    holders = [path.stem for path in files if "\n@experiment(" in path.read_text(encoding="utf-8")]
    return {stem.replace("_", "-"): stem for stem in holders}
