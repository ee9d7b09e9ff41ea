"""``credo fit``: train a model on a table and report on held-out rows. ``credo demo``: the same for two examples."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Output, score_table


def fit(
    data: options.Table,
    target: options.Target,
    out: Annotated[
        Path, typer.Option(help="Folder for the model and its report; an existing run is replaced, nothing else.")
    ] = Path("run"),
    method: options.Method = "auto",
    task: options.TaskName = "auto",
    calibrate: options.Calibrate = None,
    joint_noise: options.JointNoise = False,
    holdout: options.Holdout = 0.2,
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
    """Train a model on a table, and evaluate its predictions and their uncertainty.

    Some rows are held out; the scores and the report are about them.

    Example: credo fit houses.csv --target price --out run
    """
    from credo._text import counted
    from credo.tabular import Regressor, automatic, files, methods, runs

    output = Output(quiet=quiet, as_json=as_json)
    with files.reserve_folder(out, runs.FILES, runs.MARKER), output.collect_warnings():
        with output.status(f"reading {data}"):
            frame = files.read_table(
                data,
                target=None if "," in target else target,
                min_rows=files.MIN_ROWS,
                decimal=decimal,
                dayfirst=dayfirst,
                types=options.parse_types(types),
                encoding=encoding,
            )
        names = runs.target_columns(frame.columns, target)
        choice = runs.choose_task(frame[target] if len(names) == 1 else frame[names], task)
        output.print(f"{data}: {counted(len(frame), 'row')}, {counted(frame.shape[1], 'column')}")
        title = "" if method == automatic.NAME else f"{methods.get(method).title} for "
        output.print(f"{title}{choice.task}, {choice.reason}")
        run = runs.fit_run(
            frame,
            target,
            task=choice,
            method=method,
            holdout=holdout,
            drop=drop or (),
            group=group,
            time=time,
            calibrate=calibrate,
            joint_noise=joint_noise,
            epochs=epochs,
            seed=seed,
            device=device,
            progress=False if quiet else None,
            source=data.name,
        )
        with output.status("writing the report"):
            run.save(out)
    for note in automatic.notes(run.model):
        output.print(note)
    trained, held_out = run.record["trained_rows"], run.record["held_out_rows"]
    output.print(f"trained on {counted(trained, 'row')} in {run.record['seconds']:.0f} s")
    if isinstance(run.model, Regressor) and run.model.family_.note:
        output.print(run.model.family_.note)
    if group is not None or time is not None:
        output.print(f"rows were split {run.record['split']}")
    if held_out:
        for name, scores in run.scores_by_target.items():
            about = f", target {name}" if run.has_several_targets else ""
            output.print_table(score_table(f"\nMetrics on {counted(held_out, 'held-out row')}{about}", scores))
    else:
        output.print("no rows were held out, so there are no metrics and no report")
    report, command = out / runs.REPORT, f"credo predict {shlex.quote(str(out))} new.csv"
    if held_out and run.has_several_targets:
        output.print(f"Report: credo report {shlex.quote(str(out))} --target {shlex.quote(names[0])} --out FILE.html")
    elif held_out:
        output.print(f"Report: {report}")
    output.print(f"Next:   {command}")
    output.print_json({"run": str(out), "report": str(report) if held_out else None, "next": command, **run.record})


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models and reports; created if it does not exist.")] = Path(
        "demo"
    ),
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on two tables from scikit-learn, and report on held-out rows.

    Example: credo demo --out demo
    """
    from credo._text import counted
    from credo.experiments.demo import run_demo

    output = Output(quiet=quiet, as_json=as_json)
    with output.collect_warnings(), output.status("starting") as update:
        jobs = run_demo(out, seed=seed, epochs=epochs, report=update)
    for job in jobs:
        rows = counted(job.run.record["held_out_rows"], "held-out row")
        output.print_table(score_table(f"\n{job.title}: metrics on {rows}", job.run.scores))
    for job in jobs:
        output.print(f"Report: {job.report}")
    output.print_json({"jobs": [{"report": str(job.report), **job.run.record} for job in jobs]})
