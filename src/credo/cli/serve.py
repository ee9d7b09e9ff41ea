"""``credo serve``: predictions of a run over HTTP, and a page for people."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from credo.cli import _options as options
from credo.cli._console import Output


def serve(
    run: options.Folder,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 is all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: one that is free.")] = 8000,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum size of a request in MiB.")] = 16,
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows of a request.")] = 100_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to receive a request, and to answer it.")] = 30.0,
    batch_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows predicted together.")] = 1024,
    watch: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", show_default="off", help="Look for a new model this often."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default="this machine", help="A name of this server; can be repeated."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", show_default="none", help="A site whose pages may call the server; can be repeated."
        ),
    ] = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve the predictions of a model over HTTP, with a page for people.

    POST /predict takes JSON rows, CSV, Arrow or Parquet; /openapi.json describes it. If the environment variable
    CREDO_SERVE_TOKEN is set, requests must send it as a bearer token. Needs the extra serve: pip install credo[serve].

    Example: credo serve run --port 8000
    """
    from credo.serving import ServerOptions
    from credo.serving.options import token_from_environment
    from credo.serving.server import LOOPBACK
    from credo.serving.server import serve as serve_run

    output = Output(quiet=quiet)
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="credo: %(message)s")
    is_local = host in (*LOOPBACK, "::1")
    hosts = [name.lower() for name in allow_host or ()] + (list(LOOPBACK) if is_local or allow_host else [])
    with options.usage_errors():
        limits = ServerOptions(
            max_body=max_body * 2**20,
            max_rows=max_rows,
            timeout=timeout,
            batch_rows=batch_rows,
            token=token_from_environment(),
            cors_origins=tuple(cors_origin or ()),
            allowed_hosts=tuple(hosts),
            watch=watch,
            device=device,
        )
    if not is_local and limits.token is None:
        output.print_note(
            f"everybody who can reach {host} can use this model: set CREDO_SERVE_TOKEN to require a token"
        )
    serve_run(run, host, port, limits, lambda url: output.print(f"{run} is served at {url}"))
