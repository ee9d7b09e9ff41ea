"""Results of ``tables.py``: one file from many records, a picture of mean ranks, and the tables of the pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from board import RESULTS, result
from table_scores import LEVELS, Comparison, compare

from credo import plots

PICTURE = RESULTS.parent.parent / "docs" / "images" / "tables_ranks.png"
LABELS = {
    "credo": "credo",
    "catboost": "CatBoost",
    "ngboost": "NGBoost",
    "lightgbm": "LightGBM",
    "gp": "Gaussian process",
    "forest": "random forest",
    "linear": "linear",
}
RANKED = {
    "regression": ("nll", "crps", "rmse"),
    "counts": ("nll", "crps", "rmse"),
    "classes": ("nll", "brier", "accuracy", "ece"),
}
NAMES = {"nll": "NLL", "crps": "CRPS", "rmse": "RMSE", "brier": "Brier score", "accuracy": "accuracy", "ece": "ECE"}
NOT_SCORES = {"table", "task", "split", "method", "package", "hardware", "date", "notes", "error"}
ALL = "all tables"
PANELS = ((ALL, "nll"), ("regression", "nll"), ("regression", "crps"), ("classes", "nll"))


def merge(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per table and method: means over the splits that all methods of the table have.

    A method of which a split failed has no scores, only ``error``.
    """
    rows = []
    for table in dict.fromkeys(record["table"] for record in records):
        by_method: dict[str, dict[int, dict[str, Any]]] = {}
        for record in (record for record in records if record["table"] == table):
            by_method.setdefault(record["method"], {})[record["split"]] = record
        splits = sorted(set.intersection(*(set(found) for found in by_method.values())))
        for method in (name for name in LABELS if name in by_method and splits):
            found = [by_method[method][split] for split in splits]
            row = {name: found[0][name] for name in ("table", "task", "method")}
            row |= {"label": LABELS[method], "splits": len(splits)}
            errors = [record["error"] for record in found if "error" in record]
            if errors:
                row["error"] = errors[0]
            else:
                scores = [name for name in found[0] if name not in NOT_SCORES and found[0][name] is not None]
                row |= {name: float(f"{np.mean([record[name] for record in found]):.6g}") for name in scores}
            notes = {note for record in found for note in record.get("notes", [])}
            rows.append(row | ({"notes": sorted(notes)} if notes else {}))
    return sorted(rows, key=lambda row: (list(RANKED).index(row["task"]), row_count(rows, row["table"])))


def row_count(rows: list[dict[str, Any]], table: str) -> float:
    """The number of training rows of a table."""
    return float(next((row["rows"] for row in rows if row["table"] == table and "rows" in row), 0.0))


def collect(folders: list[Path], keep: bool = False) -> None:
    """Write ``benchmarks/results/tables.json`` and the picture of mean ranks from folders of records.

    Where several folders have the same fit, the first counts. With ``keep``, tables and methods without a record stay
    as they are in the file, for a method that is run again.
    """
    records: dict[str, dict[str, Any]] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        records.setdefault(path.name, json.loads(path.read_text(encoding="utf-8")))
    found = list(records.values())
    used: dict[str, list[str]] = {}
    for method, machine in sorted({(record["method"], record["hardware"]) for record in found}):
        used.setdefault(machine, []).append(LABELS[method])
    content = {
        "name": "tables",
        "command": "python benchmarks/tables.py run",
        "date": max(record["date"] for record in found),
        "hardware": "; ".join(f"{', '.join(names)}: {machine}" for machine, names in used.items()),
        "packages": ", ".join(sorted({record["package"] for record in found})),
        "rows": merge(found),
    }
    if keep:
        earlier, new = result("tables"), {(row["table"], row["method"]): row for row in content["rows"]}
        rows = [new.get((row["table"], row["method"]), row) for row in earlier["rows"]]
        content = {**earlier, "date": content["date"], "rows": rows}
    (RESULTS / "tables.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with plots.paper():
        draw({panel: comparison(content["rows"], *panel) for panel in PANELS}).savefig(PICTURE, dpi=130)
    for task, score in PANELS:
        print(task, score, comparison(content["rows"], task, score))


def common(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of tables that every method was run on."""
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row["table"], set()).add(row["method"])
    every = set.union(*methods.values())
    return [row for row in rows if methods[row["table"]] == every]


def values(rows: list[dict[str, Any]], task: str, score: str) -> dict[str, list[float]]:
    """A score of every method on the tables of a task, or ``ALL``, that all were run on; NaN where a fit failed."""
    found: dict[str, list[float]] = {}
    chosen = (row for row in common(rows) if task in (ALL, row["task"]))
    for row in sorted(chosen, key=lambda row: str(row["table"])):
        found.setdefault(row["method"], []).append(row.get(score, float("nan")))
    return found


def comparison(rows: list[dict[str, Any]], task: str, score: str) -> Comparison:
    """Mean ranks by one score."""
    sign = -1.0 if score == "accuracy" else 1.0
    return compare({name: [sign * value for value in found] for name, found in values(rows, task, score).items()})


def cliques(found: Comparison) -> Iterator[tuple[float, float]]:
    """The first and last mean rank of the largest sets of methods that Nemenyi's test does not tell apart."""
    ranks, last = list(found.ranks.values()), -1
    for i, rank in enumerate(ranks):
        j = max(k for k in range(len(ranks)) if ranks[k] - rank <= found.critical_difference)
        if j > i and j > last:
            yield rank, ranks[j]
        last = max(last, j)


def draw(found: dict[tuple[str, str], Comparison]) -> Any:
    """Critical-difference diagrams (Demšar 2006), one panel for each comparison."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(8.0, 4.4), layout="constrained")
    for axes, ((task, score), one) in zip(panels.flat, found.items(), strict=True):
        count = len(one.ranks)
        axes.set(xlim=(0.8, count + 0.2), ylim=(count + 0.2, -1.0), xticks=range(1, count + 1), yticks=[])
        axes.set_title(f"{task}, {NAMES[score]}: {one.tables} tables, CD {one.critical_difference:.1f}")
        axes.spines["left"].set_visible(False)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        for i, (method, rank) in enumerate(one.ranks.items()):
            shift, side = ((-6, 0), "right") if rank > (count + 1) / 2 else ((6, 0), "left")
            style = {"fontsize": 8, "fontweight": "bold" if method == "credo" else "normal", "bbox": box}
            axes.plot([rank, rank], [-0.2, i + 0.5], color="0.6", linewidth=0.7, zorder=1)
            axes.plot(rank, i + 0.5, "o", color="C1" if method == "credo" else "0.3", markersize=4)
            axes.annotate(
                f"{LABELS[method]} {rank:.1f}",
                (rank, i + 0.5),
                shift,
                textcoords="offset points",
                va="center",
                ha=side,
                **style,
            )
        for i, (first, last) in enumerate(cliques(one)):
            axes.plot([first - 0.04, last + 0.04], [-0.2 - 0.3 * i] * 2, color="0.1", linewidth=2.5)
    return figure


def ranks() -> str:
    """Mean ranks by every score, and the median of the seconds."""
    found = result("tables")
    rows = found["rows"]
    columns = [(ALL, "nll"), *((task, score) for task, scores in RANKED.items() for score in scores)]
    compared = {column: comparison(rows, *column) for column in columns}
    head = [f"{task} ({compared[task, score].tables}), {NAMES[score]}" for task, score in columns]
    lines = [f"| mean rank | {' | '.join(head)} | CPU seconds, median (largest) |", f"|---|{'---|' * (len(head) + 1)}"]
    for method in (name for name in LABELS if any(row["method"] == name for row in rows)):
        best = [min(one.ranks, key=one.ranks.__getitem__) == method for one in compared.values()]
        cells = [
            f"**{one.ranks[method]:.1f}**" if first else f"{one.ranks[method]:.1f}"
            for one, first in zip(compared.values(), best, strict=True)
        ]
        seconds = [row["fit_seconds"] for row in common(rows) if row["method"] == method and "fit_seconds" in row]
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} | {np.median(seconds):.2g} ({max(seconds):.0f}) |")
    tests = [f"{one.p_value:.1g}" for one in compared.values()]
    lines.append(f"| *Friedman's test, p* | {' | '.join(tests)} | |")
    distances = [f"{one.critical_difference:.1f}" for one in compared.values()]
    lines.append(f"| *critical difference* | {' | '.join(distances)} | |")
    failed = [f"{LABELS[row['method']]} on {row['table']} ({row['error']})" for row in rows if "error" in row]
    notes = f" Failed, and ranked last: {', '.join(failed)}." if failed else ""
    left_out = dict.fromkeys(row["table"] for row in rows if row not in common(rows))
    notes += f" Not run by all methods, and left out here: {', '.join(left_out)}." if left_out else ""
    return "\n".join([*lines, "", f"{found['hardware']}, {found['date']}. {found['packages']}.{notes}"])


def coverage() -> str:
    """Coverage and width of intervals, over all tables of quantities."""
    rows = [row for row in common(result("tables")["rows"]) if row["task"] != "classes" and "error" not in row]
    titles = [f"{level:.0%} intervals cover" for level in LEVELS] + ["lowest coverage of 95 %"]
    titles += [f"width at {level:.0%}" for level in LEVELS]
    lines = [f"| | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = [f"{np.mean([row[f'coverage_{100 * level:.0f}'] for row in own]):.1%}" for level in LEVELS]
        lowest = min(own, key=lambda row: float(row["coverage_95"]))
        cells.append(f"{lowest['coverage_95']:.0%} ({lowest['table']})")
        for level in LEVELS:
            widths = [row[f"width_{100 * level:.0f}"] / row["target_std"] for row in own]
            cells.append(f"{np.mean(widths):.2f}")
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_table(score: str | None) -> str:
    """A score of every method on every table, the best in bold; ``None``: RMSE, or the accuracy."""
    rows = result("tables")["rows"]
    methods = [name for name in LABELS if any(row["method"] == name for row in rows)]
    lines = [
        f"| table | training rows | splits | {' | '.join(LABELS[name] for name in methods)} |",
        f"|---|---|---|{'---|' * len(methods)}",
    ]
    for table in dict.fromkeys(row["table"] for row in rows):
        own = {row["method"]: row for row in rows if row["table"] == table}
        first = next(iter(own.values()))
        key = score or ("accuracy" if first["task"] == "classes" else "rmse")
        if not any(key in row for row in own.values()):
            continue
        best = (max if key == "accuracy" else min)(row[key] for row in own.values() if key in row)
        cells = []
        for method in methods:
            value = own.get(method, {}).get(key)
            text = "" if value is None else f"{value:.1%}" if key == "accuracy" else f"{value:.4g}"
            cells.append(f"**{text}**" if value == best else text or ("failed" if method in own else "not run"))
        task = f" ({first['task']})" if first["task"] == "counts" and key != "crps" else ""
        lines.append(f"| {table}{task} | {row_count(rows, table):.0f} | {first['splits']} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLE_BOARD: dict[str, Callable[[], str]] = {
    "tables_ranks": ranks,
    "tables_coverage": coverage,
    "tables_nll": lambda: by_table("nll"),
    "tables_crps": lambda: by_table("crps"),
    "tables_error": lambda: by_table(None),
}
