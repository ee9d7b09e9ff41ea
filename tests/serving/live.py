"""A server in a thread of the tests, and small models to serve."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from fastapi import FastAPI

from credo.serving import ServerOptions, create_app
from credo.serving.server import listen, make_server
from credo.tabular.runs import fit_run

TARGET = "price"
WORDS = ("north", "<script>alert(1)</script>", "=HYPERLINK(1)", "'; DROP TABLE rows; --")
ROW: dict[str, Any] = {"area": 80.0, "rooms": 3, "fee": "1,5", "share": "12 %", "place": "north", "sold": "2021-05-01"}
"""A valid row."""


def table(rows: int = 120, task: str = "regression") -> pd.DataFrame:
    """Numbers, one with gaps; numbers with decimal commas and percents; words that a page must escape; dates."""
    random = np.random.default_rng(0)
    area = random.uniform(20.0, 200.0, rows).round(1)
    place = random.choice(WORDS, rows)
    frame = pd.DataFrame(
        {
            "area": area,
            "rooms": np.where(random.random(rows) < 0.1, np.nan, random.integers(1, 7, rows)),
            "fee": [f"{fee:.1f}".replace(".", ",") for fee in random.uniform(0.5, 9.5, rows)],
            "share": [f"{share} %" for share in random.integers(1, 99, rows)],
            "place": place,
            "sold": pd.Series(pd.date_range("2020-01-01", periods=rows, freq="10D")).dt.strftime("%Y-%m-%d"),
        }
    )
    price = 2.0 * area + 20.0 * (place == "north") + random.normal(0.0, 5.0, rows)
    if task == "classification":
        frame[TARGET] = np.where(price > 220.0, "<b>high</b>", "low")
    else:
        frame[TARGET] = price.round(2)
    return frame


def save_run(folder: Path, task: str = "regression", seed: int = 0) -> Path:
    """Fit a small model and save it."""
    run = fit_run(table(task=task), TARGET, method="bbb", epochs=10, seed=seed, source="prices.csv")
    run.save(folder)
    return folder


@dataclass
class Live:
    """A running server, a client for it, and its parts."""

    url: str
    client: httpx.Client
    app: FastAPI

    @property
    def service(self) -> Any:
        return self.app.state.service

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def predict(self, rows: Any, **options: Any) -> httpx.Response:
        return self.client.post("/predict", json=rows, **options)


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Live]:
    """Serve a folder at a free port."""
    limits = ServerOptions(**options)
    app = create_app(folder, limits)
    server = make_server(app, limits)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
            yield Live(url, client, app)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
