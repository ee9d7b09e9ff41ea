"""``credo explain``: which columns drive the predictions of a run, and which drive their uncertainty."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from credo.cli import _options as options
from credo.cli._console import Output

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from credo.explain import ModelExplanation

FILES = ("effects.csv", "effects.png", "importance.csv", "importance.png", "uncertainty.csv", "uncertainty.png")
"""The files of a folder of explanations."""

_MAX_SHOWN = 20  # columns in the terminal; the files contain all
_MAX_NAME = 32  # characters
_SINGLE_ROWS = 20  # in the pictures of effects


def explain(
    run: options.Folder,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="the held-out rows of RUN",
            help="Rows to explain the model on, as CSV or Parquet. Without the target, the importance is left out.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default="the four most important",
            help="A column whose effect is computed; can be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            show_default="no files",
            help="Folder for tables (CSV) and pictures (PNG); an existing one of these is replaced, nothing else.",
        ),
    ] = None,
    group_correlated: Annotated[
        bool, typer.Option("--group-correlated", help="Shuffle correlated columns of numbers together.")
    ] = False,
    rows: Annotated[int, typer.Option(min=2, help="Maximum number of rows to use, chosen at random.")] = 1000,
    target: options.OneTarget = None,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Show which columns drive the predictions of a model, and which drive their uncertainty.

    Importance is the fall of R², or of the log score of classes, if the values of a column are shuffled among the rows.
    The draws are the importances under single posterior draws: the wider, the less certain. A share is the part of the
    variation of the epistemic or aleatoric uncertainty between rows that needs the column. Effects are partial
    dependences with epistemic bands.

    Example: credo explain run --column age --out explained
    """
    from credo._files import write_folder
    from credo._text import counted, quoted
    from credo.explain import explain_model
    from credo.tabular import evaluations, runs
    from credo.tabular.files import read_table, reserve_folder

    output = Output(quiet=quiet, as_json=as_json)
    reserved = nullcontext() if out is None else reserve_folder(out, FILES, FILES[0])
    with reserved, output.collect_warnings(), output.status("reading") as progress:
        whole = runs.load_model(run)
        model = evaluations.choose_target(whole, target)
        name, as_text = model.target_.name, evaluations.text_columns(whole)
        frame = _held_out_rows(run) if data is None else read_table(data, as_text=as_text)
        frame = frame.drop(columns=[other for other in whole.target_.names if other != name], errors="ignore")
        if name in frame:
            X, y = evaluations.labeled_rows(frame, model.target_)
        else:
            X, y = frame, None
            output.print_note(f"The table has no column {quoted(name)}, so that the importance is left out.")
        if device is not None:
            model.model_.to(device)
        progress("explaining")
        found = explain_model(
            model,
            X,
            y,
            columns=column or None,
            groups="correlated" if group_correlated else None,
            individual=_SINGLE_ROWS,
            level=level,
            max_rows=rows,
            seed=seed,
        )
        if out is not None:
            progress("drawing")
            write_folder(out, _to_files(found))
    source = "held out of training" if data is None else f"of {data}"
    output.print_table(explanation_table(f"{counted(found.uncertainty.rows, 'row')} {source}", found))
    if found.importance is not None and found.importance.correlated:
        output.print(found.importance.correlation_summary())
    for effect in found.effects if column else ():
        output.print(f"{effect.summary()}\n")
    if out is not None:
        output.print(f"Tables and pictures: {out}")
    output.print_json(
        {
            "run": str(run),
            "data": None if data is None else str(data),
            "out": None if out is None else str(out),
            "rows": found.uncertainty.rows,
            "score": None if found.importance is None else found.importance.score,
            **{name: _records(table) for name, table in _tables(found).items()},
        }
    )


def explanation_table(title: str, found: ModelExplanation) -> Table:
    """Return a table with one row per column, the most important first."""
    from credo._estimate import format_estimate
    from credo.explain.importance import SCORES

    importance, uncertainty = found.importance, found.uncertainty
    parts = {"epistemic": uncertainty.epistemic, "aleatoric": uncertainty.aleatoric}
    cells = {
        name: [f"{share:.2f} ± {error:.2f}" for share, error in zip(part.share, part.standard_error, strict=True)]
        for name, part in parts.items()
    }
    caption = "epistemic, aleatoric: share of the variation of the uncertainty, ± SE"
    if importance is not None:
        falls = zip(importance.importance, importance.standard_error, strict=True)
        ends = zip(importance.lower, importance.upper, strict=True)
        band, has_band = f"{importance.level:.0%} of draws", bool(importance.lower[0] == importance.lower[0])
        cells = {
            "importance": [format_estimate(*pair) for pair in falls],
            **({band: [f"{lower:.2g} to {upper:.2g}" for lower, upper in ends]} if has_band else {}),
            **cells,
        }
        caption = f"importance: fall of {SCORES[importance.score]} if the column is shuffled, ± SE\n{caption}"
    order = (uncertainty if importance is None else importance).order
    if len(order) > _MAX_SHOWN:
        caption += f"\nthe first {_MAX_SHOWN} of {len(order)} columns"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
    table.caption_justify, table.caption_style = "left", "dim"
    table.add_column("column", overflow="fold")
    for heading, texts in cells.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(map(len, [heading, *texts])))
    for j in order[:_MAX_SHOWN]:
        name = Text(uncertainty.names[j])
        name.truncate(_MAX_NAME, overflow="ellipsis")
        table.add_row(name, *(of_column[j] for of_column in cells.values()))
    return table


def _held_out_rows(run: Path) -> pd.DataFrame:
    from credo.errors import InputError
    from credo.tabular.runs import open_run

    rows = open_run(run).holdout
    if rows.empty:
        raise InputError("no rows were held out of this run: give some that the model was not trained on with --data")
    return rows


def _tables(found: ModelExplanation) -> dict[str, pd.DataFrame]:
    """The tables of all results, by name."""
    import pandas as pd

    effects = [
        effect.to_frame().rename(columns={effect.columns[0]: "value"}).assign(column=effect.columns[0])
        for effect in found.effects
    ]
    joined = pd.concat(effects, ignore_index=True)
    joined.insert(0, "column", joined.pop("column"))
    tables = {} if found.importance is None else {"importance": found.importance.to_frame()}
    return {**tables, "uncertainty": found.uncertainty.to_frame(), "effects": joined}


def _to_files(found: ModelExplanation) -> dict[str, bytes]:
    """The tables and pictures by file name."""
    import matplotlib.pyplot as plt

    from credo import plots
    from credo.tabular.files import to_csv

    files = {f"{name}.csv": to_csv(table).encode() for name, table in _tables(found).items()}
    with plots.paper():
        for name, result in (("importance", found.importance), ("uncertainty", found.uncertainty)):
            if result is not None:
                height = 1.2 + 0.27 * min(len(result.names), 15)
                figure, ax = plt.subplots(figsize=(4.8, max(height, 2.6)), layout="constrained")
                result.plot(ax)
                files[f"{name}.png"] = _to_png(figure)
        files["effects.png"] = _to_png(found.plot_effects())
    return files


def _to_png(figure: Figure) -> bytes:
    import io

    import matplotlib.pyplot as plt

    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values, with null for numbers that are not finite."""
    import json

    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=15, date_format="iso"))
    return rows
