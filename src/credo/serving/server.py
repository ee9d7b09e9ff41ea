"""``credo serve``: an application for a model, and a process that serves it until it is told to stop."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from credo.errors import InputError, missing_extra
from credo.serving.options import ServerOptions

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Server

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The hosts of a server that only its own machine reaches."""

_KEEP_ALIVE = 5  # seconds
_BACKLOG = 2048
_MAX_CONNECTIONS = 2000
_MAX_HEADER = 2**16  # bytes


def create_app(path: str | Path, options: ServerOptions | None = None) -> FastAPI:
    """Make the application, for uvicorn or another ASGI server.

    Args:
        path: a folder that ``credo fit`` or the ``save`` of an estimator wrote.
        options: limits and access; ``None``: the defaults.

    Returns:
        A FastAPI application with the paths ``/predict``, ``/effect``, ``/card``, ``/health``, ``/ready``,
        ``/metrics``, ``/openapi.json``, ``/reload`` and a page for people, ``/``.

    Raises:
        InputError: if the extra ``serve`` is not installed.
        LoadError: if the folder cannot be loaded.

    Example:
        >>> app = credo.serving.create_app("run")
        >>> uvicorn.run(app)
    """
    _require_extra()
    from credo.serving._app import build_app

    return build_app(path, options or ServerOptions())


def serve(
    path: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    options: ServerOptions | None = None,
    on_start: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a model until the process gets SIGINT or SIGTERM; requests in progress are finished first.

    Args:
        path: as in :func:`create_app`.
        host: the address to listen at.
        port: the port; 0: one that is free.
        options: as in :func:`create_app`.
        on_start: called with the URL once the model is loaded and the port is open.

    Raises:
        InputError: if the extra ``serve`` is not installed, or the port cannot be used.
        LoadError: if the folder cannot be loaded.

    Example:
        >>> credo.serving.serve("run", port=8000)
    """
    options = options or ServerOptions()
    server = make_server(create_app(path, options), options)
    listener = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    on_start(f"http://{name}:{listener.getsockname()[1]}")
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


def make_server(app: FastAPI, options: ServerOptions) -> Server:
    """A uvicorn server with limits on connections, headers and time.

    Args:
        app: what :func:`create_app` returned.
        options: limits and access.

    Returns:
        The server, not yet running.
    """
    from uvicorn import Config, Server

    from credo.serving._protocol import GuardedProtocol

    config = Config(
        app,
        http=GuardedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(int(options.timeout), 1),
        h11_max_incomplete_event_size=_MAX_HEADER,
    )
    return Server(config)


def listen(host: str, port: int) -> socket.socket:
    """An open port.

    Args:
        host: the address.
        port: the port; 0: one that is free.

    Returns:
        The listening socket.

    Raises:
        InputError: if it cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"port {port} of {host} cannot be used ({reason}): choose another with --port") from error


def _require_extra() -> None:
    try:
        for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
            importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("a server", "serve", error) from error
