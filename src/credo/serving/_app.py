"""The routes of a server. See :func:`credo.serving.create_app`."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from credo._version import __version__
from credo.errors import CredoError, InputError
from credo.serving import formats
from credo.serving._gate import Gate, error_response
from credo.serving._metrics import CONTENT_TYPE
from credo.serving._service import Service
from credo.serving.forms import read_form
from credo.serving.options import Refusal, ServerOptions
from credo.serving.queries import EFFECT_PARAMETERS, PREDICT_PARAMETERS, read_effect_query, read_query
from credo.serving.row_schema import openapi

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
PUBLIC = ("/health", "/ready", *PAGE)
"""The paths that need no token: they say nothing about the data."""


def build_app(path: str | Path, options: ServerOptions) -> FastAPI:
    """The application; see :func:`credo.serving.create_app`."""
    service = Service(path, options)
    app = FastAPI(
        title="credo", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, lifespan=service.lifespan
    )
    app.state.service = service

    async def predict(request: Request) -> Response:
        """Predict rows: one prediction for each, in their order."""
        wanted, keep = read_query(request.query_params)
        loaded = service.store.current
        header = request.headers.get("content-type")
        kind = formats.media_type(header)
        body = received = await service.receive(request)
        try:
            if kind == formats.FORM:
                body, kind = read_form(body, header or "")
            answer = formats.accepted_type(request.headers.get("accept"), default=kind)
            async with asyncio.timeout(options.timeout):
                return await service.answer(loaded, wanted, body, kind, answer, keep)
        except TimeoutError as error:
            sentence = f"the prediction took more than {options.timeout:g} s: send fewer rows, or try again later"
            raise Refusal(503, sentence) from error
        finally:
            service.release(received)

    async def effect(request: Request) -> Response:
        """The mean prediction of held-out rows as a function of one column, with an epistemic band."""
        column, level = read_effect_query(request.query_params)
        try:
            async with asyncio.timeout(options.timeout):
                found = await service.on_tables_thread(service.store.current.model.effect, column, level)
        except InputError as error:
            raise Refusal(422, str(error)) from error
        except TimeoutError as error:
            raise Refusal(503, f"the effect took more than {options.timeout:g} s: try again later") from error
        return _json(found)

    async def card() -> Response:
        """The model: its target, its columns with ranges and words, and its scores."""
        limits = {"max_rows": options.max_rows, "max_body": options.max_body}
        return _json(service.store.current.model.describe() | {"limits": limits})

    async def health() -> Response:
        """Whether the process is alive."""
        return _json({"status": "ok"})

    async def ready() -> Response:
        """Whether requests are answered, by which model, and whether a newer one could not be loaded; not why."""
        state = {"model": service.store.current.model.version, "reload_failed": bool(service.store.error)}
        return _json({"status": "closing" if service.is_closing else "ok"} | state, 503 if service.is_closing else 200)

    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    async def reload() -> Response:
        """Load the folder again, and replace the model if that succeeds."""
        if options.token is None:
            raise Refusal(403, "reloading needs a token: start the server with CREDO_SERVE_TOKEN, or with --watch")
        before = service.store.current.model.version
        try:
            loaded = await service.store.reload()
        except CredoError as error:
            raise Refusal(409, f"the new model cannot be loaded, and {before} is still served: {error}") from error
        return _json({"model": loaded.model.version, "before": before})

    async def document() -> Response:
        """This document."""
        loaded = service.store.current
        routes = get_openapi(
            title=f"credo: {loaded.model.describe()['target']}", version=__version__, routes=app.routes
        )
        return _json(openapi(routes, loaded.schema, loaded.model))

    described = {"parameters": PREDICT_PARAMETERS}
    app.add_api_route("/predict", predict, methods=["POST"], response_class=Response, openapi_extra=described)
    described = {"parameters": EFFECT_PARAMETERS}
    app.add_api_route("/effect", effect, methods=["GET"], response_class=Response, openapi_extra=described)
    app.add_api_route("/reload", reload, methods=["POST"], response_class=Response)
    for route, function in (
        ("/card", card),
        ("/health", health),
        ("/ready", ready),
        ("/metrics", metrics),
        ("/openapi.json", document),
    ):
        app.add_api_route(route, function, methods=["GET"], response_class=Response)
    for route, (name, media_type) in PAGE.items():
        content = (files("credo.serving") / "static" / name).read_bytes()
        app.add_api_route(route, _file_route(content, media_type), methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _http_error)
    known = [*PAGE, "/predict", "/effect", "/card", "/health", "/ready", "/metrics", "/openapi.json", "/reload"]
    app.add_middleware(
        Gate,
        options=options,
        metrics=service.metrics,
        known=known,
        public=PUBLIC,
        direct={("POST", "/predict"): predict},
    )
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


def _file_route(content: bytes, media_type: str) -> Any:
    async def page() -> Response:
        return Response(content, media_type=media_type)

    return page


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "there is no such path: see /openapi.json",
        405: "this path has other methods: see /openapi.json",
    }
    response = error_response(error.status_code, sentences.get(error.status_code, str(error.detail)))
    response.headers.update(error.headers or {})
    return response


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
