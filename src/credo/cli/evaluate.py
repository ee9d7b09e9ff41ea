"""``credo evaluate``: how good a model is on rows it has not seen."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Screen, score_table


def evaluate(
    run: options.Folder,
    data: options.Table,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Also write a report on these rows, HTML.")
    ] = None,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Score a model on rows whose target is known, with 95 % confidence intervals.

    Example: credo evaluate run test.csv --report test.html
    """
    from credo._files import whole_file
    from credo._text import counted
    from credo.tabular import runs
    from credo.tabular.files import read_table

    screen = Screen(quiet=quiet, as_json=as_json)
    with screen.listening(), nullcontext() if report is None else whole_file(report) as page:
        with screen.doing(f"reading {data}"):
            model = runs.load_model(run)
            rows = runs.labeled_rows(read_table(data, target=model.target_.name), model.target_.name)
        if device is not None:
            model.model_.to(device)
        with screen.doing("predicting"):
            evaluation = runs.evaluate(model, rows, level, seed)
            scores = evaluation.scores
        for sentence in (*evaluation.notes, *evaluation.outside.sentences()):
            screen.note(sentence)
        if page is not None:
            from credo.report import render

            with screen.doing("drawing the report"):
                html = render(model, rows.X, rows.y, source=data.name, seed=seed, evaluation=evaluation)
                page.write_text(html, encoding="utf-8")
    screen.show(score_table(f"On {counted(len(rows.y), 'row')} of {data}", scores))
    if report is not None:
        screen.say(f"Report: {report}")
    screen.finish(
        {
            "run": str(run),
            "data": str(data),
            "rows": len(rows.y),
            "report": None if report is None else str(report),
            "scores": [runs.score_record(score) for score in scores],
        }
    )
