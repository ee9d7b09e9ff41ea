"""What arrives while a batch is computed becomes the next one; events instead of sleeping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from credo.serving.batching import Batcher
from credo.serving.options import Refusal


class Worker:
    """Doubles numbers, and holds the first batch until it is released."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, jobs: Sequence[Any]) -> list[Any]:
        self.batches.append(list(jobs))
        self.entered.set()
        assert self.release.wait(30)
        if any(job == "bad" for job in jobs):
            raise ValueError("bad")
        return [2 * job for job in jobs]


async def held(worker: Worker, batcher: Batcher[Any, Any]) -> asyncio.Task[Any]:
    """A job that is being computed."""
    task = asyncio.create_task(batcher.submit(0, size=1))
    assert await asyncio.to_thread(worker.entered.wait, 30)
    return task


def submit(batcher: Batcher[Any, Any], *jobs: Any, size: int = 1, key: Any = None) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(batcher.submit(job, size=size, key=key)) for job in jobs]


def run(scenario: Any, **options: Any) -> list[list[Any]]:
    """The batches of a scenario, which gets the worker and the batcher."""
    worker = Worker()

    async def main() -> None:
        batcher: Batcher[Any, Any] = Batcher(worker, **({"max_size": 10, "max_waiting": 100} | options))
        await scenario(worker, batcher)
        await batcher.close()

    asyncio.run(main())
    return worker.batches


def test_a_lone_job_starts_at_once_and_later_ones_are_put_together() -> None:
    sizes: list[int] = []

    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        first = await held(worker, batcher)
        others = submit(batcher, 1, 2, 3)
        await asyncio.sleep(0)
        assert batcher.waiting == 3
        worker.release.set()
        assert await asyncio.gather(first, *others) == [0, 2, 4, 6]

    assert run(scenario, on_batch=sizes.append) == [[0], [1, 2, 3]]
    assert sizes == [1, 3]


def test_batches_are_limited_and_a_larger_job_is_one_of_its_own() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        jobs = submit(batcher, 1, 2, 3, size=4) + submit(batcher, 4, size=50) + submit(batcher, 5)
        await asyncio.sleep(0)
        worker.release.set()
        await asyncio.gather(*jobs)

    assert run(scenario) == [[0], [1, 2], [3], [4], [5]]


def test_jobs_of_different_models_are_kept_apart() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        jobs = submit(batcher, 1, 2, key="old") + submit(batcher, 3, 4, key="new")
        await asyncio.sleep(0)
        worker.release.set()
        await asyncio.gather(*jobs)

    assert run(scenario) == [[0], [1, 2], [3, 4]]


def test_a_job_that_fails_does_not_fail_the_others() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        jobs = submit(batcher, 1, "bad", 3)
        await asyncio.sleep(0)
        worker.release.set()
        one, bad, three = await asyncio.gather(*jobs, return_exceptions=True)
        assert (one, three, str(bad)) == (2, 6, "bad")

    assert run(scenario) == [[0], [1, "bad", 3], [1], ["bad"], [3]]


def test_jobs_that_nobody_waits_for_are_not_computed() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        jobs = submit(batcher, 1, 2)
        await asyncio.sleep(0)
        jobs[0].cancel()
        await asyncio.sleep(0)
        worker.release.set()
        assert await jobs[1] == 4

    assert run(scenario) == [[0], [2]]


def test_too_many_waiting_jobs_are_refused() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        jobs = submit(batcher, 1, 2, size=40)
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="try again later") as caught:
            await batcher.submit(3, size=40)
        assert caught.value.status == 503
        worker.release.set()
        assert await asyncio.gather(*jobs) == [2, 4]

    assert run(scenario) == [[0], [1], [2]]


def test_closing_computes_what_waits() -> None:
    async def scenario(worker: Worker, batcher: Batcher[Any, Any]) -> None:
        await held(worker, batcher)
        (job,) = submit(batcher, 1)
        await asyncio.sleep(0)
        worker.release.set()
        await batcher.close()
        assert job.done() or await job == 2

    assert run(scenario) == [[0], [1]]


def test_short_batches_are_computed_on_the_thread_of_the_loop() -> None:
    threads: list[str] = []

    def compute(jobs: Sequence[int]) -> list[int]:
        threads.append(threading.current_thread().name)
        return [len(jobs)] * len(jobs)

    async def main() -> None:
        batcher: Batcher[int, int] = Batcher(compute, 10, 100, is_short=lambda jobs: sum(jobs) < 10)
        assert await asyncio.gather(*submit(batcher, 1, 2, 3)) == [3, 3, 3]
        assert await asyncio.gather(*submit(batcher, 4, 6)) == [2, 2]
        await batcher.close()

    asyncio.run(main())
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("credo-predict")
