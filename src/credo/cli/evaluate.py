"""``credo evaluate``: score a model on new rows. ``credo report``: write the report of a run again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Output, score_table


def evaluate(
    run: options.Folder,
    data: options.Table,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Also write an HTML report on these rows.")
    ] = None,
    target: options.OneTarget = None,
    level: options.Level = 0.95,
    encoding: options.Encoding = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Score a model on rows with a known target, with 95 % confidence intervals.

    Example: credo evaluate run test.csv --report test.html
    """
    from credo._files import atomic_file
    from credo._text import counted
    from credo.tabular import evaluations, runs
    from credo.tabular.files import read_table

    output = Output(quiet=quiet, as_json=as_json)
    with output.collect_warnings(), nullcontext() if report is None else atomic_file(report) as file:
        with output.status(f"reading {data}"):
            whole = runs.load_model(run)
            model = evaluations.choose_target(whole, target)
            table = read_table(
                data, target=model.target_.name, encoding=encoding, as_text=evaluations.text_columns(model)
            )
            others = [name for name in whole.target_.names if name != model.target_.name]
            rows = evaluations.labeled_rows(table.drop(columns=others, errors="ignore"), model.target_)
        if device is not None:
            model.model_.to(device)
        with output.status("predicting"):
            evaluation = evaluations.evaluate(model, rows, level, seed)
            scores = evaluation.scores
        for sentence in (*evaluation.notes, *evaluation.outside.sentences()):
            output.print_note(sentence)
        if file is not None:
            from credo.report import render

            with output.status("writing the report"):
                html = render(model, rows.X, rows.y, source=data.name, seed=seed, evaluation=evaluation)
                file.write_text(html, encoding="utf-8")
    output.print_table(score_table(f"Metrics on {counted(len(rows.y), 'row')} of {data}", scores))
    if report is not None:
        output.print(f"Report: {report}")
    output.print_json(
        {
            "run": str(run),
            "data": str(data),
            "rows": len(rows.y),
            "report": None if report is None else str(report),
            "scores": [evaluations.score_record(score) for score in scores],
        }
    )


def report(
    run: options.Folder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default="RUN/report.html", help="The HTML file to write.")
    ] = None,
    target: options.OneTarget = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the report of a run again, from its held-out rows.

    Example: credo report run --out report.html
    """
    from credo._files import atomic_file
    from credo.tabular import runs

    output = Output(quiet=quiet, as_json=as_json)
    path = out or run / runs.REPORT
    with output.collect_warnings(), output.status("writing the report"), atomic_file(path) as file:
        file.write_text(runs.open_run(run).report(target), encoding="utf-8")
    output.print(f"Report: {path}")
    output.print_json({"run": str(run), "report": str(path)})
