"""``credo reproduce``: reproduce published tables and figures."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Output
from credo.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from credo.experiments import Budget, Experiment, Reproduction


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment; “list” lists all.")],
    quick: Annotated[bool, typer.Option("--quick", help="About a minute on two cores.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few seconds, on data included in credo.")] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds; with several, the table contains standard errors.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results; they are written to its subfolder NAME.")] = Path(
        "reproductions"
    ),
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the experiment of a published table or figure, and compare the results with the paper.

    Example: credo reproduce bbb-regression --quick --seeds 3
    """
    from credo import experiments

    output = Output(quiet=quiet, as_json=as_json)
    if name == "list":
        known = sorted((experiments.get(each) for each in experiments.names()), key=lambda e: (e.part, e.name))
        output.print_table(experiment_table(known))
        keys = ("name", "part", "title", "reference")
        output.print_json({"experiments": [{key: getattr(e, key) for key in keys} for e in known]})
        return
    with options.usage_errors():
        experiment = experiments.get(name)
        budget = _budget(quick, smoke)
    with output.collect_warnings(), output.status("starting") as update:
        found = experiments.run(experiment, budget, seeds, out, seed=seed, device=device, report=update)
    output.print_table(result_table(found))
    for row in found.result.rows:
        if row.note:
            output.print(f"{row.quantity}: {row.note}")
    for path in found.files:
        output.print(f"wrote {path}")
    output.print(f"{found.record['seconds']:.0f} s in total")
    output.print_json(found.record)


def experiment_table(known: list[Experiment]) -> Table:
    """Return a table of all experiments, grouped by part of the library; they must be sorted by part."""
    table = _table("", "Run one with credo reproduce NAME; try --quick first.")
    for heading in ("name", "what", "reference"):
        table.add_column(heading, no_wrap=heading == "name")
    for part, experiments in groupby(known, key=lambda experiment: experiment.part):
        table.add_section()
        table.add_row(part.replace("_", " "), style="bold")
        for experiment in experiments:
            table.add_row(experiment.name, experiment.title, experiment.reference)
    return table


def result_table(found: Reproduction) -> Table:
    """Return a table of published and reproduced numbers."""
    table = _table(found.experiment.title, found.experiment.reference)
    table.add_column("quantity")
    table.add_column("published", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    for row in found.result.rows:
        table.add_row(row.quantity, "–" if row.published is None else f"{row.published:g}", row.ours)
    return table


def _table(title: str, caption: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_style="bold", caption_style="dim")


def _budget(quick: bool, smoke: bool) -> Budget:
    if quick and smoke:
        raise InputError("--quick and --smoke cannot be combined: choose one")
    return "smoke" if smoke else "quick" if quick else "full"
