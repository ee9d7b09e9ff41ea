"""The command line: parse, call the library, print. What a command does lives in the library, not here."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from credo._version import __version__
from credo.cli._console import endings
from credo.cli.compare import compare
from credo.cli.demo import demo
from credo.cli.evaluate import evaluate
from credo.cli.fit import fit
from credo.cli.predict import predict
from credo.cli.report import report
from credo.cli.reproduce import reproduce


class _Commands(TyperGroup):
    """The commands, all of which end alike."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with endings():
            return super().invoke(ctx)


app = typer.Typer(
    name="credo",
    cls=_Commands,
    help="Bayesian deep learning for PyTorch: a posterior for any network, and error bars you can bet on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"credo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that go before any command."""


for command in (fit, predict, evaluate, compare, report, reproduce, demo):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    with endings():
        app()
