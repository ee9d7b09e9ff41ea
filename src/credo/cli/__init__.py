"""The command line interface: parse arguments, call the library, print results."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from credo._version import __version__
from credo.cli._console import exit_codes
from credo.cli.compare import compare
from credo.cli.evaluate import evaluate, report
from credo.cli.explain import explain
from credo.cli.fit import demo, fit
from credo.cli.predict import predict
from credo.cli.reproduce import reproduce
from credo.cli.serve import serve


class _Commands(TyperGroup):
    """The commands, with the same exit codes for all."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    name="credo",
    cls=_Commands,
    help="Bayesian deep learning for PyTorch: predictions with calibrated uncertainty.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"credo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before a command."""


for command in (fit, predict, serve, evaluate, explain, compare, report, reproduce, demo):
    app.command()(command)


def main() -> None:
    """Run the command line interface."""
    with exit_codes():
        app()
