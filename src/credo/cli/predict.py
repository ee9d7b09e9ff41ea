"""``credo predict``: a model and new rows in, predictions with error bars out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from credo._files import reserved
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
    escape_formulas: Annotated[
        bool,
        typer.Option(
            "--escape-formulas", help="Put an apostrophe before text that a spreadsheet would take for a formula."
        ),
    ] = False,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict every row of a table, in its order, whatever its size.

    Numbers get the columns mean, std, epistemic, aleatoric (standard deviations), lower and upper; classes get class,
    p_<class> for each, entropy and mutual_information (nats).

    Copied cells stay as they are. Where DATA comes from strangers and the predictions go to a spreadsheet, use
    --escape-formulas: a cell such as =HYPERLINK(...) would be carried out there.

    Example: credo predict run new.csv --out predictions.csv --keep id
    """
    from credo.tabular import files, predictions, runs
    from credo.tabular.table_files import open_table

    to_stdout = str(out) == "-"
    if as_json and to_stdout:
        raise typer.BadParameter("--json needs --out FILE, because stdout cannot hold both")
    screen = Screen(quiet=quiet, as_json=as_json)
    with nullcontext() if to_stdout else _kept_for(out, run, data), screen.listening():
        with screen.doing(f"reading {data}"):
            model = runs.load_model(run)
            source = open_table(data)
        if device is not None:
            model.model_.to(device)
        kept = list(source.names) if keep_all else list(keep or ())
        columns = [*kept, *predictions.column_names(model.target_)]
        pieces = predictions.predict_file(model, source, level, kept)
        if escape_formulas:
            pieces, columns = files.escape_formulas(pieces), [files.escape_formula(name) for name in columns]
        counted = screen.counting(pieces, source.n_rows)
        rows = files.write_csv(counted, sys.stdout) if to_stdout else files.write_table(counted, out)
    if not to_stdout:
        screen.say(f"{rows:,} predictions: {out}")
    screen.finish({"out": str(out), "rows": rows, "columns": columns})


@contextmanager
def _kept_for(out: Path, run: Path, data: Path) -> Iterator[None]:
    """Before any work, make sure that ``out`` can be written and is none of what is read."""
    with reserved(out) as target:
        if target == data.resolve():
            raise InputError(f"{out} is the file that is read: write the predictions to another")
        if target.parent == run.resolve():
            raise InputError(f"{out} lies in the folder of the run, which holds nothing else: choose another place")
        if target.is_dir():
            raise InputError(f"{out} is a folder: give the name of a file")
        yield
