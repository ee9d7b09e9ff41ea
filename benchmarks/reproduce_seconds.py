"""CPU seconds of ``credo reproduce NAME --quick`` for every entry, each in a process of its own with one thread.

    python benchmarks/reproduce_seconds.py [NAME ...] [--limit 600] [--figures FOLDER]

CPU time rather than wall time, as it does not depend on what else the machine does. With one thread it is about the
wall time on an idle core, start and imports included, and so an upper estimate of the wall time on two. Entries that
are not named are left as they are; the file is written after every entry. Needs CREDO_DATA, and transformers and peft.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from credo import experiments

OUT = Path(__file__).parent / "results" / "reproduce_quick_seconds.json"


def measure(name: str, limit: int, figures: Path) -> dict[str, Any]:
    """Run one entry: its CPU seconds and its largest memory, or how it failed."""
    command = [sys.executable, "-m", "credo", "reproduce", name, "--quick", "--quiet", "--out", str(figures)]
    started = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )
    assert started.stderr is not None
    errors = started.stderr.read()
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    row = {
        "name": name,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_memory_mb": used.ru_maxrss // 1024,
        "date": datetime.date.today().isoformat(),
    }
    if started.returncode:
        last = errors.strip().splitlines()[-1:] or [f"exit code {started.returncode}"]
        row["failed"] = f"stopped after {limit} s" if row["cpu_seconds"] >= limit - 1 else last[0]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="by default all")
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds after which an entry is stopped")
    parser.add_argument("--figures", type=Path, help="where to keep tables and figures; by default nowhere")
    given = parser.parse_args()
    rows = {row["name"]: row for row in json.loads(OUT.read_text())["rows"]} if OUT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or experiments.names():
            rows[name] = measure(name, given.limit, given.figures or Path(folder))
            print(rows[name], flush=True)
            content = {
                "name": OUT.stem,
                "command": "python benchmarks/reproduce_seconds.py",
                "date": max(row["date"] for row in rows.values()),
                "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
                "rows": [rows[each] for each in sorted(rows)],
            }
            OUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
