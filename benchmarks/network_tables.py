"""Tables of ``credo reproduce`` in parts, for short runs on a GPU.

    python benchmarks/network_tables.py run bbb-mnist --rows mixture-1200-T1 sgd-400 --seeds 0 1 --minutes 7.5
    python benchmarks/network_tables.py run bbb-mnist --rows mixture-1200-T1 --hold-out --options '{"sigma1": 0.37}'
    python benchmarks/network_tables.py table bbb-mnist
    python benchmarks/network_tables.py run bayesian-cnn --rows lenet-flipout lenet-ensemble --seeds 0 1 --minutes 7.5
    python benchmarks/network_tables.py run bayesian-rnn --rows bayes-lstm --minutes 8
    python benchmarks/network_tables.py run lenet-by-method --seeds 0 1 2 --minutes 8
    python benchmarks/network_tables.py run dropout-uci --rows yacht concrete --seeds 0 1 2    # the seed is the split

The same code as the experiments of those names. Every row and seed is one run, written to its own file in a folder such
as ``benchmarks/results/bbb_mnist`` when it is done; runs that are there already are skipped, so that a list of rows may
be given again until all are done. A run of ``bayesian-rnn`` that is not done after ``--minutes`` stops at a checkpoint,
from which the same command goes on. ``table`` puts together what there is: ``benchmarks/results/bbb_mnist.json`` and
the figures.

Settings are chosen with ``--hold-out``, which never reads the test data: it trains on the first 50,000 training images
and counts errors on the last 10,000 of them, or evaluates on the validation part of the text; ``table --hold-out``
lists these runs. Needs CREDO_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from credo import experiments, plots
from credo.experiments.networks import bayesian_cnn, bayesian_rnn, bbb_mnist, dropout_uci, lenet_by_method
from credo.experiments.networks._bayesian_rnn_runs import Interruption, OutOfTimeError

RESULTS = Path(__file__).parent / "results"
TABLES: dict[str, Any] = {
    "bbb-mnist": bbb_mnist,
    "bayesian-cnn": bayesian_cnn,
    "bayesian-rnn": bayesian_rnn,
    "lenet-by-method": lenet_by_method,
    "dropout-uci": dropout_uci,
}
"""Each has ``PLANS``, ``Variant``, ``load``, ``measure`` and ``assemble``."""
HELD_OUT: dict[str, Any] = {name: True if name == "bayesian-rnn" else 10_000 for name in TABLES}
"""What ``load`` takes as ``hold_out``."""


@dataclass(frozen=True)
class Run:
    """One row of a table with one seed.

    Attributes:
        table: the name of the experiment.
        row: the name of the row.
        seed: seed of everything.
        options: settings that differ from those of the experiment.
        hold_out: whether held-out training data take the place of the test data.
        device: device to train on.
        folder: the folder of the records.
        checkpoints: the folder of checkpoints.
        deadline: time of ``time.monotonic`` after which a run that has checkpoints stops.
    """

    table: str
    row: str
    seed: int
    options: tuple[tuple[str, Any], ...]
    hold_out: bool
    device: str
    folder: Path
    checkpoints: Path
    deadline: float

    @property
    def path(self) -> Path:
        """The file of the record."""
        changed = "".join(f"_{key}={value}" for key, value in self.options)
        return self.folder / f"{self.row}_seed{self.seed}{changed}.json"

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint."""
        return self.checkpoints / self.table / ("validation" if self.hold_out else "test") / self.path.stem

    @property
    def interruption(self) -> dict[str, Any]:
        """The argument of ``measure`` for tables whose runs can stop and go on."""
        if TABLES[self.table] is not bayesian_rnn:
            return {}
        return {"interruption": Interruption(self.checkpoint, self.deadline)}


def compute(run: Run) -> tuple[Run, float]:
    """Train and measure one row, write its record, and return the seconds it took."""
    start = time.perf_counter()
    module = TABLES[run.table]
    settings = replace(module.PLANS["full"].settings, **dict(run.options))
    variant, data = module.Variant.parse(run.row), load(run.table, run.hold_out)
    try:
        record = module.measure(variant, data, settings, run.seed, run.device, **run.interruption)
    except OutOfTimeError as stop:
        last = json.loads((run.checkpoint / "training.json").read_text(encoding="utf-8"))["history"][-1]
        found = f"validation perplexity {last['valid_perplexity']:.2f}, {last['seconds']:.1f} s per epoch"
        print(f"{run.path.stem}: out of time, {stop}, {found}", flush=True)
        return run, time.perf_counter() - start
    seconds = time.perf_counter() - start
    content = {
        **record,
        "options": dict(run.options),
        "evaluated_on": "validation" if run.hold_out else "test",
        "seconds": round(seconds, 1),
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(run.device),
    }
    run.folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    run.path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{run.path.stem}: {summary(content)}, {seconds:.0f} s, {record['trained_by']}", flush=True)
    return run, seconds


@cache
def load(table: str, hold_out: bool) -> Any:
    return TABLES[table].load(hold_out=HELD_OUT[table]) if hold_out else TABLES[table].load()


def hardware(device: str) -> str:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return f"{name}, torch {torch.__version__}"


def summary(record: dict[str, Any]) -> str:
    """The errors, perplexities or scores of a record, for the log."""
    if "log_likelihood" in record:
        return f"log likelihood {record['log_likelihood']:.3f}, RMSE {record['rmse']:.4g}, p = {record['rate']:g}"
    if "test_tokens" in record:
        found = {"test": record["test"], "validation": record["valid"], "draws": record.get("test_draws")}
        found |= {"bound": record.get("bound", {}).get("test"), "dynamic": record["dynamic"]["test"]}
        found |= {"80 % pruned": record.get("pruned", {}).get("0.8")}
        return "perplexity " + ", ".join(f"{name} {value:.2f}" for name, value in found.items() if value is not None)
    images = record["test_images"]
    errors = {"error": record["wrong"], "mean weights": record["wrong_mean_weights"]}
    errors |= {f"{float(f):.0%} pruned": found["wrong"] for f, found in record.get("pruned", {}).items()}
    separated = {name: found["auroc_entropy"] for name, found in record.get("others", {}).items()}
    measured = [f"NLL {record['nll']:.4f}", *(f"AUROC {name} {auroc:.4f}" for name, auroc in separated.items())]
    return ", ".join([*(f"{name} {100 * wrong / images:.2f} %" for name, wrong in errors.items()), *measured])


def run_all(runs: Sequence[Run], workers: int, minutes: float) -> int:
    """Compute the runs, ``workers`` at a time; none is started that would not end before ``minutes`` are over.

    Returns:
        The number of runs that raised an error, which is printed; the others go on.
    """
    begin, longest, failed = time.perf_counter(), 0.0, 0
    waiting = [run for run in runs if not run.path.exists()]
    running: dict[Future[tuple[Run, float]], Run] = {}
    print(f"{len(waiting)} of {len(runs)} runs to do", flush=True)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        while waiting or running:
            in_time = time.perf_counter() - begin + longest < 60.0 * minutes
            while waiting and len(running) < workers and in_time:
                run = waiting.pop(0)
                running[pool.submit(compute, run)] = run
            if not running:
                print(f"out of time, {len(waiting)} runs are left", flush=True)
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run, error = running.pop(future), future.exception()
                if error is None:
                    longest = max(longest, future.result()[1])
                else:
                    failed += 1
                    print(f"{run.path.stem} failed", *traceback.format_exception(error), sep="\n", flush=True)
    return failed


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def write_table(table: str, folder: Path, out: Path, figures: Path) -> None:
    """Put the stored runs together: the rows as JSON, the table on the screen and the figures as PNG."""
    records = [record for record in read(folder) if not record["options"]]
    if not records:
        raise SystemExit(f"{folder} holds no runs with the settings of the experiment")
    with plots.paper():
        result = TABLES[table].assemble(records)
        figures.mkdir(parents=True, exist_ok=True)
        for name, figure in result.figures.items():
            figure.savefig(figures / f"{name}.png")
    content = {
        "name": table.replace("-", "_"),
        "title": experiments.get(table).title,
        "command": f"python benchmarks/network_tables.py run {table}",
        "date": max(record["date"] for record in records),
        "hardware": "; ".join(dict.fromkeys(record["hardware"] for record in records)),
        "rows": [{**vars(row), "mean": row.mean, "standard_error": row.standard_error} for row in result.rows],
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    for path in (out, figures / "table.json"):  # the second for scripts/make-gallery
        path.write_text(text, encoding="utf-8")
    for row in result.rows:
        published = "" if row.published is None else f"  (published {row.published:g}, {row.source})"
        print(f"{row.quantity}: {row.ours}, {len(row.values)} seeds{published}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--rows", nargs="+", help="by default all of the full run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--options", type=json.loads, default={}, help="settings to change, as JSON")
    parser.add_argument("--hold-out", action="store_true", help="evaluate on held-out training data")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="start no run that would end later, and stop those with checkpoints",
    )
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, each in its own process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder of the records; by default in benchmarks/results")
    parser.add_argument("--checkpoints", type=Path, default=Path("reproductions") / "checkpoints")
    parser.add_argument("--figures", type=Path, default=Path("reproductions"), help="folder of the figures")
    arguments = parser.parse_args()
    if arguments.hold_out and arguments.table == "dropout-uci":
        parser.error("dropout-uci has no --hold-out: it chooses its drop rates inside the training part")
    name = arguments.table.replace("-", "_")
    folder = arguments.out or RESULTS / (f"{name}_validation" if arguments.hold_out else name)
    if arguments.action == "table" and arguments.hold_out:
        for record in read(folder):
            print(f"{record['variant']} seed {record['seed']} {record['options']}: {summary(record)}")
        return 0
    if arguments.action == "table":
        write_table(arguments.table, folder, RESULTS / f"{name}.json", arguments.figures / arguments.table)
        return 0
    rows = arguments.rows or [variant.name for variant in TABLES[arguments.table].PLANS["full"].variants]
    options = tuple(arguments.options.items())
    places = (arguments.device, folder, arguments.checkpoints, time.monotonic() + 60.0 * arguments.minutes)
    runs = [
        Run(arguments.table, row, seed, options, arguments.hold_out, *places)
        for seed in arguments.seeds
        for row in rows
    ]
    return int(run_all(runs, arguments.workers, arguments.minutes) > 0)


if __name__ == "__main__":
    sys.exit(main())
