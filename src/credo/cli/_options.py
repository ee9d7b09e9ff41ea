"""Options that several commands share, and the checks that make a wrong one a usage error, exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from credo.errors import InputError, unknown_name

T = TypeVar("T")

CALIBRATIONS = ("variance", "quantile", "conformal", "temperature")


@contextmanager
def usage_errors() -> Iterator[None]:
    """What is wrong with the command itself, not with the data, ends with exit code 2."""
    try:
        yield
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def _checked(check: Callable[[Any], object]) -> Callable[[T], T]:
    """A callback that lets a value through unless ``check`` refuses it."""

    def callback(value: T) -> T:
        if value is not None:
            with usage_errors():
                check(value)
        return value

    return callback


def _check_methods(names: str) -> None:
    from credo.tabular import methods

    for name in names.split(","):
        methods.get(name)


def _check_task(name: str) -> None:
    from credo.tabular.runs import TASKS

    if name not in TASKS:
        raise unknown_name("task", name, TASKS)


def _check_calibration(name: str) -> None:
    if name not in CALIBRATIONS:
        raise unknown_name("calibration", name, CALIBRATIONS)


def _check_holdout(share: float) -> None:
    if not 0.0 <= share < 1.0:
        raise InputError(f"it must be a share of the rows, from 0 to below 1, got {share:g}")


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise InputError(f"it must lie between 0 and 1, got {level:g}")


def _check_device(name: str) -> None:
    from credo._devices import check_device

    check_device(name)


Table = Annotated[Path, typer.Argument(metavar="DATA", help="A CSV file, plain or gzipped, or a Parquet file.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that credo fit wrote.")]
Target = Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")]
Method = Annotated[
    str,
    typer.Option(callback=_checked(_check_methods), help="How to learn: bbb, mc_dropout, ensemble or map."),
]
Methods = Annotated[
    str | None,
    typer.Option(
        callback=_checked(_check_methods), show_default="all", help="Some of bbb,mc_dropout,ensemble,map with commas."
    ),
]
TaskName = Annotated[
    str, typer.Option(callback=_checked(_check_task), help="regression, classification or auto: seen from the target.")
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        callback=_checked(_check_calibration),
        show_default="none",
        help="Correct the error bars by rows held out for it: variance, quantile or conformal (for numbers), "
        "temperature (for classes).",
    ),
]
Holdout = Annotated[
    float, typer.Option(callback=_checked(_check_holdout), help="Share of the rows to judge the model by; 0: none.")
]
Drop = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; may be given again.")]
Epochs = Annotated[int | None, typer.Option(min=1, show_default="by the size", help="Passes over the table.")]
Level = Annotated[
    float, typer.Option(callback=_checked(_check_level), help="How probable it is that a number is within its bounds.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Fixes everything that is random.")]
Device = Annotated[
    str | None,
    typer.Option(callback=_checked(_check_device), show_default="cpu", help="Where to compute, such as cuda."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")]
