"""Tables of results: filled in from ``benchmarks/results`` as pages are read, and a page for every file of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fill_tables
from api_reference import write
from board import RESULTS, result
from sphinx.application import Sphinx


def cell(value: Any) -> str:
    """A value of a row, short."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict | list):
        return f"`{json.dumps(value)[:80]}`"
    return "" if value is None else str(value).replace("|", r"\|")


def page(name: str) -> str:
    """All rows of a file of results."""
    found = result(name)
    facts = [f"- {key}: {value}" for key, value in found.items() if isinstance(value, str) and key != "name"]
    columns = list(dict.fromkeys(key for row in found["rows"] for key in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(row.get(column)) for column in columns)} |" for row in found["rows"]]
    return "\n".join(["---", "orphan: true", "---", "", f"# {name}", "", *facts, "", *lines, ""])


def generate(app: Sphinx) -> None:
    """Event ``builder-inited``: write the pages of the files."""
    folder = Path(app.srcdir) / "results"
    folder.mkdir(exist_ok=True)
    for path in sorted(RESULTS.glob("*.json")):
        write(folder / f"{path.stem}.md", page(path.stem))


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Event ``source-read``: what is between ``<!-- table: NAME -->`` and ``<!-- end -->``."""
    if "<!-- table: " in source[0]:
        source[0] = fill_tables.filled(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", generate)
    app.connect("source-read", fill, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
