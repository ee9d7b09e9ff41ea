"""``credo report``: the report of a run, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Screen


def report(
    run: options.Folder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default="RUN/report.html", help="Where to write it.")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Make the report of a run again, from the rows that were held out of it.

    Example: credo report run --out report.html
    """
    from credo._files import whole_file
    from credo.tabular import runs

    screen = Screen(quiet=quiet, as_json=as_json)
    path = out or run / runs.REPORT
    with screen.listening(), screen.doing("drawing the report"), whole_file(path) as page:
        page.write_text(runs.open_run(run).report(), encoding="utf-8")
    screen.say(f"Report: {path}")
    screen.finish({"run": str(run), "report": str(path)})
