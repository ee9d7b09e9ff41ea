"""Do intervals keep their word inside the training range, and beyond it?

    python benchmarks/extrapolation.py                      # both curves, all sizes
    python benchmarks/extrapolation.py --label before       # with other code on the path; rows are added to the result

Two curves are learned on [−2, 2] by ``credo.Regressor`` with its defaults, from n rows with noise 0.3: sin 2.5x + x/2,
which goes on otherwise than it looks at the edge, and the straight line 2x. The coverage of 95 % intervals, exact over
the noise, is averaged over evenly spaced points inside, for 2 < |x| < 3 and for 3 < |x| < 5, and over seeds. The width
inside is a multiple of that of the noise alone. A row takes a minute or so for each seed.
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

OUT = Path(__file__).parent / "results" / "extrapolation.json"
NOISE = 0.3
SEEDS = {50: 4, 100: 4, 200: 2, 1000: 2}
REGIONS = {"inside": (0.0, 2.0), "near": (2.0, 3.0), "far": (3.0, 5.0)}
CURVES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "sine": lambda x: np.sin(2.5 * x) + 0.5 * x,
    "line": lambda x: 2.0 * x,
}


def one(curve: str, rows: int, seed: int) -> dict[str, float]:
    """Fit one table and look at its intervals."""
    rng, f = np.random.default_rng(seed), CURVES[curve]
    x = rng.uniform(-2.0, 2.0, (rows, 1))
    start = time.process_time()
    model = credo.Regressor(random_state=seed).fit(x, f(x[:, 0]) + rng.normal(0.0, NOISE, rows))
    found = {"seconds": time.process_time() - start}
    for region, (nearest, farthest) in REGIONS.items():
        half = np.linspace(nearest, farthest, 51)[1:]
        points = np.concatenate([-half[::-1], half])
        p, truth = model.predict_dist(points[:, None]), torch.tensor(f(points))
        lower, upper = p.interval(0.95)
        held = torch.special.ndtr((upper - truth) / NOISE) - torch.special.ndtr((lower - truth) / NOISE)
        found[f"coverage_{region}"] = float(held.mean())
        found[f"width_{region}"] = float((upper - lower).mean()) / (2.0 * 1.96 * NOISE)
        found[f"epistemic_{region}"] = float(p.epistemic.sqrt().mean())
        found[f"aleatoric_{region}"] = float(p.aleatoric.sqrt().mean())
    p = model.predict_dist(np.array([[10.0], [100.0]]))
    lower, upper = p.interval(0.95)
    for k, place in enumerate((10, 100)):
        found |= {f"mean_{place}": float(p.mean[k])}
        found |= {f"lower_{place}": float(lower[k]), f"upper_{place}": float(upper[k])}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="after", help="what the rows are called")
    parser.add_argument("--curves", nargs="+", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--rows", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--seeds", type=int, help="the most for any number of rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(OUT.read_text("utf-8"))["rows"] if OUT.exists() else []
    for curve in arguments.curves:
        for rows in arguments.rows:
            if curve == "line" and rows != 100:
                continue
            seeds = min(SEEDS[rows], arguments.seeds or SEEDS[rows])
            runs = [one(curve, rows, seed) for seed in range(seeds)]
            key = {"curve": curve, "n": rows, "code": arguments.label}
            row = key | {"seeds": len(runs)}
            row |= {name: round(float(np.mean([run[name] for run in runs])), 4) for name in runs[0]}
            row["coverage_near_worst"] = round(min(run["coverage_near"] for run in runs), 4)
            print(json.dumps(row), flush=True)
            known = [old for old in known if {name: old[name] for name in key} != key] + [row]
            known.sort(key=lambda r: (list(CURVES).index(r["curve"]), r["n"], r["code"] != "before"))
            OUT.write_text(json.dumps(report(known), indent=2) + "\n", encoding="utf-8")
    return 0


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "extrapolation",
        "command": "python benchmarks/extrapolation.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
