"""credo's defaults beside other libraries, on public tables that ship with packages and that no default was chosen on.

    pip install -c constraints.txt -r benchmarks/tables-requirements.txt
    python benchmarks/tables.py export FOLDER                        # the tables as CSV files, with their splits
    python benchmarks/tables.py run --data FOLDER --out RECORDS      # every method; what is there is not run again
    python benchmarks/tables.py run --data FOLDER --out RECORDS --methods credo gp forest linear --workers 14
    python benchmarks/tables.py collect RECORDS [RECORDS ...]        # benchmarks/results/tables.json and the picture

Tables are in ``table_data.py``, methods in ``table_methods.py``, scores in ``table_scores.py``. Every fit is a process
of its own with one thread and a time limit, and writes one JSON file; a fit that fails or is stopped writes a file with
the reason, and ranks last. ``run`` needs only the packages of the methods it is given, and no GPU: credo, ``gp``,
``forest`` and ``linear`` need nothing but scikit-learn. Seconds are CPU time.

Not here: TabPFN and TabICL, whose weights are downloaded at the first use, and bde, which is not on the package index.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import multiprocessing
import os
import platform
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import table_data
import table_methods
import table_report
import table_scores

POLL = 0.2
PACKAGES = {"credo": "torch", "catboost": "catboost", "ngboost": "ngboost", "lightgbm": "lightgbm"}


@dataclass(frozen=True)
class Fit:
    """One method on one split of one table."""

    data: Path
    out: Path
    table: str
    task: str
    split: int
    method: str

    @property
    def path(self) -> Path:
        """The file of its record."""
        return self.out / f"{self.table}_{self.split}_{self.method}.json"

    def write(self, found: dict[str, Any]) -> None:
        """Write the record."""
        key = {"table": self.table, "task": self.task, "split": self.split, "method": self.method}
        package = PACKAGES.get(self.method, "scikit-learn")
        machine = {
            "package": f"{package} {metadata.version(package)}",
            "hardware": processor(),
            "date": datetime.date.today().isoformat(),
        }
        self.path.write_text(json.dumps({**key, **found, **machine}) + "\n", encoding="utf-8")


def processor() -> str:
    """The model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, 1 thread"


def compute(fit: Fit, limit: int) -> None:
    """Fit, score, and write the record; the system ends the process after ``limit`` seconds of CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        split = table_data.read_split(fit.data, fit.table, fit.split)
        start = time.process_time()
        predict = table_methods.fit(fit.method, split, fit.task, fit.split)
        middle = time.process_time()
        p = predict(split.x_new)
        end = time.process_time()
        scores = table_scores.score(p, split.y_new, fit.task)
    except Exception as error:
        traceback.print_exc()
        fit.write({"error": f"{type(error).__name__}: {error}"})
        return
    sizes = {"rows": len(split.y), "columns": split.x.shape[1], "classes": split.classes}
    spread = {} if split.classes else {"target_std": float(split.y.std())}
    seconds = {"fit_seconds": round(middle - start, 3), "predict_seconds": round(end - middle, 3)}
    notes = {"notes": predict.notes} if hasattr(predict, "notes") else {}
    fit.write({**sizes, **spread, **{name: float(f"{v:.6g}") for name, v in scores.items()}, **seconds, **notes})


def run_all(fits: list[Fit], workers: int, limit: int) -> None:
    """Run the fits that have no record yet, ``workers`` at a time, each for at most ``limit`` seconds of CPU time."""
    context = multiprocessing.get_context("fork")
    waiting = [fit for fit in fits if not fit.path.exists()]
    for package in {PACKAGES[fit.method] for fit in waiting if fit.method in PACKAGES}:
        importlib.import_module(package)
    running: dict[BaseProcess, Fit] = {}
    print(f"{len(waiting)} of {len(fits)} fits to do", flush=True)
    while waiting or running:
        while waiting and len(running) < workers:
            fit = waiting.pop(0)
            process = context.Process(target=compute, args=(fit, limit))
            process.start()
            running[process] = fit
        time.sleep(POLL)
        for process in [process for process in running if not process.is_alive()]:
            fit = running.pop(process)
            if not fit.path.exists():
                stopped = process.exitcode in (-signal.SIGKILL, -signal.SIGXCPU)
                fit.write({"error": f"stopped after {limit} s" if stopped else f"exit code {process.exitcode}"})
            record = json.loads(fit.path.read_text(encoding="utf-8"))
            print(f"{fit.path.stem}: {record.get('error') or record['nll']}, {record.get('fit_seconds')} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    export = actions.add_parser("export", help="write the tables and their splits")
    export.add_argument("folder", type=Path)
    run = actions.add_parser("run", help="fit and score")
    run.add_argument("--data", type=Path, required=True, help="folder of `export`")
    run.add_argument("--out", type=Path, required=True, help="folder of the records")
    run.add_argument("--methods", nargs="+", default=list(table_methods.METHODS), choices=list(table_methods.METHODS))
    run.add_argument("--tables", nargs="+", help="by default all of the folder")
    run.add_argument("--splits", nargs="+", type=int, help="by default all")
    run.add_argument("--workers", type=int, default=1, help="fits at a time")
    run.add_argument("--limit", type=int, default=600, help="CPU seconds of one fit")
    collect = actions.add_parser("collect", help="put the records together")
    collect.add_argument("folders", nargs="+", type=Path)
    collect.add_argument("--keep", action="store_true", help="keep the rows of tables and methods that have no record")
    arguments = parser.parse_args()
    if arguments.action == "export":
        table_data.export(arguments.folder)
        return 0
    if arguments.action == "collect":
        table_report.collect(arguments.folders, arguments.keep)
        return 0
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    arguments.out.mkdir(parents=True, exist_ok=True)
    contents = table_data.read_contents(arguments.data)
    order = 1 if arguments.workers == 1 else -1  # several end soonest if the largest tables are first
    fits = [
        Fit(arguments.data, arguments.out, name, str(table["task"]), split, method)
        for name, table in sorted(contents.items(), key=lambda item: order * int(item[1]["rows"]))  # type: ignore[call-overload]
        if arguments.tables is None or name in arguments.tables
        for split in range(len(table["test_rows"]))  # type: ignore[arg-type]
        if arguments.splits is None or split in arguments.splits
        for method in arguments.methods
    ]
    fits.sort(key=lambda fit: fit.split)
    run_all(fits, arguments.workers, arguments.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
