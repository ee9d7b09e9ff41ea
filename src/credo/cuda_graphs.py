"""Work on a GPU that is captured once as a CUDA graph and replayed.

A small network is limited by the launch of kernels, not by arithmetic: a replay launches them all at once. What the
work depends on must lie in tensors at fixed addresses, which are written in place before a replay.

Reference: PyTorch, "CUDA semantics: CUDA graphs", https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch


class Graph(Protocol):
    """A recording of work that can be repeated."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run ``work`` as before a capture."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record ``work`` without running it."""

    def replay(self) -> None:
        """Run what was recorded."""


class CudaGraph:
    """A CUDA graph on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graph = torch.cuda.CUDAGraph()
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the stream of the capture."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)

    def capture(self, work: Callable[[], None]) -> None:
        """Record ``work``; other threads, such as those of a loader, may go on using the GPU."""
        with torch.cuda.device(self._device):
            try:
                self._record(self._graph, work)
            except BaseException:
                self._clean_up()
                raise

    def _record(self, graph: torch.cuda.CUDAGraph, work: Callable[[], object]) -> None:
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()

    def _clean_up(self) -> None:
        """Undo what a failed capture leaves behind.

        Memory is still allocated for it, and the default generator still counts for the graph, so that drawing a random
        number fails; it stops at the end of the next capture.
        """
        with suppress(RuntimeError):  # the capture itself ended well
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        self._pool = torch.cuda.graph_pool_handle()
        one = torch.ones((), device=self._device)
        self._record(torch.cuda.CUDAGraph(), one.clone)

    def replay(self) -> None:
        """Launch all kernels of the work."""
        self._graph.replay()


def make_graph(device: torch.device) -> Graph:
    """An empty graph.

    Args:
        device: a GPU.

    Returns:
        The graph, to be warmed up, captured and replayed.
    """
    return CudaGraph(device)


@contextmanager
def without_host_randomness() -> Iterator[None]:
    """Raise an error if random numbers are drawn on the host, which a replay would not draw; restore their states."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        yield
        if not (torch.equal(torch.get_rng_state(), torch_state) and random.getstate() == python_state):
            raise RuntimeError("the work draws random numbers on the host")
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)


def first_reason(error: BaseException) -> str:
    """The message of the error that came first; others follow from it at the end of a capture."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip() or type(error).__name__).split("\n")[0][:160]
