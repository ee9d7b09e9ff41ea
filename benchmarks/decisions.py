"""The mushroom bandit and active learning of MNIST, in runs that can be interrupted and continued.

    python benchmarks/decisions.py mushroom --seeds 5 --interactions 50000 --workers 16
    python benchmarks/decisions.py mushroom --first-seed 100 --interactions 3000 --agents thompson --thompson '{...}'
    python benchmarks/decisions.py digits --seeds 3 --workers 6 --device cuda

The same code as ``credo reproduce mushroom-bandit`` and ``active-learning-digits``. Every agent and seed is one run,
and is written to ``benchmarks/results`` when it is done; runs that are there already are skipped. ``--thompson``
changes settings of Thompson sampling, which are chosen by short runs with other seeds. Needs CREDO_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import multiprocessing
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from credo.datasets.files import images, mushroom
from credo.experiments.decisions import active_learning_digits as digits
from credo.experiments.decisions import mushroom_bandit as bandit

RESULTS = Path(__file__).parent / "results"
POINTS = 50
"""Points of a regret curve that are written."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        key: what identifies it in the file of results.
        compute: returns its results.
    """

    key: dict[str, Any]
    compute: Callable[[], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["mushroom", "digits"])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--interactions", type=int, default=50_000)
    parser.add_argument("--agents", choices=["all", "thompson", "greedy"], default="all")
    parser.add_argument("--thompson", type=json.loads, default={}, help="settings of Thompson sampling, as JSON")
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400, help="gradient steps of a round of active learning")
    parser.add_argument("--test", type=int, help="number of test images; all by default")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, each with one thread")
    parser.add_argument("--device", help="device of the networks of active learning")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    if options.task == "mushroom":
        record("mushroom_bandit", mushroom_runs(options), options)
    else:
        record("active_learning_digits", digits_runs(options), options)


def mushroom_runs(options: argparse.Namespace) -> list[Run]:
    """Cumulative regret of every agent and seed, at ``POINTS`` interactions."""
    n = options.interactions
    agents = [replace(agent, **options.thompson) if agent.thompson else agent for agent in bandit.AGENTS]
    if options.agents != "all":
        agents = [agent for agent in agents if agent.thompson == (options.agents == "thompson")]
    return [
        Run({**asdict(agent), "seed": seed, "interactions": n}, partial(play, agent, n, seed))
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for agent in agents
    ]


def digits_runs(options: argparse.Namespace) -> list[Run]:
    """Test error of every acquisition function and seed, after every round."""
    changed = {"labels": options.labels, "steps": options.steps, "test": options.test}
    settings = replace(digits.SETTINGS["full"], **changed)
    return [
        Run(
            {"acquisition": name, "seed": seed, **asdict(settings)},
            partial(learn, acquisition, settings, seed, options.device),
        )
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for name, acquisition in digits.ACQUISITIONS.items()
    ]


def play(agent: bandit.Agent, interactions: int, seed: int) -> dict[str, Any]:
    points = sorted({max(1, interactions * k // POINTS) for k in range(1, POINTS + 1)})
    curve = bandit.cumulative_regret(agent, field(), interactions, seed)
    return {"regret": float(curve[-1]), "curve": {str(t): float(curve[t - 1]) for t in points}}


def learn(acquisition: str, settings: digits.Settings, seed: int, device: str | None) -> dict[str, Any]:
    history = digits.error_curve(acquisition, mnist(), settings, seed, device)
    return {"error": {str(int(entry["labels"])): round(entry["score"], 4) for entry in history}}


@cache
def field() -> bandit.Field:
    data = mushroom()
    return bandit.Field(data.x, data.poisonous)


@cache
def mnist() -> digits.Images:
    return images("mnist")


def timed(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The results of a run on one thread, with its seconds."""
    logging.getLogger("credo").setLevel("WARNING")
    torch.set_num_threads(1)
    cpu, wall = time.process_time(), time.perf_counter()
    found = compute()
    seconds = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    return found | {name: round(value, 1) for name, value in seconds.items()}


def record(name: str, runs: list[Run], options: argparse.Namespace) -> None:
    """Compute the runs, and write each when it is done; those with the key of one in the file are skipped."""
    path: Path = options.out / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    waiting = [run for run in runs if not any(run.key.items() <= row.items() for row in rows)]
    print(f"{len(waiting)} of {len(runs)} runs to do", flush=True)
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(timed, run.compute): run for run in waiting}
        for future in as_completed(futures):
            key = futures[future].key
            if error := future.exception():
                print(f"{key} failed: {error}", flush=True)
                continue
            rows.append({**key, **future.result()})
            write(path, name, rows, options)
            shown = {k: v for k, v in rows[-1].items() if not isinstance(v, dict)}
            print(shown, list(future.result().get("error", {}).items())[-1:], flush=True)


def write(path: Path, name: str, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    device = "cpu" if options.device is None else options.device
    processor = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    size = f"--interactions {options.interactions}" if options.task == "mushroom" else f"--labels {options.labels}"
    content = {
        "name": name,
        "command": f"python benchmarks/decisions.py {options.task} --seeds {options.seeds} {size}",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor}, 1 thread, torch {torch.__version__}",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in sorted(rows, key=lambda row: json.dumps(row)))
    path.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
