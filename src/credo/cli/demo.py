"""``credo demo``: the library in one minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from credo.experiments.demo import Demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures; made where it does not exist.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Fixes the data, the training and the draws.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write the pictures and print nothing.")] = False,
) -> None:
    """Train a few Bayesian networks on a curve and on digits, and show what they know and what they do not."""
    from rich.console import Console

    from credo.experiments.demo import run_demo

    console = Console(quiet=quiet)
    with console.status("starting") as status:
        result = run_demo(out, seed=seed, report=status.update)
    console.print(curve_table(result), digits_table(result), sep="\n\n")
    console.print()
    for figure in result.figures:
        console.print(f"wrote [bold]{figure}[/bold]", soft_wrap=True)
    console.print(f"{result.seconds:.0f} s in all")


def curve_table(result: Demo) -> Table:
    """How each method did on the curve."""
    table = _table(
        "A noisy sine with a gap in the data",
        f"All uncertainties are standard deviations; the noise is {result.noise}. "
        "“Covers” is the share of new observations inside the 95 % interval.",
        ["log\nlik.", "covers", "covers\nin gap", "aleatoric", "epistemic", "epistemic\nin gap", "fit, s"],
    )
    for row in result.curve:
        table.add_row(
            row.method,
            f"{row.log_likelihood:.2f}",
            f"{row.coverage:.1%}",
            f"{row.coverage_in_gap:.1%}",
            f"{row.aleatoric:.3f}",
            f"{row.epistemic_on_data:.3f}",
            f"{row.epistemic_in_gap:.3f}",
            f"{row.seconds:.1f}",
        )
    return table


def digits_table(result: Demo) -> Table:
    """How each method did on the digits."""
    table = _table(
        "Digits, the same digits turned, and letters",
        f"H is the mean entropy in nats, {result.most_entropy:.2f} at most. "
        "AUROC is how well it tells letters from digits.",
        ["acc.", "NLL", "acc.\nturned", "NLL\nturned", "H", "H\nturned", "H\nletters", "AUROC", "fit, s"],
    )
    for row in result.digits:
        table.add_row(
            row.method,
            f"{row.accuracy:.1%}",
            f"{row.nll:.3f}",
            f"{row.rotated_accuracy:.1%}",
            f"{row.rotated_nll:.2f}",
            f"{row.entropy:.2f}",
            f"{row.rotated_entropy:.2f}",
            f"{row.foreign_entropy:.2f}",
            f"{row.auroc:.3f}",
            f"{row.seconds:.1f}",
        )
    return table


def _table(title: str, caption: str, headings: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, title_style="bold", caption_style="dim")
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
