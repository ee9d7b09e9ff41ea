"""How long the defaults take on tables of some sizes: a fit, and predictions with intervals, in CPU seconds.

    python benchmarks/table_speed.py --out benchmarks/results/table_speed.json

The table is simulated: y = sin(3 x₁) + x₂x₃ + noise, with columns that do nothing. Memory is the largest resident size
of the process after the predictions, less that before.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import credo

SIZES = ((200, 10), (1_000, 10), (10_000, 20), (100_000, 20))
PREDICTED = 1_000_000
CHUNK = 50_000


def simulate(rows: int, columns: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=rows)
    return pd.DataFrame(x).add_prefix("x"), y


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(rows: int, columns: int) -> tuple[Any, dict[str, Any]]:
    frame, y = simulate(rows, columns)
    start, wall = time.process_time(), time.perf_counter()
    model = credo.Regressor(random_state=0).fit(frame, y)
    seconds = {"cpu_seconds": time.process_time() - start, "seconds": time.perf_counter() - wall}
    new, truth = simulate(2_000, columns, seed=1)
    scores = {"nll": credo.metrics.nll(model.predict_dist(new), torch.from_numpy(truth))}
    found = {"task": "fit", "rows": rows, "columns": columns, "method": model.method_}
    return model, found | {name: round(value, 3) for name, value in (seconds | scores).items()}


def predict(model: Any, columns: int) -> dict[str, Any]:
    """Predict a million rows in chunks, mean and interval, as ``credo predict`` does."""
    frame, _ = simulate(CHUNK, columns, seed=2)
    before, start, wall = peak_mib(), time.process_time(), time.perf_counter()
    for p in model.stream(frame for _ in range(PREDICTED // CHUNK)):
        p.mean, p.std, p.interval(0.95)
    seconds = {"cpu_seconds": time.process_time() - start, "seconds": time.perf_counter() - wall}
    found = {"task": "predict", "rows": PREDICTED, "columns": columns, "method": model.method_}
    memory = {"more_mib": peak_mib() - before}
    return found | {name: round(value, 1) for name, value in (seconds | memory).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", UserWarning)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        model, found = measure(*size)
        rows.append(found)
        print(found, flush=True)
        if size == (1_000, 10):
            rows.append(predict(model, 10))
            print(rows[-1], flush=True)
    content = {
        "name": "table_speed",
        "command": "python benchmarks/table_speed.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}",
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
