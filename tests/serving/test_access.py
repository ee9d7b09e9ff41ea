"""Who may ask, how much and for how long: tokens, hosts, origins, limits on bodies, rows and time."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from uvicorn import Config
from uvicorn.server import ServerState

from credo.errors import InputError
from credo.serving import ServerOptions, _protocol
from credo.serving.options import TOKEN_VARIABLE, token_from_environment

from .live import ROW, Live, running

pytestmark = pytest.mark.extras

TOKEN = "correct-horse-battery"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def receive(connection: socket.socket, end: bytes = b"}") -> bytes:
    """What arrives until the end of an answer, or of the connection."""
    found = b""
    while not found.endswith(end) and (part := connection.recv(2**16)):
        found += part
    return found


@pytest.fixture(scope="module")
def guarded(runs: Path) -> Any:
    hosts = ("127.0.0.1", "model.example")
    with running(runs / "regression", token=TOKEN, allowed_hosts=hosts, cors_origins=("https://shop.example",)) as live:
        yield live


@pytest.mark.parametrize("path", ["/card", "/effect?column=area", "/metrics", "/openapi.json"])
def test_data_need_the_token(guarded: Live, path: str) -> None:
    for headers in ({}, bearer("wrong"), bearer(TOKEN[:-1]), {"Authorization": TOKEN}, bearer("é" * 20)):
        refused = guarded.client.get(path, headers={k: v.encode("latin-1") for k, v in headers.items()})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "token" in refused.json()["error"]
    assert guarded.client.get(path, headers=bearer(TOKEN)).status_code == 200


def test_predictions_need_the_token(guarded: Live) -> None:
    assert guarded.predict([ROW]).status_code == 401
    assert guarded.predict([ROW], headers=bearer(TOKEN)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/health", "/ready"])
def test_what_says_nothing_about_the_data_is_public(guarded: Live, path: str) -> None:
    answer = guarded.client.get(path)
    assert answer.status_code == 200
    assert "north" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_other_hosts_are_refused(guarded: Live) -> None:
    assert guarded.client.get("/health", headers={"Host": "evil.example"}).status_code == 400
    assert guarded.client.get("/health", headers={"Host": "model.example:8000"}).status_code == 200


def test_only_named_origins_may_call(guarded: Live, server: Live) -> None:
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = guarded.client.options("/predict", headers={"Origin": "https://shop.example", **ask})
    assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
    for live, origin in ((guarded, "https://evil.example"), (server, "https://shop.example")):
        refused = live.client.options("/predict", headers={"Origin": origin, **ask})
        assert refused.status_code in (400, 405)
        assert "access-control-allow-origin" not in refused.headers


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert token_from_environment() == TOKEN
    assert TOKEN not in repr(ServerOptions(token=TOKEN))
    for bad in ("short", "with spaces in the token", "ümläute-ümläute-ümläute"):
        with pytest.raises(InputError, match="at least 16 characters"):
            ServerOptions(token=bad)


def test_large_bodies_are_refused_by_their_header_and_by_their_content(server: Live) -> None:
    limit = server.service.options.max_body
    for content in (b" " * (limit + 1), iter([b" " * limit, b" "])):
        refused = server.client.post("/predict", content=content, headers={"Content-Type": "text/csv"})
        assert refused.status_code == 413
        assert "bytes at most" in refused.json()["error"]
    assert server.predict([ROW]).status_code == 200


def test_too_many_rows_are_refused(server: Live) -> None:
    rows = server.service.options.max_rows
    assert server.predict([ROW] * rows).status_code == 200
    refused = server.predict([ROW] * (rows + 1))
    assert (refused.status_code, "500 rows at most" in refused.text) == (413, True)


def test_a_slow_body_is_cut_off(runs: Path) -> None:
    header = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: text/csv\r\nContent-Length: 100\r\n\r\narea"
    with running(runs / "regression", timeout=0.2) as live, socket.create_connection(live.address, 30) as slow:
        slow.sendall(header)
        answer = receive(slow)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 0.2 s" in answer


def test_a_slow_header_is_cut_off(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_protocol, "HEADER_SECONDS", 0.1)
    for sent in (b"", b"GET /health HTTP/1.1\r\nHost: a\r\n"):
        with socket.create_connection(server.address, 30) as slow:
            slow.sendall(sent)
            assert receive(slow).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport pauses the protocol when its buffer is full; it is ended unless the protocol resumes."""

    class Transport(asyncio.Transport):
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1
            done.set()

        def is_closing(self) -> bool:
            return False

    async def scenario() -> tuple[int, int]:
        def connect() -> tuple[_protocol.GuardedProtocol, Transport]:
            protocol, transport = _protocol.GuardedProtocol(Config(None), ServerState(), {}), Transport()
            protocol.connection_made(transport)
            return protocol, transport

        monkeypatch.setattr(_protocol, "ANSWER_SECONDS", 0.01)
        (slow, ended), (fast, kept) = connect(), connect()
        fast.pause_writing()
        fast.resume_writing()
        slow.pause_writing()
        await asyncio.wait_for(done.wait(), 30)
        slow.connection_lost(OSError())
        fast.connection_lost(OSError())
        return ended.aborted, kept.aborted

    done = asyncio.Event()
    assert asyncio.run(scenario()) == (1, 0)


def test_a_connection_can_be_used_again(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_protocol, "HEADER_SECONDS", 30.0)
    request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with socket.create_connection(server.address, 30) as connection:
        for _ in range(3):
            connection.sendall(request)
            assert receive(connection).startswith(b"HTTP/1.1 200")


def test_the_body_of_an_answer_does_not_wait_for_an_acknowledgement(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, made = [], _protocol.GuardedProtocol.connection_made

    def record(self: Any, transport: Any) -> None:
        made(self, transport)
        found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(_protocol.GuardedProtocol, "connection_made", record)
    with running(runs / "regression") as live:
        assert live.client.get("/health").status_code == 200
    assert [bool(value) for value in found] == [True]


def test_a_prediction_that_takes_too_long_is_given_up(runs: Path) -> None:
    with running(runs / "regression", timeout=0.3) as live:
        batcher, release = live.service.batcher, threading.Event()
        compute = batcher._compute
        batcher._compute, batcher._is_short = lambda jobs: [release.wait(30), *compute(jobs)][1:], lambda jobs: False
        refused = live.predict([ROW])
        release.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "took more than 0.3 s" in refused.json()["error"]
        batcher._compute = compute
        assert live.client.get("/health").status_code == 200


def test_a_failure_of_the_server_is_a_sentence(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(runs / "regression") as live:

        def fail(jobs: Any) -> Any:
            raise RuntimeError("a secret")

        live.service.batcher._compute = fail
        failed = live.predict([ROW])
    assert (failed.status_code, "secret" in failed.text) == (500, False)
    assert "a secret" in caplog.text
