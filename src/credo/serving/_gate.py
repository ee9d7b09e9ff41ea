"""What happens to every request before and after its route: host, token, headers, metrics and errors."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from credo.serving._metrics import Metrics
from credo.serving.options import Refusal, ServerOptions

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy: the page's own script and style, and requests to its own server, nothing else."""

_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""What every answer has; no route sets one of them."""

_MAX_HEADERS, _MAX_HEADER_BYTES = 200, 2**15
_LOGGER = logging.getLogger("credo.serving")

Route = Callable[[Request], Awaitable[Response]]


class Gate:
    """Middleware of a server.

    Args:
        app: the routes.
        options: the token and the hosts.
        metrics: counts the requests.
        known: the paths of the routes; others are counted as one.
        public: the paths that need no token.
        direct: routes by method and path that are called without FastAPI's routing, which takes longer than a small
            prediction.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        metrics: Metrics,
        known: Sequence[str],
        public: Sequence[str],
        direct: Mapping[tuple[str, str], Route],
    ) -> None:
        self._app, self._options, self._metrics, self._direct = app, options, metrics, direct
        self._known, self._public = frozenset(known), frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            self._check(scope)
            route = self._direct.get((scope["method"], scope["path"]))
            if route is None:
                await self._app(scope, receive, send_with_headers)
            else:
                response = await route(Request(scope, receive))
                await response(scope, receive, send_with_headers)
        except Refusal as refusal:
            await error_response(refusal.status, str(refusal))(scope, receive, send_with_headers)
        except Exception:
            _LOGGER.exception("a request failed")
            if status:
                raise
            await error_response(500, "the server failed; its log says why")(scope, receive, send_with_headers)
        finally:
            path = scope["path"] if scope["path"] in self._known else "other"
            self._metrics.observe(path, status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        given = scope["headers"]
        size = len(scope["query_string"]) + sum(len(name) + len(value) for name, value in given)
        if len(given) > _MAX_HEADERS or size > _MAX_HEADER_BYTES:
            raise Refusal(431, f"the headers and the query may have {_MAX_HEADER_BYTES:,} bytes at most")
        headers = Headers(scope=scope)
        hosts = self._options.allowed_hosts
        if hosts and _host(headers.get("host", "")) not in hosts:
            raise Refusal(400, "the Host of the request is none of this server's: allow it with --allow-host")
        if self._options.token is None or scope["path"] in self._public:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Bytes, because compare_digest refuses other characters than ASCII.
        matches = hmac.compare_digest(token.strip().encode("latin-1"), self._options.token.encode("ascii"))
        if scheme.lower() != "bearer" or not matches:
            raise Refusal(401, "a token is needed: send the header Authorization: Bearer TOKEN")


def error_response(status: int, sentence: str) -> Response:
    """A sentence as JSON.

    Args:
        status: the status code.
        sentence: the sentence.

    Returns:
        The response.
    """
    headers: dict[str, Any] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "1"
    return Response(json.dumps({"error": sentence}), status, headers, "application/json")


def _host(header: str) -> str:
    """The name of a host without its port."""
    name = header.rpartition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]
    return name.lower()
