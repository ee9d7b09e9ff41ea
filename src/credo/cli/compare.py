"""``credo compare``: all methods on one table, and which of them to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from credo.cli import _options as options
from credo.cli._console import Screen, number

if TYPE_CHECKING:
    from credo.metrics import Score
    from credo.tabular.comparison import Comparison, MethodResult

SHOWN = ("nll", "rmse", "crps", "coverage", "accuracy", "brier", "ece")
"""The scores that find room in a terminal; the report and the JSON have all of them."""


def compare(
    data: options.Table,
    target: options.Target,
    methods: options.Methods = None,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the table, each predicted from the others.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for the report; only a comparison is replaced.")] = Path("compare"),
    task: options.TaskName = "auto",
    drop: options.Drop = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare the methods on a table by cross-validation, and say which predicts best and how sure that is.

    Example: credo compare houses.csv --target price --methods bbb,ensemble
    """
    from credo._text import counted
    from credo.tabular import comparison, runs
    from credo.tabular.files import MIN_ROWS, read_table, reserve_folder

    screen = Screen(quiet=quiet, as_json=as_json)
    reserved = reserve_folder(out, comparison.FILES, comparison.RECORD)
    with reserved, screen.listening(), screen.doing(f"reading {data}") as progress:
        frame = runs.drop_columns(read_table(data, target=target, min_rows=MIN_ROWS), drop or (), target)
        chosen, reason = runs.choose_task(frame[target], task)
        screen.say(f"{data}: {counted(len(frame), 'row')}, {chosen}, {reason}")
        compared = comparison.compare(
            frame,
            target,
            task=chosen,
            methods=methods.split(",") if methods else None,
            folds=folds,
            epochs=epochs,
            seed=seed,
            device=device,
            progress=progress,
        )
        compared.save(out)
    screen.show(comparison_table(compared))
    screen.say(compared.verdict)
    report = out / comparison.REPORT
    screen.say(f"Report: {report}")
    screen.finish({"out": str(out), "report": str(report), **compared.record()})


def comparison_table(compared: Comparison) -> Table:
    """A row for each method, the best one marked."""
    caption = f"★ lowest NLL; ± standard error; {compared.folds} folds of {compared.n_rows:,} rows in all"
    table = Table(caption=caption, box=box.SIMPLE_HEAD, collapse_padding=True, caption_style="dim")
    table.add_column("method", no_wrap=True)
    nll, *others = (score.label for score in _shown(compared.best))
    for heading in (nll, "behind by", *others, "time, s"):
        table.add_column(heading, justify="right", no_wrap=heading == "behind by")
    behind = {gap.name: gap.shown for gap in compared.gaps}
    for result in compared.results:
        best = result is compared.best
        nll, *others = (number(score.value) for score in _shown(result))
        table.add_row(
            f"{'★' if best else ' '} {result.title}",
            nll,
            behind.get(result.name, ""),
            *others,
            f"{result.seconds:.0f}",
            style="bold" if best else "",
        )
    return table


def _shown(result: MethodResult) -> list[Score]:
    return [score for score in result.scores if score.name in SHOWN]
