"""Seconds per epoch of ``fit`` on data of MNIST's size, 469 steps of 128 rows, beside plain loops.

    python benchmarks/peers.py --device cuda --only fit
    python benchmarks/fit_epoch.py --device cuda --names "MAP, AdamW" IVON "IVON, weight" --rounds 5 --out OUT.json

The second form writes the ratios of per-round times to those of the first name. An epoch is the difference between a
fit of four epochs and one of a single epoch, divided by three: what happens once, such as compiling and capturing a
step, is reported as ``first_epoch``. The data are random; they are on the device before the loops and the fits begin.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from racing import capture, hardware, mlp
from torch import Tensor, nn

import credo
from credo.architectures import LeNet

BATCH = 128
ONLY_BY_NAME = ("MAP, AdamW", "IVON, weight")
adamw = partial(torch.optim.AdamW, fused=True)
Fit = Callable[[int], object]


def plain_loop(net: nn.Module, x: Tensor, y: Tensor, captured: bool) -> Fit:
    """Fused Adam on shuffled minibatches; ``captured``: full ones by a step that is replayed as a CUDA graph."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=captured)
    static_x, static_y = x[:BATCH].clone(), y[:BATCH].clone()

    def step(batch_x: Tensor, batch_y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(batch_x), batch_y).backward()
        optimizer.step()

    def fit(epochs: int) -> None:
        replay = capture(partial(step, static_x, static_y)) if captured else None
        for _ in range(epochs):
            for rows in torch.randperm(len(x), device=x.device).split(BATCH):
                if replay is None or len(rows) < BATCH:
                    step(x[rows], y[rows])
                else:
                    static_x.copy_(x[rows])
                    static_y.copy_(y[rows])
                    replay()

    return fit


def credo_fit(
    model: credo.MAP | credo.BayesByBackprop | credo.IVON, x: Tensor, y: Tensor, precision: str, **options: Any
) -> Fit:
    return lambda epochs: model.fit(
        (x, y), epochs=epochs, batch_size=BATCH, device=x.device, precision=precision, progress=False, seed=0, **options
    )


def fits(network: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Callable[[], Fit]]:
    """What is timed, by name; each call builds it anew."""

    def net() -> nn.Module:
        return network().to(x.device)

    def bayes(precision: str = "32-true", **options: str) -> Callable[[], Fit]:
        return lambda: credo_fit(credo.BayesByBackprop(net(), credo.Categorical(), **options), x, y, precision)  # type: ignore[arg-type]

    found = {
        "plain loop": lambda: plain_loop(net(), x, y, captured=False),
        "MAP": lambda: credo_fit(credo.MAP(net(), credo.Categorical()), x, y, "32-true"),
        "MAP, AdamW": lambda: credo_fit(credo.MAP(net(), credo.Categorical()), x, y, "32-true", optimizer=adamw),
        "IVON": lambda: credo_fit(credo.IVON(net(), credo.Categorical()), x, y, "32-true"),
        "IVON, weight": lambda: credo_fit(credo.IVON(net(), credo.Categorical(), estimator="weight"), x, y, "32-true"),
        "BayesByBackprop": bayes(),
        "BayesByBackprop, weight": bayes(estimator="weight"),
        "BayesByBackprop, bf16-mixed": bayes("bf16-mixed"),
    }
    if x.is_cuda:
        found["plain loop, captured"] = lambda: plain_loop(net(), x, y, captured=True)
    return found


def seconds_per_epoch(device: torch.device, rounds: int, n_data: int = 60_000) -> list[dict[str, object]]:
    """Rows of the table: MLP and LeNet, plain and by ``fit``; rounds are interleaved."""
    rows: list[dict[str, object]] = []
    for title, times in time_fits(device, rounds, n_data=n_data).items():
        for name, pairs in times.items():
            row = {
                "name": name,
                "seconds": round(statistics.median(_epoch(pair) for pair in pairs), 4),
                "first_epoch": round(statistics.median(one for one, _ in pairs), 4),
            }
            rows.append({"race": f"fit, {title}", **row})
    return rows


def time_fits(
    device: torch.device, rounds: int, names: Sequence[str] | None = None, n_data: int = 60_000
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The seconds of one epoch and of four, of every round, by network and name."""
    y = torch.randint(0, 10, (n_data,), device=device)
    networks: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "MLP": (mlp, torch.randn(n_data, 784, device=device)),
        "LeNet": (LeNet, torch.randn(n_data, 1, 28, 28, device=device)),
    }
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for title, (network, x) in networks.items():
        builders = fits(network, x, y)
        builders = {name: builders[name] for name in names or [n for n in builders if n not in ONLY_BY_NAME]}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in builders}
        for build in builders.values():  # finds and compiles kernels
            build()(1)
        for _ in range(rounds):
            for name, build in builders.items():
                times[name].append((_seconds(build(), 1, device), _seconds(build(), 4, device)))
        found[title] = times
    return found


def _epoch(pair: tuple[float, float]) -> float:
    one, four = pair
    return (four - one) / 3.0


def _seconds(fit: Fit, epochs: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    fit(epochs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    for title, times in time_fits(device, arguments.rounds, arguments.names, arguments.rows).items():
        reference = [_epoch(pair) for pair in times[arguments.names[0]]]
        for name, pairs in times.items():
            ratios = [_epoch(pair) / other for pair, other in zip(pairs, reference, strict=True)]
            row: dict[str, object] = {
                "race": f"fit, {title}",
                "name": name,
                "ratio": round(statistics.median(ratios), 3),
            }
            row |= {"smallest_ratio": round(min(ratios), 3), "largest_ratio": round(max(ratios), 3)}
            row["seconds"] = round(statistics.median(_epoch(pair) for pair in pairs), 4)
            rows.append(row)
            print(row, flush=True)
    content = {
        "name": arguments.out.stem,
        "command": f"python benchmarks/fit_epoch.py --names {' '.join(map(repr, arguments.names))}",
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(device),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
