"""Malformed, oversized and hostile requests: each gets a 4xx and a sentence, and the server goes on."""

from __future__ import annotations

import gzip
import io
import json
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import pyarrow as pa
import pyarrow.parquet as pq

from credo.serving import formats

from .live import ROW, TARGET, Live, table
from .test_predict import WRITE, to_arrow, to_parquet

pytestmark = pytest.mark.extras

MAX_BODY, MAX_ROWS = 2**18, 500  # of the fixture ``server``


@dataclass(frozen=True)
class Case:
    """A request that is refused."""

    name: str
    body: bytes = b""
    kind: str = "application/json"
    path: str = "/predict"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    status: tuple[int, ...] = (422,)


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def with_cell(column: str, text: str) -> bytes:
    """A valid row in which a cell is replaced by JSON text."""
    cells = {name: json.dumps(value) for name, value in ROW.items()} | {column: text}
    return ("[{" + ", ".join(f"{json.dumps(name)}: {cell}" for name, cell in cells.items()) + "}]").encode()


def json_cases() -> Iterator[Case]:
    broken = {
        "empty": b"",
        "space": b" ",
        "no value": b"nothing",
        "open list": b"[",
        "open object": b'[{"area": 1',
        "trailing comma": b"[" + dumps(ROW) + b",]",
        "two values": dumps([ROW]) + dumps([ROW]),
        "single quotes": str([ROW]).encode(),
        "comment": b"/* */" + dumps([ROW]),
        "bad UTF-8": dumps([ROW]).replace(b"north", b"n\xff\xfeth"),
        "overlong UTF-8": dumps([ROW]).replace(b"north", b"\xc0\xaf"),
        "UTF-16": json.dumps([ROW]).encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + dumps([ROW]),
        "control character": dumps([ROW]).replace(b"north", b"no\x00rth"),
        "half a surrogate pair": dumps([ROW]).replace(b"north", b"\\ud800"),
        "bad escape": dumps([ROW]).replace(b"north", b"\\x41"),
        "binary": bytes(range(256)) * 10,
        "deep lists": b"[" * 900 + b"]" * 900,
        "deep objects": b'[{"area":' * 450 + b"1" + b"}]" * 450,
        "unclosed deep lists": b"[" * 1000,
        "truncated": dumps([ROW] * 10)[:-7],
    }
    yield from (Case(f"json {name}", body) for name, body in broken.items())
    deep = {"deep as zip": b"[" * 100_000, "many empty rows": b"[" + b"{}," * 60_000 + b"{}]"}
    yield from (Case(f"json {name}", body, status=(413, 422)) for name, body in deep.items())
    values = [None, True, 1, 1.5, "text", {}, ROW, [], [[]], [1], ["text"], [None], [[ROW]], [ROW, 1], [ROW, None]]
    yield from (Case(f"json is {json.dumps(value)[:30]} {j}", dumps(value)) for j, value in enumerate(values))
    wrong = [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1" * 400,
        "[]",
        "{}",
        "[1]",
        '{"a": 1}',
        "01",
        "+1",
        ".5",
    ]
    for column in ("area", "rooms", "place", "sold", "fee"):
        yield from (Case(f"cell {column} {text[:12]}", with_cell(column, text)) for text in wrong)
    texts = ['"text"', '"80"', "true", '""', '"=1+1"', '"<b>1</b>"', '"1; DROP TABLE rows"', '"\\u0000"', '"１２"']
    yield from (Case(f"number {text}", with_cell("area", text)) for text in texts)
    dates = ['"tomorrow"', '"2021-13-01"', '"2021-02-30"', '"99999-01-01"', "20210501", "true", '"0000-00-00"', "1e5"]
    yield from (Case(f"date {text}", with_cell("sold", text)) for text in dates)
    formatted = ['"1.2.3"', '"many"', '"1,5,5"', '"5 apples"']
    yield from (Case(f"formatted {text}", with_cell("fee", text)) for text in formatted)
    yield from (Case(f"percent {text}", with_cell("share", text)) for text in ["12", '"twelve %"', "0.12", "true"])
    yield from (Case(f"word {text}", with_cell("place", text)) for text in ["1", "1.5", "true"])
    for name in ROW:
        yield Case(f"without {name}", dumps([{key: value for key, value in ROW.items() if key != name}]))
        yield Case(f"misspelled {name}", dumps([{key.replace(name, f"{name}s"): value for key, value in ROW.items()}]))
    further = [
        "",
        "Area",
        "area ",
        "__proto__",
        "constructor",
        "__class__",
        "model_config",
        "x" * 10_000,
        "a\u0000b",
        "=1",
    ]
    yield from (Case(f"further column {name[:12]!r}", dumps([ROW | {name: 1}])) for name in further)
    yield Case("many further columns", dumps([ROW | {f"c{j}": j for j in range(5000)}]))
    yield Case("second row", dumps([ROW, ROW | {"area": "x"}]))
    yield Case("too many rows", dumps([ROW] * (MAX_ROWS + 1)), status=(413,))
    yield Case("too large", dumps([ROW | {"place": "x" * MAX_BODY}]), status=(413,))
    yield Case("keep with json", dumps([ROW]), path="/predict?keep=area")


def table_cases() -> Iterator[Case]:
    frame = table(20).drop(columns=TARGET)
    csv = frame.to_csv(index=False).encode()
    header, *lines = csv.splitlines(keepends=True)
    damaged = {
        "empty": b"",
        "blank": b"\n \n\n",
        "header": header,
        "no header": b"".join(lines),
        "one word": b"area",
        "short row": csv + b"1,2\n",
        "long row": csv + b"1," * 20 + b"\n",
        "open quote": csv + b'"' + b",".join([b"1"] * 6) + b"\n",
        "NUL": csv.replace(b"2020", b"20\x0020", 1),
        "bad bytes": csv.replace(b"north", b"\x81\x8d\x8f\x90\x9d\xff", 1),
        "workbook": b"PK\x03\x04" + b"\0" * 100,
        "old workbook": b"\xd0\xcf\x11\xe0" + b"\0" * 100,
        "picture": b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
        "page": b"<!DOCTYPE html><html><body>Sign in</body></html>",
        "JSON": dumps([ROW]),
        "repeated names": csv.replace(b"rooms", b"area", 1),
        "wrong numbers": header + b"".join(line.replace(line.split(b",")[0], b"word", 1) for line in lines),
        "wrong dates": frame.assign(sold="never").to_csv(index=False).encode(),
        "wide": b",".join(b"c%d" % j for j in range(30_000)) + b"\n",
    }
    yield from (Case(f"csv {name}", body, "text/csv") for name, body in damaged.items())
    for name in frame:
        yield Case(f"csv without {name}", frame.drop(columns=name).to_csv(index=False).encode(), "text/csv")
        yield Case(f"arrow without {name}", to_arrow(frame.drop(columns=name)), formats.ARROW)
        yield Case(f"parquet without {name}", to_parquet(frame.drop(columns=name)), formats.PARQUET)
    many = table(MAX_ROWS + 1).drop(columns=TARGET)
    for kind in (formats.CSV, formats.ARROW, formats.PARQUET):
        yield Case(f"too many rows {kind}", WRITE[kind](many), kind, status=(413,))
        yield Case(f"no rows {kind}", WRITE[kind](frame.head(0)), kind)
        yield Case(f"kept and absent {kind}", WRITE[kind](frame), kind, "/predict?keep=nothing")
        yield Case(f"kept prediction {kind}", WRITE[kind](frame.assign(mean=1)), kind, "/predict?keep=mean")
        yield Case(f"gzip {kind}", gzip.compress(WRITE[kind](frame)), kind, status=(415,))
    bomb = gzip.compress(b"area,rooms\n" + b"1" * 2**24)
    yield Case("gzip bomb", bomb, "text/csv", status=(415,))
    lines_only = b"a\n" * (MAX_ROWS * 2 + 200)
    yield Case("csv of many lines", lines_only, "text/csv", status=(413,))


def binary_cases() -> Iterator[Case]:
    frame = table(20).drop(columns=TARGET)
    for kind, write in ((formats.ARROW, to_arrow), (formats.PARQUET, to_parquet)):
        whole = write(frame)
        for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
            yield Case(f"{kind} cut at {share}", whole[: int(share * len(whole))], kind)
        for seed in range(8):
            position = (seed * 2654435761) % (len(whole) // 4)  # in the metadata of the stream
            position = position if kind == formats.ARROW else len(whole) - 9 - position
            yield Case(
                f"{kind} changed at {position}", whole[:position] + b"\xff\xff\xff\x7f" + whole[position + 4 :], kind
            )
        yield Case(f"{kind} is JSON", dumps([ROW]), kind)
        yield Case(f"{kind} of zeros", b"\0" * 1000, kind)
        yield Case(f"{kind} magic only", b"PAR1" if kind == formats.PARQUET else b"ARROW1\0\0", kind)
    for codec in ("gzip", "zstd", "brotli", "lz4"):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink, compression=codec)
        yield Case(f"parquet in {codec}", sink.getvalue(), formats.PARQUET)
    for codec in ("zstd", "lz4"):
        sink, arrow = io.BytesIO(), pa.table({"area": pa.array([0.0] * 400)})
        with pa.ipc.new_stream(sink, arrow.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(arrow)
        yield Case(f"arrow in {codec}", sink.getvalue(), formats.ARROW)
    strange = {
        "lists": pa.array([[1.0]] * 3),
        "structs": pa.array([{"a": 1}] * 3),
        "binary": pa.array([b"x"] * 3),
        "views": pa.array(["x"] * 3, pa.string_view()),
        "durations": pa.array([1, 2, 3], pa.duration("s")),
        "runs": pa.RunEndEncodedArray.from_arrays([3], ["x"]),
        "maps": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    }
    for name, column in strange.items():
        sink, arrow = io.BytesIO(), pa.table({"area": column})
        with pa.ipc.new_stream(sink, arrow.schema) as writer:
            writer.write_table(arrow)
        yield Case(f"arrow of {name}", sink.getvalue(), formats.ARROW)
    sink, arrow = io.BytesIO(), pa.table({"area": pa.nulls(10**9)})
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    yield Case("arrow of a billion nulls", sink.getvalue(), formats.ARROW, status=(413,))
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["area", "area"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, twice.schema) as writer:
        writer.write_table(twice)
    yield Case("arrow with repeated names", sink.getvalue(), formats.ARROW)


def protocol_cases() -> Iterator[Case]:
    body = dumps([ROW])
    for kind in ("", "text/plain", "text/html", "application/xml", "application/x-www-form-urlencoded", "image/png"):
        yield Case(f"content type {kind!r}", body, kind, status=(415,))
    for kind in (
        "application/json2",
        "json",
        "*/*",
        "a" * 5000,
        "application/octet-stream",
        "application/x-python-pickle",
    ):
        yield Case(f"content type {kind[:20]!r}", body, kind, status=(415,))
    compressed = {
        "gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "br": body,
        "zstd": body,
        "gzip, gzip": body,
    }
    for name, content in compressed.items():
        yield Case(f"content encoding {name}", content, headers={"Content-Encoding": name}, status=(415,))
    for accepted in ("text/html", "image/png", "application/json;q=0", "text/csv;q=bad", "nothing"):
        yield Case(f"accept {accepted}", body, headers={"Accept": accepted}, status=(406,))
    levels = [
        "0",
        "1",
        "-1",
        "2",
        "1e309",
        "nan",
        "inf",
        "x",
        "",
        "0.95x",
        "0,95",
        "[0.9]",
        "null",
        "0.9999999",
        "1e-300",
    ]
    yield from (Case(f"level {level!r}", body, path=f"/predict?level={level}") for level in levels)
    quantiles = ["0", "1", "-0.5", "nan", "inf", "x", "0.5,", ",", "0.5;0.6", "1e-9", "0.5," * 600 + "0.5", "[0.5]"]
    quantiles += [",".join(f"{0.005 + j / 200:.4f}" for j in range(150))]
    yield from (Case(f"quantiles {q[:16]!r}", body, path=f"/predict?quantiles={q}") for q in quantiles)
    further = ["lvel=0.9", "level=0.9&x=1", "keep_all=maybe", "<script>=1", "__proto__=1", "%00=1", "keep_all=2"]
    yield from (Case(f"query {query}", body, path=f"/predict?{query}") for query in further)
    yield Case("many kept columns", b"a\n1\n", "text/csv", "/predict?" + "keep=a&" * 1001 + "keep=a")
    missing = [
        "/../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/static/../../card.json",
        "/run/card.json",
        "/%2e%2e/%2e%2e",
    ]
    missing += [
        "/page.js/",
        "//etc/passwd",
        "/docs",
        "/redoc",
        "/admin",
        "/predict/",
        "/page.js%00",
        "/%ff",
        "/" + "a" * 5000,
    ]
    missing += ["/.git/config", "/model.safetensors", "/\\..\\..\\windows"]
    for path in missing:
        yield Case(f"path {path[:24]}", path=path, method="GET", status=(307, 404))
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"):
        yield Case(f"{method} /predict", method=method, status=(405,))
    for path in ("/health", "/metrics", "/card", "/effect", "/"):
        yield Case(f"POST {path}", path=path, status=(405,))
    yield Case("reload without a token", path="/reload", status=(403,))
    columns = ["nothing", "", TARGET, "../card", "<script>", "a" * 5000, "a\u0000", "__class__"]
    yield from (Case(f"effect {c[:9]!r}", path=f"/effect?column={c}", method="GET", status=(404, 422)) for c in columns)
    yield Case("effect without a column", path="/effect", method="GET")
    yield Case("effect with a wrong level", path="/effect?column=area&level=7", method="GET")


def form_cases() -> Iterator[Case]:
    csv = table(5).to_csv(index=False).encode()
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n' + csv + b"\r\n--b--\r\n"
    forms = {
        "empty": b"",
        "cut": part[:100],
        "no end": part.replace(b"--b--", b""),
        "other name": part.replace(b'name="file"', b'name="other"'),
        "other boundary": part.replace(b"--b", b"--c"),
        "many parts": b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n' * 100 + b"--b--\r\n",
        "many headers": b"--b\r\n" + b"X: 1\r\n" * 100 + b"\r\n1\r\n--b--\r\n",
        "damaged table": part.replace(csv, b"a,b\n1\n"),
        "no disposition": b"--b\r\n\r\n" + csv + b"\r\n--b--\r\n",
    }
    yield from (Case(f"form {name}", body, "multipart/form-data; boundary=b") for name, body in forms.items())
    yield Case("form without boundary", part, "multipart/form-data")
    yield Case("form with a long boundary", part, f"multipart/form-data; boundary={'b' * 5000}")
    unknown = part.replace(b"t.csv", b"t.exe")
    yield Case("form with another file", unknown, "multipart/form-data; boundary=b", status=(415,))


CASES = [*json_cases(), *table_cases(), *binary_cases(), *protocol_cases(), *form_cases()]


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_requests_get_a_sentence(server: Live, case: Case) -> None:
    headers = {"Content-Type": case.kind, **case.headers} if case.kind else case.headers
    url = server.url + case.path.replace("\0", "%00")
    request = server.client.build_request(case.method, url, content=case.body or None, headers=headers)
    answer = server.client.send(request)
    assert answer.status_code in case.status, (answer.status_code, answer.text[:300])
    if case.method != "HEAD" and answer.status_code != 307:
        sentence = answer.json()["error"]
        assert len(sentence.split()) >= 4
        assert len(sentence) < 1000
        assert "Traceback" not in sentence
        assert "/proc/" not in sentence


POST = b"POST /predict HTTP/1.1\r\nHost: a\r\n"
RAW = {
    "no HTTP": b"hello\r\n\r\n",
    "binary": bytes(range(256)),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "traversal": b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "traversal from a path": b"GET /openapi.json/.. HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded traversal": b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "bad method": b"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bad header name": b"GET / HTTP/1.1\r\nHost: a\r\nX Y: 1\r\n\r\n",
    "bad header value": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n y: 1\r\n\r\n",
    "oversized header": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n",
    "long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: x\r\n\r\nabc",
    "bad chunk": POST + b"Content-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "huge length": POST + b"Content-Type: text/csv\r\nContent-Length: 99999999999\r\n\r\n",
    "absolute": b"GET http://evil.example/nothing HTTP/1.1\r\nHost: a\r\n\r\n",
    "connect": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
def test_requests_that_are_no_http_are_refused(server: Live, name: str) -> None:
    with socket.create_connection(server.address, 30) as connection:
        connection.sendall(RAW[name])
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(2**16):
            answer += part
    status, _, rest = answer.partition(b"\r\n")
    assert status.startswith(b"HTTP/1.1 4"), answer[:200]
    assert len(rest.partition(b"\r\n\r\n")[2].split()) >= 4


def test_a_client_that_leaves_is_forgotten(server: Live) -> None:
    for sent in (
        POST + b"Content-Type: text/csv\r\nContent-Length: 99\r\n\r\narea",
        b"GET /",
    ):
        with socket.create_connection(server.address, 30) as connection:
            connection.sendall(sent)
    assert server.predict([ROW]).status_code == 200
    assert server.service.batcher.waiting == 0


def test_the_server_serves_after_all_of_them(server: Live) -> None:
    """Runs last in this file; nothing is held, and no request failed inside the server."""
    assert server.predict([ROW]).status_code == 200
    text = server.client.get("/metrics").text
    assert 'status="500"' not in text
    assert server.service._held == 0
