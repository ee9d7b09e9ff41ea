"""Train step and prediction of 784-1200-1200-10 as ratios to the deterministic network, in one run.

    python benchmarks/step_and_predict.py [--device cuda] [--out benchmarks/results/step_and_predict_cpu.json]

Rounds are interleaved, so that every contestant meets the same machine; a ratio is a median of per-round ratios.
On a GPU every step is compiled and captured in a CUDA graph, the deterministic one too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo

Step = Callable[[], object]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 10))


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def race(contestants: dict[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-3, rounds):
        for name, step in contestants.items():
            seconds = _time(step, device)
            if turn >= 0:
                times[name].append(seconds)
    return times


def _time(step: Step, device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(20):
        step()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 20e3


def ratios(times: dict[str, list[float]], reference: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, seconds in times.items():
        by_round = [a / b for a, b in zip(seconds, times[reference], strict=True)]
        rows.append(
            {
                "name": name,
                "ratio": round(statistics.median(by_round), 3),
                "ratio_of_fastest": round(min(seconds) / min(times[reference]), 3),
                "milliseconds": round(statistics.median(seconds) * 1e3, 4),
            }
        )
    return rows


def train_step(
    loss: Callable[[Tensor, Tensor], Tensor], parameters: list[dict[str, object]], device: torch.device
) -> Step:
    """One step of fused Adam on a fixed batch of 128; on a GPU compiled and replayed as a CUDA graph."""
    x = torch.randn(128, 784, device=device)
    y = torch.randint(0, 10, (128,), device=device)
    gpu = device.type == "cuda"
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=gpu)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(x, y).backward()
        optimizer.step()

    if not gpu:
        return step
    loss = torch.compile(loss, fullgraph=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()

    def replay(alive: object = step) -> None:
        """Replays the graph; ``alive`` keeps the tensors it was captured over."""
        graph.replay()

    return replay


def step_contestants(device: torch.device) -> dict[str, Step]:
    plain = network().to(device)
    contestants = {
        "deterministic": train_step(
            lambda x, y: F.cross_entropy(plain(x), y), [{"params": list(plain.parameters())}], device
        )
    }
    recipes: dict[str, dict[str, object]] = {
        "BayesByBackprop": {},
        "BayesByBackprop, weight": {"estimator": "weight"},
        "BayesByBackprop, flipout": {"estimator": "flipout"},
        "BayesByBackprop, scale mixture": {"prior": credo.ScaleMixture()},
    }
    for name, options in recipes.items():
        model = credo.BayesByBackprop(network().to(device), credo.Categorical(), **options)  # type: ignore[arg-type]
        model._prepare(torch.randn(128, 784, device=device))

        def loss(x: Tensor, y: Tensor, model: credo.BayesByBackprop = model) -> Tensor:
            return model(x, y, 60_000)

        contestants[name] = train_step(loss, model.parameter_groups(), device)
    dropout = credo.MCDropout(network().to(device), credo.Categorical(), p=0.5)
    dropout._prepare(torch.randn(128, 784, device=device))
    contestants["MCDropout"] = train_step(lambda x, y: dropout(x, y, 60_000), dropout.parameter_groups(), device)
    return contestants


def predict_contestants(device: torch.device, samples: int) -> dict[str, Step]:
    x = torch.randn(1000, 784, device=device)
    plain = network().to(device)
    model = credo.BayesByBackprop(network().to(device), credo.Categorical())
    dropout = credo.MCDropout(network().to(device), credo.Categorical(), p=0.5)

    @torch.no_grad()
    def forwards() -> None:
        for _ in range(samples):
            plain(x)

    return {
        f"{samples} plain forwards": forwards,
        "BayesByBackprop.predict": lambda: model.predict(x, samples=samples, seed=0),
        "MCDropout.predict": lambda: dropout.predict(x, samples=samples, seed=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--predict-rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--matmul-precision", default="highest", help="'high' allows TF32")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(arguments.matmul_precision)
    times = race(step_contestants(device), arguments.rounds, device)
    rows = [{"task": "train step, batch 128", **row} for row in ratios(times, "deterministic")]
    times = race(predict_contestants(device, arguments.samples), arguments.predict_rounds, device)
    task = f"predict, batch 1000, {arguments.samples} draws"
    rows += [{"task": task, **row} for row in ratios(times, next(iter(times)))]
    result = {
        "name": "step_and_predict",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(device),
        "matmul_precision": arguments.matmul_precision,
        "rows": rows,
    }
    for row in rows:
        print(f"{row['task']:<36} {row['name']:<34} {row['ratio']:>7.2f}× {row['milliseconds']:>10.3f} ms")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
