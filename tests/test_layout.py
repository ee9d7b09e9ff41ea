"""The layout of the package: no import cycles, the layers of docs/design.md, short files, tests that mirror them."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "credo"
TESTS = ROOT / "tests"
DESIGN = ROOT / "docs" / "design.md"
MAX_LINES = 400
NOT_MIRRORED = {"traps"}  # grouped by the numbers of docs/traps.md

Graph = dict[str, set[str]]


def top_level(path: Path, package: Path) -> str:
    """The package or module of credo that a file belongs to; ``credo`` for its ``__init__.py``."""
    name = path.relative_to(package).with_suffix("").parts[0]
    return package.name if name == "__init__" else name


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Dotted names of all imports: at the top, in functions and below ``if TYPE_CHECKING``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not resolved here"
            if node.module == package:
                yield from (f"{package}.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def import_graph(package: Path) -> Graph:
    """Which top-level packages and modules each of them imports.

    ``from credo import X`` counts as an import of ``X`` if there is such a module, and of ``credo`` itself otherwise.
    """
    paths = sorted(package.rglob("*.py"))
    graph: Graph = {top_level(path, package): set() for path in paths}
    for path in paths:
        importer = top_level(path, package)
        for name in imported_modules(path.read_text(encoding="utf-8"), package.name):
            root, _, rest = name.partition(".")
            if root == package.name:
                first = rest.split(".")[0]
                graph[importer].add(first if first in graph else root)
        graph[importer].discard(importer)
    return graph


def find_cycle(graph: Graph) -> list[str]:
    """The modules of one cycle, the first one repeated at its end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # graphlib lists an imported module before its importer
    return []


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph(PACKAGE)


def test_no_import_cycles(graph: Graph) -> None:
    cycle = find_cycle(graph)
    assert not cycle, "import cycle: " + " -> ".join(cycle)


def test_cycles_are_found_in_functions_and_type_checking_blocks(tmp_path: Path) -> None:
    package = tmp_path / "credo"
    package.mkdir()
    (package / "__init__.py").write_text("from credo.a import A\n")
    (package / "a.py").write_text("def f():\n    import credo.b.deep\n")
    (package / "b").mkdir()
    (package / "b" / "deep.py").write_text("if TYPE_CHECKING:\n    from credo import c\n")
    (package / "c.py").write_text("from credo.errors import E\n")
    (package / "errors.py").write_text("")
    graph = import_graph(package)
    assert graph == {"credo": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"errors"}, "errors": set()}
    assert find_cycle(graph) == []
    cycle = find_cycle({**graph, "c": {"a"}})
    assert cycle[0] == cycle[-1]
    assert set(pairwise(cycle)) == {("a", "b"), ("b", "c"), ("c", "a")}


def documented_layers() -> dict[str, int]:
    """The layer of every package and module, from the map in docs/design.md; imports go to the same layer or below."""
    text = DESIGN.read_text(encoding="utf-8")
    table = text.split("<!-- map -->")[1].split("<!-- end -->")[0].strip().splitlines()
    names = [re.findall(r"`(\w+)`", row.split("|")[2]) for row in table[2:]]
    return {name: layer for layer, row in enumerate(names) for name in row}


def test_the_map_lists_every_package(graph: Graph) -> None:
    assert set(documented_layers()) == set(graph), "docs/design.md and src/credo differ"


def test_imports_follow_the_map(graph: Graph) -> None:
    layers = documented_layers()
    wrong = [
        f"{importer} -> {imported}"
        for importer, names in graph.items()
        for imported in sorted(names)
        if layers[importer] < layers[imported]
    ]
    assert not wrong, f"imports from a later row of the map in docs/design.md: {wrong}"


def test_files_are_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > MAX_LINES}
    assert not long, f"files of more than {MAX_LINES} lines: {long}"


def test_test_folders_mirror_the_package() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/*.py")}
    names = set(import_graph(PACKAGE))
    assert folders - NOT_MIRRORED <= names, "test folders without a package or module of credo of the same name"


def test_benchmarks_import_what_there_is() -> None:
    """A benchmark has its neighbors, the package and libraries, of which some are not installed; none is run here."""
    folder = ROOT / "benchmarks"
    neighbors = {path.stem for path in folder.glob("*.py")}
    missing = []
    for path in sorted(folder.glob("*.py")):
        top = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
        for node in top:
            root = str(node.module).split(".")[0]
            if root not in neighbors and importlib.util.find_spec(root) is None:
                missing.append(f"{path.name}: {node.module}")
    assert not missing
