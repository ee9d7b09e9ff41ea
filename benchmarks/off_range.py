"""Do 95 % intervals of tables cover what lies outside the training range?

    python benchmarks/off_range.py                           # all functions and sizes, the default method
    python benchmarks/off_range.py --method hmc --rows 50    # rows are added to the result

Smooth functions of one column are learned on [−1, 1] by ``credo.Regressor`` with its defaults, from n rows with noise
of standard deviation 0.2. The coverage of 95 % intervals, exact over the noise, is averaged over evenly spaced points
inside the range and over points up to half a range outside, 1 < |x| ≤ 2, and over seeds; ``worst`` is the lowest of all
seeds. Widths are multiples of that of the noise alone: inside, and at the distances of a quarter and half of a range.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import credo

OUT = Path(__file__).parent / "results" / "off_range.json"
NOISE, LEVEL = 0.2, 0.95
ROWS = (50, 200, 1000)
FUNCTIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "sin 3x": lambda x: np.sin(3.0 * x),
    "x²": np.square,
    "logistic 4x": lambda x: 1.0 / (1.0 + np.exp(-4.0 * x)),
    "2x": lambda x: 2.0 * x,
}


def one(function: str, rows: int, method: str, seed: int) -> dict[str, float]:
    """Fit one table and measure its intervals."""
    rng, f = np.random.default_rng(seed), FUNCTIONS[function]
    x = rng.uniform(-1.0, 1.0, (rows, 1))
    start = time.process_time()
    model = credo.Regressor(method, likelihood="gaussian", random_state=seed)
    model.fit(x, f(x[:, 0]) + rng.normal(0.0, NOISE, rows))
    found = {"seconds": time.process_time() - start}
    half = np.linspace(1.0, 2.0, 51)[1:]
    for region, points in (("inside", np.linspace(-1.0, 1.0, 101)), ("outside", np.concatenate([-half, half]))):
        lower, upper = model.predict_dist(points[:, None]).interval(LEVEL)
        truth = torch.tensor(f(points))
        covered = torch.special.ndtr((upper - truth) / NOISE) - torch.special.ndtr((lower - truth) / NOISE)
        found[f"coverage_{region}"] = float(covered.mean())
        if region == "inside":
            found["width_inside"] = _relative(upper - lower)
    for name, place in (("quarter", 1.5), ("half", 2.0)):
        lower, upper = model.predict_dist(np.array([[-place], [place]])).interval(LEVEL)
        found[f"width_{name}"] = _relative(upper - lower)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=list(FUNCTIONS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for function in arguments.functions:
        for rows in arguments.rows:
            runs = [one(function, rows, arguments.method, seed) for seed in range(arguments.seeds)]
            key = {"function": function, "n": rows, "method": arguments.method}
            row = key | {"seeds": len(runs)}
            row |= {name: round(float(np.mean([run[name] for run in runs])), 3) for name in runs[0]}
            row["coverage_outside_worst"] = round(min(run["coverage_outside"] for run in runs), 3)
            row["widens"] = all(run["width_inside"] < run["width_quarter"] < run["width_half"] for run in runs)
            print(json.dumps(row, ensure_ascii=False), flush=True)
            known = json.loads(OUT.read_text("utf-8"))["rows"] if OUT.exists() else []
            known = [old for old in known if {name: old[name] for name in key} != key] + [row]
            known.sort(key=lambda r: (list(FUNCTIONS).index(r["function"]), r["n"], r["method"]))
            OUT.write_text(json.dumps(report(known), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of the result file."""
    return {
        "name": "off_range",
        "command": "python benchmarks/off_range.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "rows": rows,
    }


def _relative(width: torch.Tensor) -> float:
    return float(width.mean()) / (2.0 * 1.96 * NOISE)


if __name__ == "__main__":
    sys.exit(main())
