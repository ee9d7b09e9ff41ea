"""The command line: parse, call the library, print. What a command does lives in the library, not here."""

from __future__ import annotations

from typing import Annotated

import typer

from credo._version import __version__
from credo.cli.demo import demo
from credo.errors import CredoError

app = typer.Typer(
    name="credo",
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


app.command()(demo)


def main() -> None:
    """Run the command line; an error raised on purpose becomes one sentence and exit code 1."""
    try:
        app()
    except CredoError as error:
        typer.echo(f"credo: {error}", err=True)
        raise SystemExit(1) from error
