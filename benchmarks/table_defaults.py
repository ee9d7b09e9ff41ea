"""Hamiltonian Monte Carlo or Bayes by Backprop? Both compared inside training folds, for ``method="auto"``.

    CREDO_DATA=... python benchmarks/table_defaults.py                            # all tables, both methods
    CREDO_DATA=... python benchmarks/table_defaults.py --tables yacht iris --methods hmc --seeds 0 1 2
    python benchmarks/table_defaults.py --show
    python benchmarks/table_defaults.py --stored        # from results that are there, on the same splits

Of the UCI tables, a tenth of the training fold of a standard split is held out, as by ``uci.py --inside``;
of scikit-learn's tables, a quarter of what remains after a quarter is set aside, as by ``classifier_defaults.py``. No
test fold is read. One simulated table has noise that varies tenfold. The log likelihood decides; seconds are CPU time
on one thread. A result that exists is not computed again.

``--stored`` compares ``uci_linear_path.json`` (Bayes by Backprop, the defaults) with ``uci_posteriors/inside_*`` on the
splits that both have. Those chains have 120 + 80 transitions of up to 40 to 111 leapfrog steps, about as the defaults
of ``method="hmc"``, but are 8 instead of 4, and without the linear path; of Boston with varying noise up to 8 steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split

import credo

RESULTS = Path(__file__).parent / "results"
OUT = RESULTS / "table_defaults.json"
STORED = {"relevance": "hmc, the same noise", "both": "hmc, varying noise"}
UCI = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm")
SIMULATED_ROWS = 500


class Fold(NamedTuple):
    """Rows to learn from and rows to score by."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_new: NDArray[Any]
    y_new: NDArray[Any]


def load_uci(name: str, split: int) -> Fold:
    """A tenth of a training fold held out of it."""
    table = credo.datasets.load(f"uci/{name}")
    x, y = np.asarray(table.x), np.asarray(table.y).reshape(-1)
    train = np.setdiff1d(np.arange(len(y)), np.asarray(table.test_rows[split]))
    shuffled = np.random.default_rng(split).permutation(train)
    new, old = shuffled[: len(train) // 10], shuffled[len(train) // 10 :]
    return Fold(x[old], y[old], x[new], y[new])


def load_bundled(load: Callable[..., Any], seed: int, stratify: bool) -> Fold:
    """A quarter of the training part of one of scikit-learn's tables."""
    x, y = load(return_X_y=True)
    y = y if y.ndim == 1 else y[:, 0]
    for _ in range(2):
        x, x_new, y, y_new = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y if stratify else None)
    return Fold(x, y, x_new, y_new)


def simulate(seed: int) -> Fold:
    """y = sin(2 x_1) + x_2 x_3 / 2 + noise of standard deviation 0.05 to 0.5, by x_4; two columns do nothing."""
    rng = np.random.default_rng(1000 + seed)
    x = rng.normal(size=(SIMULATED_ROWS + 2000, 6))
    scale = 0.05 * 10.0 ** (1.0 / (1.0 + np.exp(-2.0 * x[:, 3])))
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + scale * rng.normal(size=len(x))
    return Fold(x[:SIMULATED_ROWS], y[:SIMULATED_ROWS], x[SIMULATED_ROWS:], y[SIMULATED_ROWS:])


REGRESSION: dict[str, Callable[[int], Fold]] = {
    "linnerud": lambda seed: load_bundled(datasets.load_linnerud, seed, stratify=False),
    "diabetes": lambda seed: load_bundled(datasets.load_diabetes, seed, stratify=False),
    "varying noise": simulate,
    **{name: lambda seed, name=name: load_uci(name, seed) for name in UCI},  # type: ignore[misc]
}
CLASSES: dict[str, Callable[[int], Fold]] = {
    "iris": lambda seed: load_bundled(datasets.load_iris, seed, stratify=True),
    "wine": lambda seed: load_bundled(datasets.load_wine, seed, stratify=True),
    "breast_cancer": lambda seed: load_bundled(datasets.load_breast_cancer, seed, stratify=True),
}
TABLES = REGRESSION | CLASSES


def run(table: str, method: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Fit one table and score its held-out rows."""
    fold = TABLES[table](seed)
    estimator = credo.Regressor if table in REGRESSION else credo.Classifier
    start = time.process_time()
    model = estimator(method, random_state=seed, **options).fit(fold.x, fold.y)
    seconds = time.process_time() - start
    p, truth = model.predict_dist(fold.x_new), torch.as_tensor(fold.y_new)
    found = {"log_likelihood": -credo.metrics.nll(p, truth)}
    if table in REGRESSION:
        found |= {"rmse": credo.metrics.rmse(p, truth), "coverage": credo.metrics.coverage(p, truth)}
    else:
        found |= {"accuracy": credo.metrics.accuracy(p, truth), "ece": credo.metrics.ece(p, truth)}
    report = getattr(model.model_, "_report", None)
    if report is not None:
        found |= {"r_hat_median": report.predictions["median_r_hat"], "divergences": sum(report.divergences)}
    scores = {name: round(float(value), 4) for name, value in found.items()}
    key = {"table": table, "rows": len(fold.y), "method": method, "options": options, "seed": seed}
    return key | scores | {"cpu_seconds": round(seconds, 1)}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the mean log likelihood of every method over the splits that all of them have."""
    labels = sorted({label(row) for row in rows})
    print("| table | rows | splits | " + " | ".join(labels) + " |")
    print("|---" * (len(labels) + 3) + "|")
    for table in TABLES:
        own = {(label(row), row["seed"]): row for row in rows if row["table"] == table}
        seeds = [s for s in {seed for _, seed in own} if all((name, s) in own for name in labels)]
        if seeds:
            values = [np.array([own[name, s]["log_likelihood"] for s in seeds]) for name in labels]
            size = own[labels[0], seeds[0]]["rows"]
            print(f"| {table} | {size} | {len(seeds)} | " + " | ".join(f"{v.mean():.3f}" for v in values) + " |")


def compare_stored() -> list[dict[str, Any]]:
    """The mean log likelihood of stored results, over the splits that both methods have; also printed."""
    rows = []
    for stored in json.loads((RESULTS / "uci_linear_path.json").read_text("utf-8"))["rows"]:
        if stored["code"] != "after":
            continue
        row = {"table": stored["set"], "splits": stored["splits"], "bbb": stored["log_likelihood"]}
        for setting, name in STORED.items():
            path = RESULTS / "uci_posteriors" / f"inside_{setting}" / f"{stored['set']}_hmc.json"
            found = json.loads(path.read_text("utf-8"))
            values = [split["log_likelihood"] for split in found["raw"][: stored["splits"]]]
            row |= {name: round(float(np.mean(values)), 4), f"{name}, lowest": round(min(values), 4)}
            row |= {f"{name}, leapfrog steps": found["rows"][0]["leapfrog_steps"]}
        rows.append(row)
        print(json.dumps(row))
    return rows


def write(rows: list[dict[str, Any]], out: Path, hardware: str) -> None:
    """Write the results."""
    report = {
        "name": "table_defaults",
        "command": f"python benchmarks/table_defaults.py {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.date.today().isoformat(),
        "hardware": hardware,
        "rows": rows,
    }
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def label(row: dict[str, Any]) -> str:
    """A method and its options."""
    return " ".join([row["method"], *(f"{name}={value}" for name, value in row["options"].items())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=["hmc", "bbb"])
    parser.add_argument("--options", type=json.loads, default={}, help="further arguments of the estimator, as JSON")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--show", action="store_true", help="only print the table of results")
    parser.add_argument("--stored", action="store_true", help="compare results that are there")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    if arguments.stored:
        write(compare_stored(), RESULTS / "table_defaults_stored.json", "bbb: x86_64; hmc: NVIDIA H200")
        return 0
    rows = json.loads(arguments.out.read_text("utf-8"))["rows"] if arguments.out.exists() else []
    if arguments.show:
        show(rows)
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    known = {(row["table"], label(row), row["seed"]) for row in rows}
    for table in arguments.tables:
        for seed in arguments.seeds:
            for method in arguments.methods:
                if (table, label({"method": method, "options": arguments.options}), seed) in known:
                    continue
                rows.append(run(table, method, seed, arguments.options))
                print(json.dumps(rows[-1]), flush=True)
                rows.sort(key=lambda r: (list(TABLES).index(r["table"]), r["method"], r["seed"]))
                write(rows, arguments.out, f"{platform.machine()}, 1 thread, torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
