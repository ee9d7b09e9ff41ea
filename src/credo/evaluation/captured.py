"""Predictions on a GPU that are captured once as a CUDA graph and replayed for other inputs and other draws.

What Python does for a prediction, such as copying the module tree and calling the network under ``vmap``, takes longer
than a small network on a GPU. Where the same network predicts batches of the same shape again and again, all of it but
the draws is recorded at the second prediction and replayed from the third on, if that is measured to be faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from credo._notices import notify
from credo.cuda_graphs import Graph, make_graph, without_host_randomness
from credo.evaluation.choice import Sharing
from credo.functional import Draw, Replica, Sampler, describe_modules, plain_tensors, stack_draws
from credo.nests import leaves, map_tensors, plain, tensors

CAPTURED_BYTES = 2**30
"""Weights and activations of the draws that one graph evaluates; a captured prediction keeps as much memory. MC dropout
of 784-1200-1200-10 took 0.54 forwards per draw on an H200 with 512 MiB and 0.50 with 2 GiB."""
_KEPT = 2
_DEVICES = ("cuda",)
Run = Callable[[list[Draw], Any], Tensor]


class DrawMemory(Protocol):
    """K draws at fixed addresses, where a graph reads them.

    Attributes:
        draws: K draws.
    """

    draws: list[Draw]

    def load(self, sampler: Any, samples: int) -> None:
        """Let the draws be the first S of ``sampler``."""

    def choose(self, first: int) -> None:
        """Let the next draws be ``first`` to ``first`` + K − 1."""

    def fill(self) -> None:
        """Compute the draws; recorded in the graph, and called once before."""


class CapturedDraws:
    """The outputs of K draws on one batch, as a graph over tensors that are written before every replay.

    Args:
        replica: a private copy of the network, for this graph alone.
        run: the outputs ``[K, B, ...]`` of a list of draws; calls ``replica``.
        sampler: gives draws. If it has ``make_memory(size, device)``, the graph computes them; samplers of the same
            ``kind`` can share the memory.
        size: K.
        x: a batch.
        begin: what comes before all draws of a prediction, such as the work that they share; gets K draws, of any
            values, and ``x``.

    Raises:
        RuntimeError: the work cannot be captured.
    """

    def __init__(
        self,
        replica: Replica,
        run: Run,
        sampler: Sampler,
        size: int,
        x: Any,
        begin: Callable[[list[Draw], Any], None] | None,
    ) -> None:
        device = tensors(x)[0].device
        self._replica, self._size = replica, size
        self._x = map_tensors(torch.clone, x)
        make_memory: Callable[[int, torch.device], DrawMemory] | None = getattr(sampler, "make_memory", None)
        self._memory: DrawMemory = (
            _CopiedDraws(sampler, size, device) if make_memory is None else make_memory(size, device)
        )
        self._memory.load(sampler, size)
        self._memory.fill()
        own = self._memory.draws
        self._lock = threading.Lock()
        self._output = torch.empty(0)

        def evaluate() -> None:
            self._memory.fill()
            self._output = run(own, self._x)

        self._begin = None if begin is None else _capture(lambda: begin(own, self._x), device)
        self._evaluate = _capture(evaluate, device)

    def __call__(self, sampler: Sampler, samples: int, x: Any) -> Tensor | None:
        """Outputs ``[S, B, ...]`` of draws 0 to S − 1; ``None`` if another thread is using the graph."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._replica.copy_buffers()
            torch._foreach_copy_(tensors(self._x), tensors(x))
            self._memory.load(sampler, samples)
            if self._begin is not None:
                self._begin.replay()
            outputs = self._output.new_empty(samples, *self._output.shape[1:])
            for part, first in zip(outputs.split(self._size), range(0, samples, self._size), strict=True):
                self._memory.choose(first)
                self._evaluate.replay()
                part.copy_(self._output[: len(part)])
            return outputs
        finally:
            self._lock.release()


class _CopiedDraws:
    """Draws that are computed before a replay, and copied to where the graph reads them."""

    def __init__(self, sampler: Sampler, size: int, device: torch.device) -> None:
        self._sampler, self._size, self._samples = sampler, size, size
        stacked = stack_draws(sampler(range(size)))
        self._stacked = {name: t.to(device, copy=True) for name, t in stacked.items()}
        columns = zip(*(value.unbind() for value in self._stacked.values()), strict=True)
        self.draws: list[Draw] = [dict(zip(self._stacked, values, strict=True)) for values in columns]

    def load(self, sampler: Sampler, samples: int) -> None:
        """Let the draws be the first S of ``sampler``."""
        self._sampler, self._samples = sampler, samples

    def choose(self, first: int) -> None:
        """Let the next draws be ``first`` to ``first`` + K − 1; the last one again instead of those from S on."""
        drawn = stack_draws(self._sampler([min(s, self._samples - 1) for s in range(first, first + self._size)]))
        own = list(self._stacked.values())  # copied without waiting for what the GPU still has to do
        torch._foreach_copy_(own, [drawn[name] for name in self._stacked], non_blocking=True)

    def fill(self) -> None:
        """Nothing is left to do."""


def _capture(work: Callable[[], None], device: torch.device) -> Graph:
    graph = make_graph(device)
    graph.warm_up(work)
    with without_host_randomness():
        graph.capture(work)
    return graph


class CapturedPredictions:
    """The captured predictions of one network, by what they depend on besides numbers in tensors.

    Two kinds are remembered, those used last: a network that predicts batches of many shapes is not captured again and
    again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Hashable, CapturedDraws | None] = {}
        """``None``: seen once."""
        self._refused: set[Hashable] = set()

    def get(self, key: Hashable) -> CapturedDraws | None:
        """What was captured for ``key``."""
        with self._lock:
            if key not in self._seen:
                return None
            self._seen[key] = found = self._seen.pop(key)  # now the one used last
            return found

    def is_due(self, key: Hashable) -> bool:
        """Whether to capture now: at the second prediction of a kind."""
        with self._lock:
            if key in self._refused:
                return False
            if key in self._seen:
                return self._seen[key] is None
            while len(self._seen) >= _KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = None
            return False

    def add(self, key: Hashable, make: Callable[[], CapturedDraws], replay: Callable[[CapturedDraws], float]) -> None:
        """Capture a prediction.

        Args:
            key: from :func:`fingerprint`.
            make: captures.
            replay: the time it takes over that of the eager prediction; kept if it is below 1.
        """
        try:
            captured = make()
            replay(captured)
            ratio = replay(captured)
        except Exception:  # whatever CUDA or the network raises during a capture
            ratio = 1.0
        if ratio >= 1.0:
            self.reject(key)
            return
        with self._lock:
            self._seen[key] = captured

    def reject(self, key: Hashable) -> None:
        """Do not try to capture ``key`` again."""
        with self._lock:
            self._seen.pop(key, None)
            self._refused.add(key)


def fingerprint(net: nn.Module, x: Any, *others: Hashable) -> Hashable | None:
    """What a captured prediction depends on besides the numbers in inputs, draws, parameters and buffers.

    Args:
        net: the user's network.
        x: a batch.
        *others: further dependencies.

    Returns:
        ``None`` if it cannot be captured: not on a GPU, or the network or the batch keep values outside of parameters
        and buffers that it may compute with.
    """
    inputs, every = tensors(x), leaves(x)
    if inputs[0].device.type not in _DEVICES or len(inputs) < len(every) or any(True for _ in plain_tensors(net)):
        return None
    modules = list(net.modules())
    parameters = [t for module in modules for t in module._parameters.values() if t is not None]
    buffers = [t for module in modules for t in module._buffers.values() if t is not None]
    return (
        torch.cuda.current_stream().cuda_stream if inputs[0].is_cuda else None,
        None if x is inputs[0] else str(pytree.tree_structure(plain(x))),
        tuple((t.shape, t.dtype) for t in inputs),
        tuple((t.data_ptr(), t.shape, t.dtype) for t in parameters),
        tuple((t.shape, t.dtype, t.device) for t in buffers),
        tuple((*module._forward_hooks, *module._forward_pre_hooks) for module in modules),
        describe_modules(net),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.is_autocast_enabled("cuda"),
        *others,
    )


def balanced(samples: int, at_once: int) -> int:
    """Draws per graph: at most ``at_once``, such that the last replay has as many to do as the others."""
    rounds = -(-samples // max(at_once, 1))
    return -(-samples // rounds)


@dataclass
class Findings:
    """What was found out about a network, by workload, in earlier predictions.

    Attributes:
        ways: the fastest way to evaluate draws.
        looped: where draws cannot be evaluated together.
        sharing: what draws share.
        captured: predictions that are replayed.
    """

    ways: dict[Hashable, str] = field(default_factory=dict)
    looped: set[Hashable] = field(default_factory=set)
    sharing: dict[Hashable, Sharing] = field(default_factory=dict)
    captured: CapturedPredictions = field(default_factory=CapturedPredictions)

    def add_obstacle(self, key: Hashable, reason: str) -> None:
        """Record that draws cannot be evaluated together for a workload, with a notice for the first one.

        Args:
            key: of the workload.
            reason: why not.
        """
        if not self.looped:
            notify(f"prediction loops over draws, because the network cannot be vectorized: {reason}")
        self.looped.add(key)
