"""Predictions over HTTP are those of the estimator, in every format and whatever is predicted beside them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import credo
from credo.explain import partial_dependence
from credo.serving import formats
from credo.tabular.files import DIGITS, escape_formulas, to_csv
from credo.tabular.predictions import predict_file, to_frame
from credo.tabular.runs import load_model, open_run
from credo.tabular.table_files import open_table

from .live import ROW, TARGET, WORDS, Live, running, table

pytestmark = pytest.mark.extras

COLUMNS = ["mean", "std", "epistemic", "aleatoric", "lower", "upper", "flags"]


def to_arrow(frame: pd.DataFrame) -> bytes:
    sink, arrow = io.BytesIO(), pa.Table.from_pandas(frame, preserve_index=False)
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    return sink.getvalue()


def to_parquet(frame: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
    return sink.getvalue()


WRITE: dict[str, Callable[[pd.DataFrame], bytes]] = {
    formats.JSON: lambda frame: frame.to_json(orient="records").encode(),
    formats.CSV: lambda frame: frame.to_csv(index=False).encode(),
    formats.ARROW: to_arrow,
    formats.PARQUET: to_parquet,
}
READ: dict[str, Callable[[bytes], pd.DataFrame]] = {
    formats.JSON: lambda body: pd.DataFrame(json.loads(body)["predictions"]),
    formats.CSV: lambda body: pd.read_csv(io.BytesIO(body), keep_default_na=False),
    formats.ARROW: lambda body: pa.ipc.open_stream(body).read_pandas(),
    formats.PARQUET: lambda body: pq.read_table(io.BytesIO(body)).to_pandas(),
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return table(30).drop(columns=TARGET)


@pytest.fixture(scope="module")
def expected(runs: Path, frame: pd.DataFrame) -> pd.DataFrame:
    model = load_model(runs / "regression")
    return to_frame(model.predict_dist(frame), model.target_)


@pytest.mark.parametrize("sent", WRITE)
@pytest.mark.parametrize("accepted", READ)
def test_every_format_predicts_as_the_estimator(
    server: Live, frame: pd.DataFrame, expected: pd.DataFrame, sent: str, accepted: str
) -> None:
    """JSON and CSV have 10 significant digits: a relative error of 5e-10."""
    answer = server.client.post(
        "/predict", content=WRITE[sent](frame), headers={"Content-Type": sent, "Accept": accepted}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(accepted)
    found = READ[accepted](answer.content)
    assert list(found) == COLUMNS
    np.testing.assert_allclose(found[COLUMNS[:-1]].to_numpy(float), expected.to_numpy(), rtol=5e-10)


def test_csv_is_what_credo_predict_writes(server: Live, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    table(20).to_csv(path, index=False)
    model = load_model(runs / "regression")
    with pytest.warns(UserWarning, match="1 row lies outside the training range in 'fee'"):
        (expected,) = predict_file(model, open_table(path), 0.8, ["area", "place"])
    answer = server.client.post(
        "/predict?level=0.8&keep=area&keep=place", content=path.read_bytes(), headers={"Content-Type": "text/csv"}
    )
    flags = pd.read_csv(io.StringIO(answer.text), keep_default_na=False)["flags"]
    assert sorted(flags) == [""] * 19 + ["fee outside range"]
    (escaped,) = escape_formulas([expected.assign(flags=flags)])
    assert answer.text == to_csv(escaped, DIGITS)


def test_requests_that_are_predicted_together_have_the_answers_of_single_ones(runs: Path, frame: pd.DataFrame) -> None:
    """While the first request is held in the worker, nine others arrive, with levels and sizes of their own."""
    requests = [(f"?level=0.{level}&quantiles=0.{level}", 1 + level % 4) for level in range(1, 10)]
    with running(runs / "regression") as live:

        def ask(query: str, rows: int) -> bytes:
            return live.client.post(
                f"/predict{query}",
                content=frame.head(rows).to_json(orient="records"),
                headers={"Content-Type": "application/json"},
            ).content

        single = [ask(*request) for request in requests]
        batcher, sizes = live.service.batcher, []
        compute, entered, release = batcher._compute, threading.Event(), threading.Event()

        def hold(jobs: Any) -> Any:
            sizes.append(len(jobs))
            entered.set()
            assert release.wait(60)
            return compute(jobs)

        batcher._compute, batcher._is_short = hold, lambda jobs: False
        arrived, submit = threading.Semaphore(0), batcher.submit

        async def count(*arguments: Any, **options: Any) -> Any:
            arrived.release()
            return await submit(*arguments, **options)

        batcher.submit = count
        with ThreadPoolExecutor(10) as pool:
            first = pool.submit(ask, *requests[0])
            assert entered.wait(60)
            others = [pool.submit(ask, *request) for request in requests]
            for _ in range(1 + len(requests)):
                assert arrived.acquire(timeout=60)
            release.set()
            together = [other.result() for other in others]
            assert first.result() == single[0]
    assert sizes == [1, len(requests)]
    assert together == single


def test_a_large_table_is_predicted_in_parts(runs: Path, frame: pd.DataFrame, expected: pd.DataFrame) -> None:
    with running(runs / "regression", batch_rows=7) as live:
        for kind in WRITE:
            body = WRITE[kind](frame)
            answer = live.client.post("/predict", content=body, headers={"Content-Type": kind, "Accept": formats.CSV})
            found = READ[formats.CSV](answer.content)
            np.testing.assert_allclose(found["upper"], expected["upper"], rtol=5e-10)


def test_rows_unlike_training_are_flagged(server: Live) -> None:
    strange = {**ROW, "area": 1000.0, "place": "moon", "sold": "1999-01-01", "share": None, "rooms": None}
    (plain, flagged) = server.predict([ROW, strange]).json()["predictions"]
    assert plain["flags"] == []
    assert flagged["flags"] == ["area outside range", "sold outside range", "share missing", "place unseen"]
    assert flagged["epistemic"] > plain["epistemic"]


def test_levels_and_quantiles(server: Live) -> None:
    wide = server.predict([ROW], params={"level": 0.9}).json()["predictions"][0]
    narrow = server.predict([ROW], params={"level": 0.5, "quantiles": "0.05,0.95"}).json()["predictions"][0]
    assert (narrow["q0.05"], narrow["q0.95"]) == (wide["lower"], wide["upper"])
    assert wide["lower"] < narrow["lower"] < narrow["upper"] < wide["upper"]


def test_classes_have_probabilities(class_server: Live) -> None:
    found = class_server.predict([ROW, {**ROW, "area": 190.0}]).json()["predictions"]
    for row in found:
        assert list(row) == ["class", "p_<b>high</b>", "p_low", "entropy", "mutual_information", "flags"]
        assert row["p_<b>high</b>"] + row["p_low"] == pytest.approx(1.0, abs=1e-9)
        assert row["class"] == ("<b>high</b>" if row["p_<b>high</b>"] > 0.5 else "low")
    refused = class_server.predict([ROW], params={"quantiles": "0.5"})
    assert (refused.status_code, "no quantiles" in refused.text) == (422, True)


def test_a_file_of_a_form(server: Live, frame: pd.DataFrame) -> None:
    body = frame.to_csv(index=False).encode()
    plain = server.client.post("/predict", content=body, headers={"Content-Type": "text/csv"})
    form = server.client.post("/predict", files={"file": ("rows.csv", body, "application/octet-stream")})
    assert form.status_code == 200
    assert form.content == plain.content


def test_formulas_in_kept_cells_are_escaped(server: Live) -> None:
    frame = table(4).assign(place=list(WORDS))
    answer = server.client.post(
        "/predict?keep_all=true", content=frame.to_csv(index=False), headers={"Content-Type": "text/csv"}
    )
    places = pd.read_csv(io.StringIO(answer.text))["place"].tolist()
    assert places == ["north", WORDS[1], "'=HYPERLINK(1)", WORDS[3]]


def test_openapi_has_the_types_of_the_columns(server: Live) -> None:
    document = server.client.get("/openapi.json").json()
    row = document["components"]["schemas"]["Row"]
    assert row["required"] == list(row["properties"]) == list(ROW)
    assert row["additionalProperties"] is False
    area, place = row["properties"]["area"], row["properties"]["place"]
    assert {"type": "number"} in area["anyOf"]
    assert "in training" in area["description"]
    assert all(repr(word) in place["description"] for word in WORDS)
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert set(body) == {formats.JSON, formats.CSV, formats.ARROW, formats.PARQUET}
    (example,) = body["application/json"]["example"]
    assert server.predict([example]).status_code == 200
    prediction = document["components"]["schemas"]["Prediction"]
    assert list(prediction["properties"]) == COLUMNS


def test_the_effect_of_a_column_is_its_partial_dependence(server: Live, runs: Path) -> None:
    run = open_run(runs / "regression")
    expected = partial_dependence(run.model, run.holdout.drop(columns=TARGET), "area", level=0.9)
    found = server.client.get("/effect", params={"column": "area", "level": 0.9}).json()
    for name in ("mean", "lower", "upper"):
        np.testing.assert_allclose(found[name], getattr(expected, name), rtol=1e-12)
    assert found["grid"] == expected.grid[0].tolist()


@pytest.mark.parametrize("column", ["rooms", "fee", "place", "sold"])
def test_every_kind_of_column_has_an_effect(server: Live, column: str) -> None:
    found = server.client.get("/effect", params={"column": column})
    assert found.status_code == 200, found.text
    effect = found.json()
    assert len(effect["grid"]) == len(effect["mean"]) == len(effect["lower"]) == len(effect["upper"]) > 1


def test_metrics_count_rows_and_refusals(runs: Path) -> None:
    with running(runs / "regression") as live:
        live.predict([ROW, {**ROW, "area": 1e6}])
        live.predict([{}])
        text = live.client.get("/metrics").text
    assert "credo_rows_total 2.0" in text
    assert "credo_flagged_rows_total 1.0" in text
    assert 'credo_refused_total{status="422"} 1.0' in text
    assert 'credo_requests_total{path="/predict",status="200"} 1.0' in text
    assert "credo_batch_rows_count 1.0" in text
    assert 'credo_request_seconds_count{path="/predict"} 2.0' in text


@pytest.mark.parametrize("accepted", READ)
def test_kept_columns_of_any_type(server: Live, accepted: str) -> None:
    columns = pa.Table.from_pandas(table(3).drop(columns=TARGET), preserve_index=False)
    further = {
        "when": pa.array([0, None, 10**15], pa.timestamp("us", "UTC")),
        "day": pa.array([0, 1, None], pa.date32()),
        "exact": pa.array(["1.50", None, "2.25"]).cast(pa.decimal128(5, 2)),
        "coded": pa.array(["a", "b", None]).dictionary_encode(),
        "whole": pa.array([1, None, 2**60]),
        "flag": pa.array([True, None, False]),
        "nothing": pa.nulls(3),
    }
    for name, column in further.items():
        columns = columns.append_column(name, column)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_table(columns)
    for kind, body in ((formats.ARROW, sink.getvalue()), (formats.PARQUET, to_parquet(columns.to_pandas()))):
        answer = server.client.post(
            "/predict?keep_all=true", content=body, headers={"Content-Type": kind, "Accept": accepted}
        )
        assert answer.status_code == 200, answer.text
        found = READ[accepted](answer.content)
        assert list(found) == [*columns.column_names, *COLUMNS]


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    names = ["model_config", "class", "a; b", " ", "été €", "1", "__dict__"]
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(40, len(names))), columns=names)
    model = credo.Regressor("bbb", epochs=2, random_state=0).fit(frame, frame["1"] * 2.0)
    model.save(tmp_path / "model")
    row = dict.fromkeys(names, 0.0)
    with running(tmp_path / "model") as live:
        answer = live.predict([row, row | {"a; b": 99.0, "class": None}])
        assert answer.json()["predictions"][1]["flags"] == ["a; b outside range", "class missing"]
        assert list(live.client.get("/openapi.json").json()["components"]["schemas"]["Row"]["properties"]) == names
        refused = live.client.get("/effect", params={"column": "class"})
        assert (refused.status_code, "no rows were held out" in refused.text) == (404, True)
