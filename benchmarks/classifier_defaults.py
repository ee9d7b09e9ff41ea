"""Which prior and temperature do small tables of classes need? Settings compared inside training folds.

    python benchmarks/classifier_defaults.py                          # all tables, all settings
    python benchmarks/classifier_defaults.py --label before           # with other code on the path, its defaults only
    python benchmarks/classifier_defaults.py --test --tables digits   # the chosen defaults on the test folds, once

``credo.Classifier`` is fitted with each setting. Simulated tables have a known truth: a linear one, with 5 columns of
which 2 do nothing, and one in which only the product of two columns matters. Of scikit-learn's tables a quarter is the
test fold; settings are compared on a quarter of what remains, so that no choice sees a test fold. The log loss, which
is proper, decides; accuracy and the expected calibration error are beside it. ``--steps`` shortens all fits alike. A
fit takes half a minute to three minutes.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import credo
from credo.predictive import ClassPredictive
from credo.predictive.classes import CategoricalComponents

OUT = Path(__file__).parent / "results" / "classifier_defaults.json"
SETTINGS: dict[str, dict[str, Any]] = {
    "rate 3": {"method_options": {"prior": credo.priors.AdaptiveNormal(rate=3.0), "temperature": 1.0}},
    "rate 0.3": {"method_options": {"prior": credo.priors.AdaptiveNormal(rate=0.3), "temperature": 1.0}},
    "rate 0.03": {"method_options": {"prior": credo.priors.AdaptiveNormal(rate=0.03), "temperature": 1.0}},
    "temperature 0.3": {"method_options": {"temperature": 0.3}},
    "temperature 0.5": {"method_options": {"temperature": 0.5}},
    "temperature 0.1": {"method_options": {"temperature": 0.1}},
    "hidden 50": {"hidden": (50,)},
}
WEIGHTS = np.array([1.5, -1.0, 0.5, 0.0, 0.0])
BUNDLED = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
SIMULATED = {"linear, 60": 60, "linear, 200": 200, "product, 200": 200}


class Fold(NamedTuple):
    """Rows to learn from, rows to score by, and the log loss of the truth where it is known."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_new: NDArray[Any]
    y_new: NDArray[Any]
    truth: float | None = None


def fold(table: str, seed: int, test: bool) -> Fold:
    """One table."""
    if table in SIMULATED:
        rng, rows = np.random.default_rng(1000 + seed), SIMULATED[table]
        x = rng.normal(size=(rows + 4000, len(WEIGHTS)))
        p = expit(x @ WEIGHTS if table.startswith("linear") else 2.5 * x[:, 0] * x[:, 1])
        y = (rng.random(len(x)) < p).astype(np.int64)
        chosen = np.where(y == 1, p, 1.0 - p)[rows:]
        return Fold(x[:rows], y[:rows], x[rows:], y[rows:], -float(np.log(chosen).mean()))
    x, y = BUNDLED[table](return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y)
    if test:
        return Fold(x, y, x_test, y_test)
    x, x_new, y, y_new = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y)
    return Fold(x, y, x_new, y_new)


def scores(p: ClassPredictive, y: NDArray[Any]) -> dict[str, float]:
    """Log loss, accuracy and expected calibration error."""
    truth = torch.from_numpy(y)
    found = {
        "nll": credo.metrics.nll(p, truth),
        "accuracy": credo.metrics.accuracy(p, truth),
        "ece": credo.metrics.ece(p, truth),
    }
    return {name: round(float(value), 4) for name, value in found.items()}


def logistic(rows: Fold) -> dict[str, float]:
    """scikit-learn's logistic regression, with its defaults, on standardized columns."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(rows.x, rows.y)
    log_p = torch.from_numpy(model.predict_log_proba(rows.x_new))
    return scores(ClassPredictive(CategoricalComponents(log_p[None])), rows.y_new)


def bayesian(rows: Fold, seed: int, options: dict[str, Any], steps: int | None) -> dict[str, float]:
    """``credo.Classifier`` with its defaults but for ``options``."""
    batches = -(-len(rows.y) // 128)
    epochs = None if steps is None else -(-steps // batches)
    start = time.process_time()
    model = credo.Classifier(epochs=epochs, random_state=seed, **options).fit(rows.x, rows.y)
    seconds = round(time.process_time() - start, 1)
    return scores(model.predict_dist(rows.x_new), rows.y_new) | {"seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=[*SIMULATED, *BUNDLED], choices=[*SIMULATED, *BUNDLED])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, help="of every fit; by default as many as the Classifier takes")
    parser.add_argument("--label", help="only the defaults, under this name")
    parser.add_argument("--test", action="store_true", help="score the defaults on the test folds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    known = json.loads(OUT.read_text("utf-8"))["rows"] if OUT.exists() else []
    chosen = {name: SETTINGS[name] for name in arguments.settings}
    if arguments.test or arguments.label is not None:
        chosen = {arguments.label or "defaults": {}}
    for table in arguments.tables:
        for seed in arguments.seeds:
            rows = fold(table, seed, arguments.test)
            key = {"table": table, "seed": seed, "fold": "test" if arguments.test else "inside"}
            results = [{"model": "logistic regression", "steps": None} | logistic(rows)]
            for name, options in chosen.items():
                found = bayesian(rows, seed, options, arguments.steps)
                results.append({"model": name, "steps": arguments.steps} | found)
            for result in results:
                row = key | {"truth": rows.truth and round(rows.truth, 4)} | result
                print(json.dumps(row), flush=True)
                same = [*key, "model", "steps"]
                known = [old for old in known if any(old[name] != row[name] for name in same)] + [row]
            OUT.write_text(json.dumps(report(known), indent=2) + "\n", encoding="utf-8")
    return 0


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    order = [*SIMULATED, *BUNDLED]
    return {
        "name": "classifier_defaults",
        "command": f"python benchmarks/classifier_defaults.py {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "rows": sorted(rows, key=lambda r: (order.index(r["table"]), r["fold"], r["seed"])),
    }


if __name__ == "__main__":
    sys.exit(main())
