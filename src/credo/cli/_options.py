"""Options that several commands share. Invalid values are usage errors with exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from credo._arguments import check_fraction, check_option
from credo.errors import InputError

T = TypeVar("T")

CALIBRATIONS = ("variance", "quantile", "conformal", "temperature")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn an ``InputError`` about the command line into a usage error, exit code 2."""
    try:
        yield
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def _validate(check: Callable[[Any], object]) -> Callable[[T], T]:
    """Return a callback that calls ``check`` on a value that is given, and returns the value."""

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


def _check_method(name: str) -> None:
    from credo.tabular import automatic

    if name != automatic.NAME:
        _check_methods(name)


def _check_task(name: str) -> None:
    from credo.tabular.runs import TASKS

    check_option(name, "task", TASKS)


def _check_calibration(name: str) -> None:
    check_option(name, "calibration", CALIBRATIONS)


def _check_holdout(fraction: float) -> None:
    if not 0.0 <= fraction < 1.0:
        raise InputError(f"holdout must be a fraction of the rows, from 0 to below 1, got {fraction:g}")


def _check_level(level: float) -> None:
    check_fraction(level, "level")


def _check_decimal(mark: str) -> None:
    check_option(mark, "decimal", (".", ","))


def _check_types(choices: list[str]) -> None:
    parse_types(choices)


def parse_types(choices: list[str] | None) -> dict[str, str]:
    """The types of columns from texts such as ``day=date``."""
    types = {}
    for choice in choices or ():
        name, equals, kind = choice.rpartition("=")
        if not (equals and name):
            raise InputError(f"a type must be given as COLUMN=TYPE, such as day=date, got {choice!r}")
        types[name] = check_option(kind, "column type", ("number", "date", "category"))
    return types


def _check_device(name: str) -> None:
    from credo._devices import check_device

    check_device(name)


Table = Annotated[Path, typer.Argument(metavar="DATA", help="A CSV file, plain or gzipped, or a Parquet file.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that credo fit wrote.")]
Target = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column to predict; several quantities with commas between: a,b.")
]
OneTarget = Annotated[
    str | None, typer.Option(metavar="COLUMN", show_default=False, help="Which target, if the model has several.")
]
JointNoise = Annotated[bool, typer.Option("--joint-noise", help="With several targets, let their noise be correlated.")]
Method = Annotated[
    str,
    typer.Option(
        callback=_validate(_check_method),
        help="The method: stacked, hmc, bbb, mc_dropout, ensemble, map, or auto, chosen by the size of the table.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        callback=_validate(_check_methods),
        show_default="all but hmc, which takes longer",
        help="Methods separated by commas, from stacked,hmc,bbb,mc_dropout,ensemble,map.",
    ),
]
TaskName = Annotated[
    str,
    typer.Option(
        callback=_validate(_check_task),
        help="regression, classification or auto, which chooses from the values of the target.",
    ),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        callback=_validate(_check_calibration),
        show_default="none",
        help="Calibrate the uncertainty on held-out rows: variance, quantile or conformal (regression), temperature "
        "(classification).",
    ),
]
Holdout = Annotated[
    float,
    typer.Option(callback=_validate(_check_holdout), help="Fraction of the rows to hold out for evaluation; 0: none."),
]
Drop = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; can be repeated.")]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar="MARK",
        callback=_validate(_check_decimal),
        show_default="from the columns",
        help="The decimal mark, . or , of columns that can be read in both ways, such as 1,234.",
    ),
]
DayFirst = Annotated[
    bool | None,
    typer.Option(
        "--dayfirst/--monthfirst",
        show_default="from the columns",
        help="Whether the day or the month is first in dates such as 03/04/2024.",
    ),
]
ColumnTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="COLUMN=TYPE",
        callback=_validate(_check_types),
        help="Read a column as number, date or category; can be repeated.",
    ),
]
Encoding = Annotated[
    str | None, typer.Option(show_default="detected", help="The encoding of a CSV file, such as cp949 or latin-1.")
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        show_default=False,
        help="A column of groups, such as patients: no group is both trained on and tested, and it is no feature.",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", show_default=False, help="A column of dates or numbers: later rows are tested."),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, show_default="by the number of rows", help="Training passes over the table.")
]
Level = Annotated[
    float, typer.Option(callback=_validate(_check_level), help="The probability of the predicted intervals.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of all random numbers.")]
Device = Annotated[
    str | None,
    typer.Option(callback=_validate(_check_device), show_default="cpu", help="The device to compute on, such as cuda."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
