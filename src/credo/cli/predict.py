"""``credo predict``: predict the rows of a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from credo._files import write_lock
from credo.cli import _options as options
from credo.cli._console import Output
from credo.errors import InputError


def predict(
    run: options.Folder,
    data: options.Table,
    out: Annotated[Path, typer.Option(help="A .csv, .csv.gz or .parquet file; - is stdout.", allow_dash=True)] = Path(
        "-"
    ),
    level: options.Level = 0.95,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to copy from DATA; can be repeated.")
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Copy all columns of DATA.")] = False,
    escape_formulas: Annotated[
        bool,
        typer.Option(
            "--escape-formulas", help="Put an apostrophe before text that a spreadsheet would run as a formula."
        ),
    ] = False,
    encoding: options.Encoding = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict all rows of a table of any size, in its order.

    The columns for regression are mean, std, epistemic, aleatoric (standard deviations), lower and upper; for
    classification class, p_<class> for each class, entropy and mutual_information (nats).

    Copied cells are not changed. If DATA is not trusted and a spreadsheet opens the predictions, use
    --escape-formulas: otherwise a cell such as =HYPERLINK(...) runs there.

    Example: credo predict run new.csv --out predictions.csv --keep id
    """
    from credo.tabular import files, predictions, runs
    from credo.tabular.table_files import open_table

    to_stdout = str(out) == "-"
    if as_json and to_stdout:
        raise typer.BadParameter("--json needs --out FILE, because both would go to stdout")
    output = Output(quiet=quiet, as_json=as_json)
    with nullcontext() if to_stdout else _reserve_output(out, run, data), output.collect_warnings():
        with output.status(f"reading {data}"):
            model = runs.load_model(run)
            table = open_table(data, encoding)
        if device is not None:
            model.model_.to(device)
        kept = list(table.names) if keep_all else list(keep or ())
        columns = [*kept, *predictions.column_names(model.target_)]
        chunks = predictions.predict_file(model, table, level, kept)
        if escape_formulas:
            chunks, columns = files.escape_formulas(chunks), [files.escape_formula(name) for name in columns]
        tracked = output.track(chunks, table.n_rows)
        rows = files.write_csv(tracked, sys.stdout) if to_stdout else files.write_table(tracked, out)
    if not to_stdout:
        output.print(f"{rows:,} predictions: {out}")
    output.print_json({"out": str(out), "rows": rows, "columns": columns})


@contextmanager
def _reserve_output(out: Path, run: Path, data: Path) -> Iterator[None]:
    """Raise InputError if ``out`` cannot be written or is an input, and lock it until the end of the block."""
    with write_lock(out) as target:
        if target == data.resolve():
            raise InputError(f"{out} is the input file: choose another file for the predictions")
        if target.parent == run.resolve():
            raise InputError(f"{out} is in the folder of the run: choose another folder")
        if target.is_dir():
            raise InputError(f"{out} is a folder: choose a file name")
        yield
