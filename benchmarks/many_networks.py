"""Many small networks as one: the members of an ensemble beside one, and the chains of HMC on Concrete.

    python benchmarks/many_networks.py [ensemble] [hmc] [--out benchmarks/results/many_networks_cpu.json]
    python benchmarks/many_networks.py ensemble --device cuda --out benchmarks/results/many_networks_gpu.json

CPU seconds of the process, on one thread; on a GPU, seconds, and of 200 epochs in place of 20. Ensemble: five members
of 2 x 50 units on 1,000 rows of 8 columns, 20 epochs of minibatches of 100, beside one; rounds are interleaved, and the
ratio is the median of their ratios. HMC: the fit of ``credo.HMC`` with its defaults, from the first optimizer step on,
for 8 chains of 300 draws after 300 transitions of warm-up, on the first split of Concrete. A result of another part
that is in ``--out`` stays. HMC needs CREDO_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from uci_posteriors import DIAGNOSED_ROWS, SETTINGS, Fold, load_folds, network, prior

import credo
from credo import diagnostics, metrics

MEMBERS, ROWS, COLUMNS, EPOCHS, BATCH = 5, 1000, 8, 20, 100
CHAINS, WARMUP, DRAWS = 8, 300, 300


def seconds_of(work: Callable[[], object], device: str = "cpu") -> float:
    """CPU seconds of the process; on a GPU those that have passed."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    begin = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - begin


def ensemble(rounds: int, device: str) -> list[dict[str, Any]]:
    """Five members beside one."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(device)
    y = x.prod(1, keepdim=True).tanh()
    one, five = [], []
    for turn in range(rounds + 1):  # the first is not counted
        one.append(seconds_of(lambda: train(1, x, y), device))
        five.append(seconds_of(lambda: train(MEMBERS, x, y), device))
        print(f"round {turn}: {one[-1]:.3f} s for one member, {five[-1]:.3f} s for {MEMBERS}", flush=True)
    ratios = [b / a for a, b in zip(one[1:], five[1:], strict=True)]
    row = {
        "task": f"{MEMBERS} members of an ensemble, 2 x 50 units, beside one",
        "cpu_seconds" if device == "cpu" else "seconds": round(statistics.median(five[1:]), 3),
        "cpu_seconds_of_one" if device == "cpu" else "seconds_of_one": round(statistics.median(one[1:]), 3),
        "ratio": round(statistics.median(ratios), 3),
        "smallest_ratio": round(min(ratios), 3),
        "largest_ratio": round(max(ratios), 3),
    }
    return [row]


def train(members: int, x: Tensor, y: Tensor) -> None:
    net = network(COLUMNS, SETTINGS["wide"])
    likelihood = credo.Gaussian(noise=0.1)
    model: credo.Method = credo.MAP(net, likelihood)
    if members > 1:
        model = credo.DeepEnsemble(net, members=members, likelihood=likelihood)
    epochs = EPOCHS if x.device.type == "cpu" else 10 * EPOCHS
    model.fit((x, y), epochs=epochs, batch_size=BATCH, seed=0, device=x.device, progress=False)


def hmc() -> list[dict[str, Any]]:
    """Eight chains on Concrete, with the one hidden layer of 50 units of the UCI protocol."""
    fold = load_folds("concrete", inside=False, limit=1, device=torch.device("cpu"))[0]
    return [sample(fold, "protocol")]


def sample(fold: Fold, name: str) -> dict[str, Any]:
    setting = SETTINGS[name]
    model = credo.HMC(
        network(fold.x.shape[1], setting),
        credo.Gaussian("learned"),
        prior(setting),
        chains=CHAINS,
        warmup=WARMUP,
        draws=DRAWS,
        noise_prior=credo.Normal(-1.0, 2.0),
    )
    fitting = seconds_of(lambda: model.fit((fold.x, fold.y), seed=0, progress=False))
    row: dict[str, Any] = {
        "task": f"HMC on Concrete, {CHAINS} chains, {WARMUP} transitions and {DRAWS} draws, "
        f"{' x '.join(map(str, setting.hidden))} units",
        "cpu_seconds": round(fitting, 1),
    }
    functions = model.outputs(fold.x[:DIAGNOSED_ROWS]).squeeze(-1)
    row["r_hat_median"] = round(float(diagnostics.r_hat(functions).nanmedian()), 3)
    p = model.predict(fold.x_test, samples=200, seed=0)
    row["rmse"] = round(metrics.rmse(p, fold.y_test) * fold.scale, 3)
    print(row, flush=True)
    return row


PARTS: dict[str, Callable[[int, str], list[dict[str, Any]]]] = {
    "ensemble": ensemble,
    "hmc": lambda rounds, device: hmc(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help="of ensemble and hmc")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("credo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows = [row for part in arguments.parts for row in PARTS[part](arguments.rounds, arguments.device)]
    for row in rows:
        print(row)
    if arguments.out:
        write(arguments.out, rows, arguments.device)


def write(path: Path, rows: list[dict[str, Any]], device: str) -> None:
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    machine = f"{platform.machine()}, 1 thread" if device == "cpu" else torch.cuda.get_device_name()
    merged = {row["task"]: row for row in [*known, *rows]}
    content = {
        "name": path.stem,
        "command": f"python benchmarks/many_networks.py --device {device} --out benchmarks/results/{path.name}",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{machine}, torch {torch.__version__}",
        "rows": list(merged.values()),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
