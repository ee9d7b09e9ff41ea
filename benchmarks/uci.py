"""Nine UCI regression tables with their standard splits, one set of defaults for all of them.

    CREDO_DATA=... python benchmarks/uci.py --workers 2            # the test folds, for the record
    CREDO_DATA=... python benchmarks/uci.py --inside --splits 4    # held-out parts of the training folds, for choices

Settings are chosen with ``--inside``, which never reads a test fold; the test folds are for one last run.

References: J. M. Hernández-Lobato, R. P. Adams, "Probabilistic backpropagation for scalable learning of Bayesian neural
networks", ICML 2015 (tables and splits). Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation", ICML 2016,
table 1 (MC dropout).
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import credo
from credo.experiments.networks import dropout_uci

RESULTS = Path(__file__).parent / "results"


class Published(NamedTuple):
    """Log likelihood and RMSE of MC dropout, and the better log likelihood of deep ensembles and tuned MC dropout."""

    log_likelihood: float
    rmse: float
    harder: float


HARDER = {
    "protein-tertiary-structure": -2.83,
    "naval-propulsion-plant": 5.63,
    "power-plant": -2.79,
    "kin8nm": 1.20,
    "wine-quality-red": -0.93,
    "concrete": -2.93,
    "energy": -1.21,
    "bostonHousing": -2.40,
    "yacht": -1.18,
}
PUBLISHED = {name: Published(*dropout_uci.PUBLISHED[name], harder) for name, harder in HARDER.items()}


class Score(NamedTuple):
    """One split."""

    set: str
    split: int
    log_likelihood: float
    rmse: float
    coverage: float
    rows: int
    seconds: float


def run_split(name: str, split: int, method: str, inside: bool, options: dict[str, Any]) -> Score:
    """Train on one split's training fold and score its test fold, or a tenth held out of the training fold."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # notes on the tables, such as constant columns
    table = credo.datasets.load(f"uci/{name}")
    test = np.asarray(table.test_rows[split])
    train = np.setdiff1d(np.arange(len(table.y)), test)
    if inside:
        shuffled = np.random.default_rng(split).permutation(train)
        test, train = shuffled[: len(train) // 10], shuffled[len(train) // 10 :]
    x, y = np.asarray(table.x), np.asarray(table.y).reshape(-1)
    start = time.perf_counter()
    model = credo.Regressor(method, random_state=split, **options).fit(x[train], y[train])
    seconds = time.perf_counter() - start
    predictive, truth = model.predict_dist(x[test]), torch.as_tensor(y[test], dtype=torch.float64)
    return Score(
        name,
        split,
        -credo.metrics.nll(predictive, truth),
        credo.metrics.rmse(predictive, truth),
        credo.metrics.coverage(predictive, truth),
        len(test),
        round(seconds, 1),
    )


def summarize(name: str, scores: list[Score]) -> dict[str, Any]:
    def mean(values: list[float]) -> float:
        return float(np.mean(values))

    def error(values: list[float]) -> float:
        return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")

    likelihoods, errors = [s.log_likelihood for s in scores], [s.rmse for s in scores]
    return {
        "set": name,
        "splits": len(scores),
        "log_likelihood": round(mean(likelihoods), 4),
        "log_likelihood_se": round(error(likelihoods), 4),
        "published_log_likelihood": PUBLISHED[name].log_likelihood,
        "harder_log_likelihood": PUBLISHED[name].harder,
        "rmse": round(mean(errors), 5),
        "rmse_se": round(error(errors), 5),
        "published_rmse": PUBLISHED[name].rmse,
        "coverage": round(float(np.average([s.coverage for s in scores], weights=[s.rows for s in scores])), 4),
        "seconds": round(mean([s.seconds for s in scores]), 1),
    }


def jobs(sets: list[str], limit: int | None) -> Iterator[tuple[str, int]]:
    for name in sets:
        splits = len(credo.datasets.load(f"uci/{name}").test_rows)
        yield from ((name, split) for split in range(min(splits, limit or splits)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--splits", type=int, help="only the first so many")
    parser.add_argument("--method", default="bbb")
    parser.add_argument("--options", type=json.loads, default={}, help="further arguments of credo.Regressor, as JSON")
    parser.add_argument("--inside", action="store_true", help="score held-out parts of the training folds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the result goes; by default benchmarks/results")
    parser.add_argument("--resume", action="store_true", help="keep the splits that the result holds, run the others")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / f"uci_{arguments.method}.json"
    scores = [Score(**raw) for raw in json.loads(out.read_text("utf-8"))["raw"]] if arguments.resume else []
    known = {(score.set, score.split) for score in scores}
    pool = ProcessPoolExecutor(arguments.workers, mp_context=multiprocessing.get_context("spawn"))
    pending: dict[Future[Score], None] = {
        pool.submit(run_split, name, split, arguments.method, arguments.inside, arguments.options): None
        for name, split in jobs(arguments.sets, arguments.splits)
        if (name, split) not in known
    }
    for done in as_completed(pending):
        scores.append(done.result())
        print(f"{len(scores)}/{len(known) + len(pending)} {scores[-1]}", flush=True)
        out.write_text(json.dumps(report(arguments, scores), indent=2) + "\n", encoding="utf-8")
    return 0


def report(arguments: argparse.Namespace, scores: list[Score]) -> dict[str, Any]:
    by_set = {name: [s for s in scores if s.set == name] for name in PUBLISHED}
    return {
        "name": f"uci_{arguments.method}",
        "command": f"python benchmarks/uci.py {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, {arguments.workers} processes, torch {torch.__version__}",
        "rows": [summarize(name, part) for name, part in by_set.items() if part],
        "raw": [s._asdict() for s in sorted(scores)],
    }


if __name__ == "__main__":
    sys.exit(main())
