"""What a server counts, for Prometheus."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Metrics:
    """The metrics of one server, in a registry of its own.

    Attributes:
        requests: requests by path and status.
        refused: requests that were refused, by status.
        rows: rows predicted.
        flagged: rows predicted that are unlike the training rows.
        seconds: the latency of requests by path.
        batch_rows: the number of rows per batch.
        reloads: attempts to load a new model, by result.
        model: 1 for the version of the current model.
    """

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter("credo_requests", "Requests.", ["path", "status"], registry=own)
        self.refused = Counter("credo_refused", "Requests that were refused.", ["status"], registry=own)
        self.rows = Counter("credo_rows", "Rows predicted.", registry=own)
        self.flagged = Counter("credo_flagged_rows", "Rows predicted that are unlike the training rows.", registry=own)
        self.seconds = Histogram(
            "credo_request_seconds", "Latency of requests.", ["path"], buckets=_SECONDS, registry=own
        )
        self.batch_rows = Histogram("credo_batch_rows", "Rows per batch.", buckets=_ROWS, registry=own)
        self.reloads = Counter("credo_reloads", "Attempts to load a new model.", ["result"], registry=own)
        self.model = Gauge("credo_model", "The version of the current model.", ["version"], registry=own)
        self._by_answer = lru_cache(
            lambda path, status: (self.requests.labels(path, str(status)), self.seconds.labels(path))
        )

    def on_reload(self, version: str | None) -> None:
        """Count an attempt to load a new model: its version, or ``None`` if it failed."""
        self.reloads.labels("failed" if version is None else "loaded").inc()
        if version is not None:
            self.set_version(version)

    def set_version(self, version: str) -> None:
        """Say which model is served."""
        self.model.clear()
        self.model.labels(version).set(1)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        requests, latency = self._by_answer(path, status)
        requests.inc()
        latency.observe(seconds)
        if status >= 400:
            self.refused.labels(str(status)).inc()

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
