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
    from rich.table import Table

    table = Table(
        title="A noisy sine with a gap in the data",
        caption=f"True noise: {result.noise}. Coverage: new observations inside the 95 % interval.",
        title_style="bold",
    )
    table.add_column("method")
    for heading in (
        "log likelihood",
        "coverage",
        "aleatoric",
        "epistemic\non data",
        "epistemic\nin the gap",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for row in result.curve:
        table.add_row(
            row.method,
            f"{row.log_likelihood:.2f}",
            f"{row.coverage:.1%}",
            f"{row.aleatoric:.3f}",
            f"{row.epistemic_on_data:.3f}",
            f"{row.epistemic_in_gap:.3f}",
            f"{row.coverage_in_gap:.1%}",
            f"{row.seconds:.1f}",
        )
    return table


def digits_table(result: Demo) -> Table:
    """How each method did on the digits."""
    from rich.table import Table

    table = Table(
        title="Digits, rotated digits, and letters that are no digits",
        caption=f"Entropies in nats, {result.most_entropy:.2f} at most. AUROC: telling letters from digits by entropy.",
        title_style="bold",
    )
    table.add_column("method")
    for heading in (
        "accuracy",
        "NLL",
        "accuracy\nrotated",
        "NLL\nrotated",
        "entropy\ntest",
        "entropy\nrotated",
        "entropy\nletters",
        "AUROC",
        "seconds",
    ):
        table.add_column(heading, justify="right")
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
