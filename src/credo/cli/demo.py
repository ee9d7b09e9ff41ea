"""``credo demo``: the main job on two tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Screen, score_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models and reports; made where it does not exist.")] = Path(
        "demo"
    ),
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Learn two tables that come with scikit-learn, and report how far the predictions can be trusted.

    Example: credo demo --out demo
    """
    from credo._text import counted
    from credo.experiments.demo import run_demo

    screen = Screen(quiet=quiet, as_json=as_json)
    with screen.listening(), screen.doing("starting") as status:
        jobs = run_demo(out, seed=seed, epochs=epochs, report=status)
    for job in jobs:
        rows = counted(job.run.record["held_out_rows"], "row")
        screen.show(score_table(f"\n{job.title}: {rows} that were held out", job.run.scores))
    for job in jobs:
        screen.say(f"Report: {job.report}")
    screen.finish({"jobs": [{"report": str(job.report), **job.run.record} for job in jobs]})
