"""A new model replaces the old one without a gap, and a broken one does not."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from credo.serving.model_store import ModelStore

from .live import ROW, Live, running

pytestmark = pytest.mark.extras

TOKEN = {"Authorization": "Bearer correct-horse-battery"}


def replace(folder: Path, new: Path) -> None:
    """Replace a folder as ``credo fit`` does, by renaming."""
    shutil.copytree(new, folder.with_name("new"))
    folder.rename(folder.with_name("old"))
    folder.with_name("new").rename(folder)
    shutil.rmtree(folder.with_name("old"))


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "regression", tmp_path / "run"))


@pytest.fixture
def live(folder: Path) -> Iterator[Live]:
    with running(folder, token="correct-horse-battery") as server:
        yield server


def test_reload_serves_the_new_model(live: Live, folder: Path, runs: Path) -> None:
    before = live.predict([ROW], headers=TOKEN).json()
    replace(folder, runs / "other")
    assert live.predict([ROW], headers=TOKEN).json() == before
    answer = live.client.post("/reload", headers=TOKEN)
    assert (answer.status_code, answer.json()["before"]) == (200, before["model"])
    after = live.predict([ROW], headers=TOKEN).json()
    assert after["model"] == answer.json()["model"] != before["model"]
    assert after["predictions"] != before["predictions"]
    assert f'credo_model{{version="{after["model"]}"}} 1.0' in live.client.get("/metrics", headers=TOKEN).text


def test_a_model_with_another_task_changes_the_types(live: Live, folder: Path, runs: Path) -> None:
    replace(folder, runs / "classification")
    assert live.client.post("/reload", headers=TOKEN).status_code == 200
    document = live.client.get("/openapi.json", headers=TOKEN).json()
    assert "class" in document["components"]["schemas"]["Prediction"]["properties"]


@pytest.mark.parametrize("damage", ["card.json", "model.safetensors", "holdout.csv", "everything"])
def test_a_broken_folder_leaves_the_old_model(live: Live, folder: Path, damage: str) -> None:
    before = live.predict([ROW], headers=TOKEN).json()
    if damage == "everything":
        shutil.rmtree(folder)
    else:
        (folder / damage).write_bytes((folder / damage).read_bytes()[:-20])
    refused = live.client.post("/reload", headers=TOKEN)
    assert refused.status_code == 409
    assert f"{before['model']} is still served" in refused.json()["error"]
    assert live.predict([ROW], headers=TOKEN).json() == before
    ready = live.client.get("/ready").json()
    assert ready == {"status": "ok", "model": before["model"], "reload_failed": True}
    assert 'credo_reloads_total{result="failed"} 1.0' in live.client.get("/metrics", headers=TOKEN).text


def test_a_request_keeps_the_model_that_it_began_with(live: Live, folder: Path, runs: Path) -> None:
    """The prediction is held in the worker while the model is replaced."""
    before = live.predict([ROW], headers=TOKEN).json()
    batcher, entered, release = live.service.batcher, threading.Event(), threading.Event()
    compute, answers = batcher._compute, []

    def hold(jobs: Any) -> Any:
        entered.set()
        assert release.wait(30)
        return compute(jobs)

    batcher._compute, batcher._is_short = hold, lambda jobs: False
    thread = threading.Thread(target=lambda: answers.append(live.predict([ROW], headers=TOKEN).json()))
    thread.start()
    assert entered.wait(30)
    replace(folder, runs / "other")
    assert live.client.post("/reload", headers=TOKEN).status_code == 200
    release.set()
    thread.join()
    assert answers == [before]
    assert live.predict([ROW], headers=TOKEN).json()["model"] != before["model"]


def test_reload_without_a_token_is_forbidden(server: Live) -> None:
    refused = server.client.post("/reload")
    assert (refused.status_code, "CREDO_SERVE_TOKEN" in refused.text) == (403, True)


def test_a_watched_folder_is_loaded_when_it_changes(folder: Path, runs: Path) -> None:
    async def scenario() -> None:
        store = ModelStore(folder)
        first = store.current.model.version
        assert not await store.reload_if_changed()
        replace(folder, runs / "other")
        assert await store.reload_if_changed()
        second = store.current.model.version
        assert second != first
        (folder / "card.json").write_text("{")
        assert not await store.reload_if_changed()
        assert store.error
        assert store.current.model.version == second
        assert not await store.reload_if_changed()  # not again before it changes
        shutil.rmtree(folder)
        assert not await store.reload_if_changed()
        shutil.copytree(runs / "regression", folder)
        assert await store.reload_if_changed()
        assert (store.current.model.version, store.error) == (first, "")
        store.close()

    asyncio.run(scenario())


def test_watching_looks_again_and_again(folder: Path, runs: Path) -> None:
    async def scenario() -> None:
        store, reloaded = ModelStore(folder), asyncio.Event()
        store._on_reload = lambda version: reloaded.set()
        task = asyncio.create_task(store.watch(0.001))
        replace(folder, runs / "other")
        await asyncio.wait_for(reloaded.wait(), 30)
        task.cancel()
        store.close()

    asyncio.run(scenario())
