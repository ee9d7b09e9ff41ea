"""``credo predict``: a model and new rows in, predictions with error bars out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Screen
from credo.errors import InputError


def predict(
    run: options.Folder,
    data: options.Table,
    out: Annotated[
        Path, typer.Option(help="A CSV file, or by its name .csv.gz or .parquet; - is stdout.", allow_dash=True)
    ] = Path("-"),
    level: options.Level = 0.95,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to copy from DATA; may be given again.")
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Copy all columns of DATA.")] = False,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict every row of a table, in its order, whatever its size.

    Numbers get the columns mean, std, epistemic, aleatoric (standard deviations), lower and upper; classes get class,
    p_<class> for each, entropy and mutual_information (nats).

    Example: credo predict run new.csv --out predictions.csv --keep id
    """
    from credo.tabular import predictions, runs, sources, writing

    to_stdout = str(out) == "-"
    if as_json and to_stdout:
        raise typer.BadParameter("--json needs --out FILE, because stdout cannot hold both")
    screen = Screen(quiet=quiet, as_json=as_json)
    with screen.listening():
        with screen.doing(f"reading {data}"):
            model = runs.load_model(run)
            source = sources.open_source(data)
        if not to_stdout and out.exists() and out.samefile(data):
            raise InputError(f"{out} is the file that is read: write the predictions to another")
        if not to_stdout and out.resolve().parent == run.resolve():
            raise InputError(f"{out} lies in the folder of the run, which holds nothing else: choose another place")
        if device is not None:
            model.model_.to(device)
        kept = list(source.names) if keep_all else list(keep or ())
        pieces = predictions.predict_source(model, source, level, kept)
        counted = screen.counting(pieces, source.n_rows)
        rows = writing.write_csv(counted, sys.stdout) if to_stdout else writing.write_table(counted, out)
    if not to_stdout:
        screen.say(f"{rows:,} predictions: {out}")
    screen.finish({"out": str(out), "rows": rows, "columns": [*kept, *predictions.column_names(model.target_)]})
