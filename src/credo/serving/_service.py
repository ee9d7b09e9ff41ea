"""What the routes of a server share: the model, the batches, the metrics, and the way from a body to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from credo._text import listed, quoted
from credo.errors import InputError, UnsupportedError
from credo.serving import formats, served_model
from credo.serving._metrics import Metrics
from credo.serving.batching import Batcher
from credo.serving.model_store import Loaded, ModelStore
from credo.serving.options import Refusal, ServerOptions
from credo.serving.served_model import FLAGS, ParsedRows, ServedModel

_HELD_BODIES = 8  # times max_body may be in memory at once
_SMALL, _FEW_ROWS = 2**16, 300  # bytes of a body and rows of an answer that are handled without another thread
_SHORT = 0.01  # seconds of a batch that is computed without another thread


@dataclass(frozen=True, eq=False)
class _Job:
    """Rows to predict: cells of JSON, which are parsed together with those of other requests, or parsed rows."""

    model: ServedModel
    request: served_model.Request
    rows: Sequence[dict[str, Any]] | ParsedRows


class Service:
    """What the routes share: the model, the batches, the metrics and the limits.

    Args:
        path: the folder of the model.
        options: limits and access.
    """

    def __init__(self, path: str | Path, options: ServerOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.store = ModelStore(path, options.device, self.metrics.on_reload)
        self.metrics.set_version(self.store.current.model.version)
        self.batcher: Batcher[_Job, dict[str, NDArray[Any]]] = Batcher(
            _compute, options.batch_rows, options.max_waiting_rows, self.metrics.batch_rows.observe, _is_short
        )
        self.tables = ThreadPoolExecutor(1, thread_name_prefix="credo-tables")
        self.is_closing = False
        self._held = 0

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Watch the folder while the server runs; at the end, finish what waits."""
        watch = self.options.watch
        task = None if watch is None else asyncio.create_task(self.store.watch(watch))
        yield
        self.is_closing = True
        if task is not None:
            task.cancel()
        await self.batcher.close()
        self.store.close()
        self.tables.shutdown()

    async def receive(self, request: Request) -> bytes:
        """The body of a request, received within the limits of size and time; :meth:`release` it afterwards."""
        options = self.options
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise Refusal(415, "compressed bodies are not accepted: send it without Content-Encoding")
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > options.max_body):
            raise _too_large(options)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(options.timeout):
                async for part in request.stream():
                    size += len(part)
                    self._held += len(part)
                    if size > options.max_body:
                        raise _too_large(options)
                    if self._held > _HELD_BODIES * options.max_body:
                        raise Refusal(503, "the server is receiving too much at once: try again later")
                    parts.append(part)
        except BaseException as error:
            self._held -= size
            if isinstance(error, TimeoutError):
                sentence = f"the body did not arrive within {options.timeout:g} s: send it faster, or in parts"
                raise Refusal(408, sentence) from error
            if isinstance(error, ClientDisconnect):
                raise Refusal(400, "the connection was closed before the body was complete") from error
            raise
        return b"".join(parts)

    def release(self, body: bytes) -> None:
        """Count a body that was received as no longer held."""
        self._held -= len(body)

    async def predict(
        self, loaded: Loaded, wanted: served_model.Request, rows: Sequence[dict[str, Any]] | ParsedRows
    ) -> dict[str, NDArray[Any]]:
        """The columns of an answer. A large table is predicted in parts, and other requests get their turn between."""
        step, results = self.options.batch_rows, []
        is_parsed = isinstance(rows, ParsedRows)
        for start in range(0, len(rows), step):
            stop = min(start + step, len(rows))
            part = rows if len(rows) <= step else rows.part(start, stop) if is_parsed else rows[start:stop]
            job = _Job(loaded.model, wanted, part)
            results.append(await self.batcher.submit(job, stop - start, key=(loaded, is_parsed)))
        columns = results[0]
        if len(results) > 1:
            columns = {name: np.concatenate([result[name] for result in results]) for name in columns}
        self.metrics.rows.inc(len(rows))
        flagged = sum(map(bool, columns[FLAGS]))
        if flagged:
            self.metrics.flagged.inc(flagged)
        return columns

    async def on_tables_thread(self, function: Any, *arguments: Any) -> Any:
        """Call a function on the thread that reads and writes tables."""
        return await asyncio.get_running_loop().run_in_executor(self.tables, function, *arguments)

    async def answer(
        self,
        loaded: Loaded,
        wanted: served_model.Request,
        body: bytes,
        kind: str,
        media_type: str,
        keep: Sequence[str],
    ) -> Response:
        """Predict the rows of a body.

        Args:
            loaded: the model.
            wanted: the level and the quantiles.
            body: the rows.
            kind: the media type of the body.
            media_type: that of the answer.
            keep: columns of a table to copy to the answer; ``*``: all.

        Returns:
            The response.

        Raises:
            Refusal: if the rows cannot be predicted.
        """
        model, options = loaded.model, self.options
        kept: pd.DataFrame | None = None
        notes: tuple[str, ...] = ()
        try:
            if kind == formats.JSON:
                if keep:
                    raise Refusal(422, "keep and keep_all are for tables, not for JSON")
                if len(body) <= _SMALL:
                    rows = loaded.schema.read(formats.parse_json(body, options))
                else:
                    rows = await self.on_tables_thread(lambda: loaded.schema.read(formats.parse_json(body, options)))
                columns = await self.predict(loaded, wanted, rows)
            else:
                frame, parsed = await self.on_tables_thread(_parse_table, body, kind, model, options, keep)
                kept = _kept_columns(frame, keep, model.column_names(wanted)) if keep else None
                notes = parsed.notes
                columns = await self.predict(loaded, wanted, parsed)
        except (InputError, UnsupportedError) as error:
            raise Refusal(422, str(error)) from error
        if kept is None and len(columns[FLAGS]) <= _FEW_ROWS and media_type == formats.JSON:
            content = _write(media_type, columns, kept, notes, model)
        else:
            content = await self.on_tables_thread(_write, media_type, columns, kept, notes, model)
        headers = {"X-Credo-Model": model.version}
        if notes and media_type != formats.JSON:
            headers["X-Credo-Notes"] = json.dumps(list(notes))[:4000]
        return Response(content, headers=headers, media_type=media_type)


def _compute(jobs: Sequence[_Job]) -> list[dict[str, NDArray[Any]]]:
    """Predict the jobs of a batch, all of the same model, and all of cells or all of parsed rows."""
    model = jobs[0].model
    parsed = [job.rows for job in jobs if isinstance(job.rows, ParsedRows)]
    rows = ParsedRows.concatenate(parsed) if parsed else model.parse_cells([row for job in jobs for row in job.rows])
    return model.predict(rows, _requests(jobs))


def _is_short(jobs: Sequence[_Job]) -> bool:
    return jobs[0].model.seconds(_requests(jobs)) <= _SHORT


def _requests(jobs: Sequence[_Job]) -> list[tuple[served_model.Request, int]]:
    return [(job.request, len(job.rows)) for job in jobs]


def _parse_table(
    body: bytes, kind: str, model: ServedModel, options: ServerOptions, keep: Sequence[str]
) -> tuple[pd.DataFrame, ParsedRows]:
    frame, notes = formats.read_table(body, kind, model, options, keep)
    parsed = model.parse(frame)
    return frame, ParsedRows(parsed.rows, parsed.flags, (*notes, *parsed.notes))


def _kept_columns(frame: pd.DataFrame, keep: Sequence[str], taken: Sequence[str]) -> pd.DataFrame:
    names = list(frame.columns) if "*" in keep else list(dict.fromkeys(keep))
    absent = [quoted(name) for name in names if name not in frame]
    if absent:
        raise Refusal(422, f"columns to keep are not in the table: {listed(absent)}")
    same = [quoted(name) for name in names if name in taken]
    if same:
        raise Refusal(422, f"kept columns have the names of predictions, {listed(same)}: rename them")
    return frame[names].reset_index(drop=True)


def _write(
    answer: str, columns: dict[str, NDArray[Any]], kept: pd.DataFrame | None, notes: Sequence[str], model: ServedModel
) -> bytes:
    if answer == formats.JSON:
        if kept is not None:
            known = kept.astype(object).where(kept.notna(), None)
            columns = {str(name): known[name].to_numpy() for name in known} | columns
        return formats.write_json(columns, notes, model.version)
    texts = {FLAGS: np.array(["; ".join(flags) for flags in columns[FLAGS]], dtype=object)}
    frame = pd.DataFrame(columns | texts)
    if kept is not None:
        frame = pd.concat([kept.astype(object) if answer == formats.CSV else kept, frame], axis=1)
    return formats.write_table(frame, answer)


def _too_large(options: ServerOptions) -> Refusal:
    return Refusal(413, f"a body may have {options.max_body:,} bytes at most: send the table in parts")
