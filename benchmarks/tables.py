"""Write the tables of README and docs from ``benchmarks/results/*.json``.

    python benchmarks/tables.py [--check]

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def step_and_predict() -> str:
    """Ratios to the deterministic network, a column for every machine."""
    columns = {
        "CPU": result("step_and_predict_cpu"),
        "GPU, float32": result("step_and_predict_gpu"),
        "GPU, TF32": result("step_and_predict_gpu_tf32"),
    }
    rows = [(row["task"], row["name"]) for row in columns["CPU"]["rows"]]
    lines = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for task, name in rows:
        values = [
            next((f"{row['ratio']:.2f}×" for row in r["rows"] if (row["task"], row["name"]) == (task, name)), "")
            for r in columns.values()
        ]
        lines.append(f"| {task} | {name} | {' | '.join(values)} |")
    machines = "; ".join(f"{title}: {r['hardware']}, {r['date']}" for title, r in columns.items())
    return "\n".join([*lines, "", f"{machines}."])


TABLES: dict[str, Callable[[], str]] = {"step_and_predict": step_and_predict}


def filled(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> int:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    print("up to date" if not stale else f"changed: {', '.join(stale)}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
