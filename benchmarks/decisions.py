"""The mushroom bandit and active learning of MNIST, in runs that can be interrupted and continued.

    python benchmarks/decisions.py mushroom --seeds 5 --interactions 50000
    python benchmarks/decisions.py digits --seeds 2 --labels 200 --test 2000

The same code as ``credo reproduce mushroom-bandit`` and ``active-learning-digits``. Every agent and seed is one run,
and is written to ``benchmarks/results`` when it is done; runs that are there already are skipped. Needs CREDO_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from credo.datasets.files import images, mushroom
from credo.experiments.decisions import active_learning_digits as digits
from credo.experiments.decisions import mushroom_bandit as bandit

RESULTS = Path(__file__).parent / "results"
POINTS = 50
"""Points of a regret curve that are written."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["mushroom", "digits"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--interactions", type=int, default=50_000)
    parser.add_argument("--labels", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--test", type=int, default=None, help="number of test images; all by default")
    options = parser.parse_args()
    logging.getLogger("credo").setLevel("WARNING")
    torch.set_num_threads(1)
    if options.task == "mushroom":
        run_mushroom(options)
    else:
        run_digits(options)


def run_mushroom(options: argparse.Namespace) -> None:
    """Cumulative regret of every agent and seed, at ``POINTS`` interactions."""
    data, n = mushroom(), options.interactions
    field = bandit.Field(data.x, data.poisonous)
    points = sorted({max(1, n * k // POINTS) for k in range(1, POINTS + 1)})
    for seed in range(options.seeds):
        for agent in bandit.AGENTS:

            def play(agent: bandit.Agent = agent, seed: int = seed) -> dict[str, Any]:
                curve = bandit.cumulative_regret(agent, field, n, seed)
                return {"regret": float(curve[-1]), "curve": {str(t): float(curve[t - 1]) for t in points}}

            command = f"python benchmarks/decisions.py mushroom --seeds {options.seeds} --interactions {n}"
            record("mushroom_bandit", command, {"agent": agent.name, "seed": seed, "interactions": n}, play)


def run_digits(options: argparse.Namespace) -> None:
    """Test error of every acquisition function and seed, after every round."""
    settings = digits.Settings(options.labels, options.epochs, candidates=1000, draws=25, test=options.test)
    data = images("mnist")
    for seed in range(options.seeds):
        for name, acquisition in digits.ACQUISITIONS.items():

            def learn(acquisition: str = acquisition, seed: int = seed) -> dict[str, Any]:
                history = digits.error_curve(acquisition, data, settings, seed)
                return {"error": {str(int(entry["labels"])): entry["score"] for entry in history}}

            command = f"python benchmarks/decisions.py digits --seeds {options.seeds} --labels {options.labels}"
            command += f" --epochs {options.epochs}" + ("" if options.test is None else f" --test {options.test}")
            record("active_learning_digits", command, {"acquisition": name, "seed": seed, **vars(settings)}, learn)


def record(name: str, command: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> None:
    """Compute one run and write it, unless a run with the same key is there."""
    path = RESULTS / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    if any(key.items() <= row.items() for row in rows):
        print(f"{key}: done before")
        return
    start = time.process_time()
    row = {**key, **compute(), "cpu_seconds": round(time.process_time() - start, 1)}
    rows.append(row)
    content = {
        "name": name,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "rows": rows,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{key}: {row['cpu_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
