"""Tables of docs/benchmarks.md that are about the results themselves: where credo loses, and which files there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def lost_races(machine: str) -> Iterator[tuple[str, str, str]]:
    """Races in which credo's default is not the best of the Bayesian methods: the race, credo, and who is ahead."""
    by_race: dict[str, dict[str, float]] = {}
    for row in result(f"peers_{machine}")["rows"]:
        value = row.get("cpu_ratio") or row.get("ratio")
        if value is not None and row["name"] != "deterministic":
            by_race.setdefault(row["race"], {})[row["name"]] = value
    for race, values in by_race.items():
        ours = values.get("credo")
        ahead = {name: value for name, value in values.items() if not name.startswith("credo")}
        better = sorted((value, name) for name, value in ahead.items() if ours is not None and value < ours)
        if better:
            yield race, f"{ours:.2f}×", ", ".join(f"{name} {value:.2f}×" for value, name in better[:3])


def lost_tables() -> Iterator[tuple[str, str, str]]:
    """Tables on which another method has the lower NLL: the table, credo, and who is ahead."""
    by_table: dict[str, dict[str, dict[str, Any]]] = {}
    for row in result("tables")["rows"]:
        by_table.setdefault(row["table"], {})[row["label"]] = row
    for table, rows in by_table.items():
        if "credo" not in rows:
            continue
        ours = rows["credo"].get("nll", float("inf"))
        better = sorted((row["nll"], name) for name, row in rows.items() if row.get("nll", float("inf")) < ours)
        if better:
            ahead = ", ".join(f"{name} {value:.4g}" for value, name in better[:3])
            yield f"{table} ({rows['credo']['task']}), NLL", f"{ours:.4g}", ahead


def losses() -> str:
    """Everything in which another library, or a published number, is ahead."""
    lines = ["| where | credo | ahead of it |", "|---|---|---|"]
    for machine, title in (("cpu", "CPU"), ("gpu", "GPU")):
        lines += [f"| {title}: {race} | {ours} | {better} |" for race, ours, better in lost_races(machine)]
    for row in result("classical_cpu")["rows"]:
        if row["ratio"] > 1:
            lines.append(f"| fit on a CPU: {row['task']} | {row['ratio']:.2f}× | scikit-learn 1.00× |")
    laplace = result("laplace_cpu")["rows"]
    for structure in dict.fromkeys(row["structure"] for row in laplace):
        rows = [row for row in laplace if row["structure"] == structure]
        ours = next(row for row in rows if row["library"] == "credo")
        for key, unit in (("seconds", "s"), ("megabytes", "MB")):
            better = [row for row in rows if row[key] < ours[key] and row["rows"] == ours["rows"]]
            names = ", ".join(f"{row['library']} {row[key]:g} {unit}" for row in better)
            if better:
                lines.append(f"| Laplace on a CPU, {structure}: {key} | {ours[key]:g} {unit} | {names} |")
    for row in result("uci_auto")["rows"]:
        if row["log_likelihood"] < best_published(row["set"]):
            theirs = f"best published {best_published(row['set']):.2f}"
            lines.append(f"| UCI: {row['set']}, log likelihood | {row['log_likelihood']:.2f} | {theirs} |")
        if round(row["rmse"], 2) > row["published_rmse"]:
            theirs = f"MC dropout, published {row['published_rmse']:.2f}"
            lines.append(f"| UCI: {row['set']}, RMSE | {row['rmse']:.2f} | {theirs} |")
    lines += [f"| table {table} | {ours} | {ahead} |" for table, ours, ahead in lost_tables()]
    for row in result("bbb_mnist")["rows"]:
        if row["published"] is not None and row["mean"] > row["published"]:
            lines.append(f"| MNIST: {row['quantity']} | {row['mean']:.2f} | published {row['published']:.2f} |")
    return "\n".join(lines)


def best_published(table: str) -> float:
    """The best published log likelihood on a UCI table of a method whose settings did not see test rows."""
    return float(result(f"uci_posteriors/{table}_hmc")["rows"][0]["published_log_likelihood"])


def laplace() -> str:
    """Fits of a Laplace approximation beside laplace-torch."""
    found = result("laplace_cpu")
    lines = ["| curvature | library | rows | CPU seconds | peak memory |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        cells = [row["structure"], row["library"], str(row["rows"]), f"{row['seconds']:.4g} s"]
        lines.append(f"| {' | '.join(cells)} | {row['megabytes']:.0f} MB |")
    return "\n".join([*lines, "", f"{found['what']}. {found['machine']}, {found['date']}."])


def many_networks() -> str:
    """Members of an ensemble beside one, on a CPU and a GPU, and chains of HMC."""
    runs = {"cpu_seconds": result("many_networks_cpu"), "seconds": result("many_networks_gpu")}
    lines = ["| | seconds | |", "|---|---|---|"]
    for clock, found in runs.items():
        for row in found["rows"]:
            note = f"R-hat of the functions {row['r_hat_median']:.2f} in the median" if "r_hat_median" in row else ""
            if "ratio" in row:
                note = f"{row['ratio']:.2f}× one member, {row[f'{clock}_of_one']:.3g} s"
            task = row["task"] if clock == "cpu_seconds" else f"{row['task']}, on a GPU, ten times as many epochs"
            lines.append(f"| {task} | {row[clock]:.3g} s | {note} |")
    sources = [f"`{found['command']}`, {found['date']}, {found['hardware']}" for found in runs.values()]
    return "\n".join([*lines, "", f"{sources[0]} (CPU seconds); {sources[1]}."])


METHODS = {
    "map": "MAP",
    "laplace": "Laplace, Kronecker",
    "last_layer": "variational last layer",
    "dropout": "MC dropout, p = 0.05",
    "concrete_dropout": "concrete dropout",
    "bbb": "Bayes by Backprop",
    "ivon": "IVON",
    "swag": "SWAG",
    "ensemble": "ensemble of 8",
    "sgld": "SGLD, 4 chains",
    "sghmc": "SGHMC, 4 chains",
    "mclmc": "MCLMC, 8 chains",
    "hmc": "HMC, 8 chains, on a GPU",
}


def uci_methods() -> str:
    """Every method on some splits of the small UCI tables; HMC on the same splits of its run on all of them."""
    found = {
        (row["rows"][0]["set"], row["rows"][0]["method"]): row
        for row in (json.loads(path.read_text("utf-8")) for path in sorted((RESULTS / "uci_posteriors").glob("*.json")))
    }
    trained = {key: row for key, row in found.items() if key[1] != "hmc"}
    tables = sorted({table for table, _ in trained}, key=str.lower)
    splits = min(row["rows"][0]["splits"] for row in trained.values())
    lines = [f"| | {' | '.join(tables)} | CPU seconds per fit |", f"|---|{'---|' * (len(tables) + 1)}"]
    lines.append(f"| best published log likelihood | {' | '.join(f'{best_published(t):.2f}' for t in tables)} | |")
    for method, label in METHODS.items():
        cells, seconds = [], []
        for table in tables:
            own = found.get((table, method))
            raw = [] if own is None else own["raw"][:splits]
            means = [sum(r[key] for r in raw) / len(raw) for key in ("log_likelihood", "rmse", "coverage") if raw]
            mark = " †" if own is not None and own["rows"][0]["setting"] == "short" else ""
            cells.append(f"{means[0]:.2f}, {means[1]:.3g}, {means[2]:.0%}{mark}" if means else "")
            if own is not None and "cpu_seconds" in own["rows"][0]:
                seconds.append(own["rows"][0]["cpu_seconds"] / own["rows"][0]["splits"])
        timing = f"{min(seconds):.2g} to {max(seconds):.3g}" if seconds else ""
        lines.append(f"| {label} | {' | '.join(cells)} | {timing} |")
    first = next(iter(trained.values()))
    note = f"Log likelihood, RMSE and coverage of 95 % intervals on the first {splits} of 20 test folds; † 40 epochs"
    return "\n".join([*lines, "", f"{note}. {first['hardware']}, {first['date']}; HMC on a GPU."])


def published() -> str:
    """Every number of the files of results that has a published one beside it."""
    lines = ["| | quantity | published | ours |", "|---|---|---|---|"]
    for path in sorted(RESULTS.glob("*.json")):
        rows = [row for row in result(path.stem)["rows"] if row.get("published") is not None]
        for i, row in enumerate(rows):
            error = row["standard_error"]
            ours = f"{row['mean']:.4g}" + (f" ± {error:.1g}" if error else "")
            lines.append(
                f"| {f'`{path.stem}`' if i == 0 else ''} | {row['quantity']} | {row['published']:g} | {ours} |"
            )
    return "\n".join(lines)


def classes() -> str:
    """The defaults of ``credo.Classifier`` on test folds, beside logistic regression."""
    found = result("classifier_defaults")
    lines = ["| table | model | NLL | accuracy | ECE |", "|---|---|---|---|---|"]
    for row in (row for row in found["rows"] if row["fold"] == "test"):
        model = "credo.Classifier" if row["model"] == "defaults" else row["model"]
        lines.append(f"| {row['table']} | {model} | {row['nll']:.3f} | {row['accuracy']:.1%} | {row['ece']:.3f} |")
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def fit_cpu() -> str:
    """Seconds per step of ``fit`` on a CPU beside a plain loop."""
    found = result("fit_overhead_cpu")
    lines = ["| | per step | over the plain loop |", "|---|---|---|"]
    lines += [
        f"| {row['name']} | {row['microseconds_per_step'] / 1000:.2f} ms | {row['ratio']:.2f}× |"
        for row in found["rows"]
    ]
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def off_range() -> str:
    """Coverage of 95 % intervals of tables up to half a range outside the training range."""
    found = result("off_range")
    lines = ["| function | n | method | seeds | inside | outside | width inside | ¼ range outside | ½ range outside |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        coverage = [f"{row[f'coverage_{region}']:.0%}" for region in ("inside", "outside")]
        widths = [f"{row[f'width_{place}']:.1f}×" for place in ("inside", "quarter", "half")]
        cells = [row["function"], str(row["n"]), row["method"], str(row["seeds"]), *coverage, *widths]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def files() -> str:
    """Every file of results, with the command that wrote it."""
    lines = ["| file | rows | command | date | hardware |", "|---|---|---|---|---|"]
    for path in sorted(RESULTS.glob("*.json")):
        found = result(path.stem)
        hardware = found.get("hardware") or found.get("machine", "")
        cells = [
            f"[`{path.stem}`](../benchmarks/results/{path.name})",
            str(len(found["rows"])),
            f"`{found.get('command', '')}`".replace("``", ""),
        ]
        lines.append(f"| {' | '.join(cells)} | {found['date']} | {hardware} |")
    return "\n".join(lines)


BOARD: dict[str, Callable[[], str]] = {
    "classes": classes,
    "files": files,
    "fit_cpu": fit_cpu,
    "laplace": laplace,
    "losses": losses,
    "many_networks": many_networks,
    "off_range": off_range,
    "published": published,
    "uci_methods": uci_methods,
}
