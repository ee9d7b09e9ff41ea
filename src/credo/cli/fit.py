"""``credo fit``: a table in, a model with honest error bars and a report out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Screen, score_table


def fit(
    data: options.Table,
    target: options.Target,
    out: Annotated[Path, typer.Option(help="Folder for the model and its report; only a run is replaced.")] = Path(
        "run"
    ),
    method: options.Method = "bbb",
    task: options.TaskName = "auto",
    calibrate: options.Calibrate = None,
    holdout: options.Holdout = 0.2,
    drop: options.Drop = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Learn from a table, and say how far the predictions can be trusted.

    Some rows are held out; the scores and the report are about them.

    Example: credo fit houses.csv --target price --out run
    """
    from credo._text import counted
    from credo.tabular import files, methods, runs

    screen = Screen(quiet=quiet, as_json=as_json)
    with files.reserve_folder(out, runs.FILES, runs.MARKER), screen.listening():
        with screen.doing(f"reading {data}"):
            frame = files.read_table(data, target=target, min_rows=files.MIN_ROWS)
        choice = runs.choose_task(frame[target], task)
        title = methods.get(method).title
        screen.say(f"{data}: {counted(len(frame), 'row')}, {counted(frame.shape[1], 'column')}")
        screen.say(f"{title} for {choice.task}, {choice.reason}")
        run = runs.fit_run(
            frame,
            target,
            task=choice,
            method=method,
            holdout=holdout,
            drop=drop or (),
            calibrate=calibrate,
            epochs=epochs,
            seed=seed,
            device=device,
            progress=False if quiet else None,
            source=data.name,
        )
        with screen.doing("drawing the report"):
            run.save(out)
    trained, held_out = run.record["trained_rows"], run.record["held_out_rows"]
    screen.say(f"trained on {counted(trained, 'row')} in {run.record['seconds']:.0f} s")
    if held_out:
        screen.show(score_table(f"\nOn {counted(held_out, 'row')} that were held out", run.scores))
    else:
        screen.say("no rows were held out, so there are no scores and no report")
    report, command = out / runs.REPORT, f"credo predict {shlex.quote(str(out))} new.csv"
    if held_out:
        screen.say(f"Report: {report}")
    screen.say(f"Next:   {command}")
    screen.finish({"run": str(out), "report": str(report) if held_out else None, "next": command, **run.record})
