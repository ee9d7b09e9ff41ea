"""``credo compare``: compare methods on a table by cross-validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from credo.cli import _options as options
from credo.cli._console import Output, format_number

if TYPE_CHECKING:
    from credo.metrics import Score
    from credo.tabular.comparison import Comparison, MethodResult

SHOWN = ("nll", "rmse", "crps", "coverage", "accuracy", "brier", "ece")
"""The scores that fit in a terminal; the report and the JSON contain all of them."""


def compare(
    data: options.Table,
    target: options.Target,
    methods: options.Methods = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of folds.")] = 5,
    out: Annotated[
        Path, typer.Option(help="Folder for the report; an existing comparison is replaced, nothing else.")
    ] = Path("compare"),
    task: options.TaskName = "auto",
    drop: options.Drop = None,
    decimal: options.Decimal = None,
    dayfirst: options.DayFirst = None,
    types: options.ColumnTypes = None,
    encoding: options.Encoding = None,
    group: options.Group = None,
    time: options.Time = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods on a table by cross-validation.

    The methods are ranked by their log likelihood, with standard errors of the differences.

    Example: credo compare houses.csv --target price --methods bbb,ensemble
    """
    from credo._text import counted
    from credo.tabular import comparison, runs
    from credo.tabular.files import MIN_ROWS, read_table, reserve_folder

    output = Output(quiet=quiet, as_json=as_json)
    reserved = reserve_folder(out, comparison.FILES, comparison.RECORD)
    with reserved, output.collect_warnings(), output.status(f"reading {data}") as progress:
        table = read_table(
            data,
            target=target,
            min_rows=MIN_ROWS,
            decimal=decimal,
            dayfirst=dayfirst,
            types=options.parse_types(types),
            encoding=encoding,
        )
        frame = runs.drop_columns(table, drop or (), target)
        chosen, reason = runs.choose_task(frame[target], task)
        output.print(f"{data}: {counted(len(frame), 'row')}, {chosen}, {reason}")
        compared = comparison.compare(
            frame,
            target,
            task=chosen,
            methods=methods.split(",") if methods else None,
            folds=folds,
            group=group,
            time=time,
            epochs=epochs,
            seed=seed,
            device=device,
            progress=progress,
        )
        compared.save(out)
    if group is not None or time is not None:
        output.print(f"rows were split {compared.split}")
    output.print_table(comparison_table(compared))
    output.print(compared.verdict)
    report = out / comparison.REPORT
    output.print(f"Report: {report}")
    output.print_json({"out": str(out), "report": str(report), **compared.record()})


def comparison_table(compared: Comparison) -> Table:
    """Return a table with one row per method; the best one is marked."""
    caption = f"★ lowest NLL; difference ± standard error; {compared.folds} folds, {compared.n_rows:,} rows in total"
    table = Table(caption=caption, box=box.SIMPLE_HEAD, collapse_padding=True, caption_style="dim")
    table.add_column("method", no_wrap=True)
    nll, *others = (score.label for score in _shown(compared.best))
    for heading in (nll, "difference", *others, "time, s"):
        table.add_column(heading, justify="right", no_wrap=heading == "difference")
    differences = {gap.name: gap.shown for gap in compared.gaps}
    for result in compared.results:
        best = result is compared.best
        nll, *others = (format_number(score.value) for score in _shown(result))
        table.add_row(
            f"{'★' if best else ' '} {result.title}",
            nll,
            differences.get(result.name, ""),
            *others,
            f"{result.seconds:.0f}",
            style="bold" if best else "",
        )
    return table


def _shown(result: MethodResult) -> list[Score]:
    return [score for score in result.scores if score.name in SHOWN]
