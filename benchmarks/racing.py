"""Measure contestants side by side: interleaved rounds, ratios with quartiles, replayed steps, peak memory."""

from __future__ import annotations

import gc
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from credo.cuda_graphs import CudaGraph

Step = Callable[[], object]
Loss = Callable[[Tensor, Tensor], Tensor]


class Seconds(NamedTuple):
    """Wall time and, on a CPU, the CPU time of all threads."""

    wall: float
    cpu: float | None

    def times(self, factor: float) -> Seconds:
        return Seconds(self.wall * factor, None if self.cpu is None else self.cpu * factor)

    def mean(self, other: Seconds) -> Seconds:
        cpu = None if self.cpu is None or other.cpu is None else (self.cpu + other.cpu) / 2
        return Seconds((self.wall + other.wall) / 2, cpu)


def mlp(dropout: float = 0.0) -> nn.Sequential:
    """784-1200-1200-10, with dropout layers after the ReLUs if ``dropout`` is not 0."""
    layers: list[nn.Module] = []
    for inputs in (784, 1200):
        layers += [nn.Linear(inputs, 1200), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(1200, 10))


def cnn() -> nn.Sequential:
    """Two 3×3 convolutions of 32 and 64 filters, each with 2×2 max pooling, then 128 units; for 28×28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


class Pair(NamedTuple):
    """The time of a contestant, and that of the reference in the same round."""

    own: Seconds
    reference: Seconds


def race(
    contestants: Mapping[str, Step],
    reference: str,
    rounds: int,
    device: torch.device,
    warmups: int = 3,
    repeats: int = 20,
    paired: bool = False,
) -> dict[str, list[Pair]]:
    """Times of every contestant in every round, interleaved.

    Args:
        contestants: what is timed, by name.
        reference: the name of the one that all are compared with.
        rounds: number of timed rounds.
        device: where they run.
        warmups: rounds before the timed ones.
        repeats: calls that a timing on a GPU averages over.
        paired: whether to time the reference beside every contestant, for rounds so long that the machine may change.
    """
    times: dict[str, list[Pair]] = {name: [] for name in contestants}
    for turn in range(-warmups, rounds):
        base = _time(contestants[reference], device, repeats)
        for name, step in contestants.items():
            own = base if name == reference else _time(step, device, repeats)
            before = base
            if paired and name != reference:
                base = _time(contestants[reference], device, repeats)
            if turn >= 0:
                times[name].append(Pair(own, before.mean(base)))
    return times


def _time(step: Step, device: torch.device, repeats: int) -> Seconds:
    if device.type != "cuda":
        begin, cpu = time.perf_counter(), time.process_time()
        step()
        return Seconds(time.perf_counter() - begin, time.process_time() - cpu)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        step()
    stop.record()
    torch.cuda.synchronize()
    return Seconds(start.elapsed_time(stop) / (1e3 * repeats), None)


def ratios(times: dict[str, list[Pair]]) -> list[dict[str, object]]:
    """A row for every contestant: the median of its per-round ratios to the reference, and their quartiles."""
    rows: list[dict[str, object]] = []
    for name, pairs in times.items():
        lower, median, upper = _quartiles([own.wall / base.wall for own, base in pairs])
        fastest = min(own.wall for own, _ in pairs) / min(base.wall for _, base in pairs)
        row: dict[str, object] = {
            "name": name,
            "ratio": round(median, 3),
            "quartiles": [round(lower, 3), round(upper, 3)],
            "rounds": len(pairs),
            "ratio_of_fastest": round(fastest, 3),
            "milliseconds": round(statistics.median(own.wall for own, _ in pairs) * 1e3, 4),
        }
        by_cpu = [own.cpu / base.cpu for own, base in pairs if own.cpu and base.cpu]
        if by_cpu:
            row["cpu_ratio"] = round(statistics.median(by_cpu), 3)
        rows.append(row)
    return rows


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def train_step(
    loss: Loss,
    parameters: list[Tensor] | list[dict[str, object]],
    batch: tuple[Tensor, Tensor],
    captured: bool = False,
    compiled: bool = False,
) -> Step:
    """One step of fused Adam on a fixed batch; ``captured``: replayed as a CUDA graph; ``compiled``: the loss is."""
    x, y = batch
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=captured)
    if compiled:
        loss(x, y)  # what a model prepares on its first batch must not be compiled
        loss = torch.compile(loss, fullgraph=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(x, y).backward()
        optimizer.step()

    return capture(step) if captured else step


def capture(step: Step) -> Step:
    """Replays ``step`` as a CUDA graph."""
    graph = CudaGraph(torch.device("cuda", torch.cuda.current_device()))
    for _ in range(4):
        graph.warm_up(step)
    graph.capture(step)

    def replay(alive: object = step) -> None:
        """Replays the graph; ``alive`` keeps the tensors it was captured over."""
        graph.replay()

    return replay


def peak_memory(build: Callable[[], Step], calls: int, device: torch.device) -> float:
    """Megabytes (10⁶ bytes) that building a contestant and calling it add at their peak.

    On a GPU those of torch's allocator. On a CPU the resident set of a forked process, over that of a process which has
    imported everything; this process must not have computed anything before.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step = build()
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak_resident, args=(build, calls, sender))
    process.start()
    sender.close()
    try:
        megabytes: float = receiver.recv()
    finally:
        process.join()
    return megabytes


def _peak_resident(build: Callable[[], Step], calls: int, sender: Connection) -> None:
    """Send the growth of the peak resident set; the forked process starts with the resident set of its parent."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = build()
    for _ in range(calls):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sender.send((after - before) * 1024 / 1e6)
