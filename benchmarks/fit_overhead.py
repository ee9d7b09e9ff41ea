"""CPU time of ``fit`` on a small network, as ratios to a training loop written by hand, in one run.

    python benchmarks/fit_overhead.py [--out benchmarks/results/fit_overhead_cpu.json]

The network is 10-50-50-2 on 6,400 rows in batches of 64: the arithmetic of a step takes a tenth of a millisecond, so
that what is measured is the training loop. The loop by hand trains the deterministic network with fused Adam and a
cosine schedule on shuffled batches of tensors, and records nothing. Rounds are interleaved, on one thread; a ratio is a
median of ratios per round, of the process's CPU time of a whole ``fit``. ``setup_seconds`` is that of a ``fit`` of 0
epochs, which the ratio includes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
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

ROWS, BATCH_SIZE = 6400, 64
PLAIN = "plain loop"

Fit = Callable[[int], object]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))


def plain_loop(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """Train the deterministic network by hand."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    steps = epochs * math.ceil(len(x) / BATCH_SIZE)
    step = 0
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            optimizer.param_groups[0]["lr"] = 1e-3 * 0.5 * (1.0 + math.cos(math.pi * step / steps))
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return net


def contestants() -> dict[str, Fit]:
    """What is timed: functions of the number of epochs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 10, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    fit = {"batch_size": BATCH_SIZE, "seed": 0, "progress": False}
    return {
        PLAIN: lambda epochs: plain_loop(x, y, epochs),
        "MAP": lambda epochs: credo.MAP(network(), credo.Categorical()).fit((x, y), epochs=epochs, **fit),
        "BayesByBackprop": lambda epochs: credo.BayesByBackprop(network(), credo.Categorical()).fit(
            (x, y), epochs=epochs, **fit
        ),
        "MCDropout": lambda epochs: credo.MCDropout(network(), credo.Categorical(), p=0.1).fit(
            (x, y), epochs=epochs, **fit
        ),
    }


def cpu_seconds(fit: Fit, epochs: int) -> float:
    begin = time.process_time()
    fit(epochs)
    return time.process_time() - begin


def quartiles(values: list[float]) -> list[float]:
    lower, _, upper = statistics.quantiles(values, n=4)
    return [round(lower, 3), round(upper, 3)]


def measure(rounds: int, epochs: int) -> list[dict[str, object]]:
    """One row per contestant."""
    fits = contestants()
    for fit in fits.values():
        fit(1)
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(rounds):
        for name, fit in fits.items():
            times[name].append(cpu_seconds(fit, epochs))
    rows: list[dict[str, object]] = []
    for name, fit in fits.items():
        by_round = [a / b for a, b in zip(times[name], times[PLAIN], strict=True)]
        steps = epochs * math.ceil(ROWS / BATCH_SIZE)
        rows.append(
            {
                "name": name,
                "ratio": round(statistics.median(by_round), 3),
                "quartiles": quartiles(by_round),
                "microseconds_per_step": round(statistics.median(times[name]) / steps * 1e6, 1),
                "setup_seconds": round(statistics.median(cpu_seconds(fit, 0) for _ in range(5)), 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.rounds, arguments.epochs)
    result = {
        "name": "fit_overhead_cpu",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}",
        "rows": rows,
    }
    for row in rows:
        print(
            f"{row['name']:<18} {row['ratio']:>6}× {row['quartiles']!s:<18} {row['microseconds_per_step']:>8} µs "
            f"a step, {row['setup_seconds']} s set-up"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
