"""A server that is killed loses nothing; disks that are full or cannot be written do not matter to it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import httpx

from credo.errors import CredoError, InputError
from credo.serving import create_app
from credo.serving.server import serve

from .live import ROW, Live, running, table

pytestmark = pytest.mark.extras


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``credo serve`` as a process, and its URL."""
    command = [sys.executable, "-m", "credo", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        try:
            assert started.stdout is not None
            yield started, started.stdout.readline().split()[-1]
        finally:
            started.kill()


@contextmanager
def fork(folder: Path) -> Iterator[tuple[int, str]]:
    """A server in a copy of this process, which has imported everything: its number and its URL."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, if there are threads
        number = os.fork()
    if number == 0:
        try:
            serve(folder, port=0, on_start=lambda url: os.write(writer, url.encode()))
        finally:
            os._exit(1)
    os.close(writer)
    try:
        yield number, os.read(reader, 1000).decode()
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reader)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_under_load(folder: Path, after: int) -> list[httpx.Response]:
    """Kill a server once so many answers have arrived; those that arrived."""
    answers: list[httpx.Response] = []
    enough = threading.Event()

    with fork(folder) as (number, url):

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
                while True:
                    try:
                        answers.append(client.post("/predict", json=[ROW]))
                    except httpx.TransportError:
                        return
                    if len(answers) >= after:
                        enough.set()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        os.kill(number, signal.SIGKILL)
        for thread in threads:
            thread.join()
    return answers


@pytest.mark.parametrize("after", [1, 17])
def test_a_killed_server_leaves_its_folder_and_whole_answers(runs: Path, tmp_path: Path, after: int) -> None:
    """Every answer that arrived is complete and right, nothing is left behind, and the next server gives the same."""
    folder = Path(shutil.copytree(runs / "regression", tmp_path / "run"))
    before = content(folder)
    answers = kill_under_load(folder, after)
    assert content(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with running(folder) as live:
        again = live.predict([ROW])
    assert {answer.content for answer in answers} == {again.content}


@pytest.mark.slow
def test_a_server_killed_fifty_times_loses_nothing(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "regression", tmp_path / "run"))
    before, moments = content(folder), random.Random(0)
    found = set()
    for _ in range(50):
        found |= {answer.content for answer in kill_under_load(folder, moments.randint(1, 60))}
    assert content(folder) == before
    assert len(found) == 1


def test_sigterm_finishes_what_it_began(runs: Path, tmp_path: Path) -> None:
    """The header of a request has arrived before the signal, its body after it."""
    body = b'[{"area": 80.0, "rooms": 3, "fee": "1,5", "share": "12 %", "place": "north", "sold": "2021-05-01"}]'
    header = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with process(runs / "regression") as (server, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(header + b"Content-Length: %d\r\n\r\n" % len(body))
            assert connection.recv(2**16).startswith(b"HTTP/1.1 100")  # the route waits for the body
            server.terminate()
            connection.sendall(body)
            answer = b""
            while part := connection.recv(2**16):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert server.wait(60) == -signal.SIGTERM


def test_full_and_read_only_disks_do_not_matter(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Live
) -> None:
    """Every way to make a file on a disk fails while tables and forms are predicted."""

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory"):
        monkeypatch.setattr(tempfile, name, full)
    csv = table(300).to_csv(index=False).encode()
    plain = server.client.post("/predict", content=csv, headers={"Content-Type": "text/csv"})
    form = server.client.post("/predict", files={"file": ("rows.csv", csv)})
    assert (plain.status_code, form.status_code) == (200, 200)


def test_a_folder_that_nobody_may_write_is_served(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "regression", tmp_path / "run"))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with running(folder) as live:
        assert live.predict([ROW]).status_code == 200
    folder.chmod(0o755)


@pytest.mark.parametrize("what", ["absent", "empty", "file", "damaged"])
def test_folders_that_cannot_be_served_are_named(runs: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    if what == "empty":
        folder.mkdir()
    elif what == "file":
        folder.write_text("x")
    elif what == "damaged":
        shutil.copytree(runs / "regression", folder)
        (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CredoError, match="run"):
        create_app(folder)


def test_a_port_in_use_is_a_sentence(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InputError, match="choose another with --port"):
        serve(runs / "regression", port=other.getsockname()[1])
