"""The API reference: a page for every public object, written before Sphinx reads its sources."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

from api_objects import PublicObject, parts, public_modules, public_objects
from formula_blocks import escape
from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
FOLDER = "generated"


def title(text: str) -> str:
    """A heading of reStructuredText; names with underscores at their ends would be links."""
    escaped = text.replace("_", r"\_")
    return f"{escaped}\n{'=' * len(escaped)}\n\n"


def backreferences(thing: PublicObject) -> str:
    """The examples that use an object, by the names under which sphinx-gallery may have found it."""
    names = dict.fromkeys([thing.name, f"{thing.value.__module__}.{thing.value.__qualname__}"])
    return f"\n.. minigallery:: {' '.join(names)}\n   :add-heading: Examples\n   :heading-level: -\n"


def object_page(thing: PublicObject) -> str:
    """The page of a class, a function, an exception, a constant or a module."""
    text = f"{title(thing.name)}.. currentmodule:: {thing.name.rpartition('.')[0]}\n\n"
    if thing.kind == "module":
        return f"{text}{inspect.getdoc(thing.value)}\n"
    if thing.kind == "data":
        described = textwrap.indent(thing.description, "   ")
        return f"{text}.. py:data:: {thing.name}\n   :type: {type(thing.value).__name__}\n\n{described}\n"
    text += f".. auto{thing.kind}:: {thing.name}\n"
    members = thing.members() if thing.kind != "function" else []
    if members:
        text += f"   :members: {', '.join(members)}\n"
    return text + backreferences(thing)


def row(thing: PublicObject) -> str:
    """A line of the table of a package."""
    return f"   * - :doc:`{thing.name} <{page_name(thing)}>`\n     - {escape(thing.summary)}\n"


def page_name(thing: PublicObject) -> str:
    """The page of an object; a package has its own."""
    if thing.kind == "module" and thing.value.__name__.removeprefix("credo.") in public_modules():
        return f"/api/{FOLDER}/{thing.value.__name__}.package"
    return f"/api/{FOLDER}/{thing.name}"


def package_page(name: str, things: list[PublicObject]) -> str:
    """The page of a package: the first paragraph of its docstring and the table of its objects."""
    module = public_modules()[name]
    head = (inspect.getdoc(module) or "").partition("\n\n")[0]
    rows = "".join(row(thing) for thing in things)
    text = f"{title(module.__name__)}{head}\n\n.. list-table::\n   :widths: 40 60\n   :class: api-table\n\n{rows}\n"
    pages = [page_name(thing) for thing in things if owned(thing, name)]
    lines = "\n".join(f"   {page}" for page in pages if not page.endswith(".package"))
    return f"{text}\n.. toctree::\n   :hidden:\n\n{lines}\n" if lines else text


def owned(thing: PublicObject, package: str) -> bool:
    """Whether the page of an object belongs below this package; ``credo`` has those that no other package lists."""
    if package != "credo":
        return True
    return not any(
        thing.value is other.value and thing.name == other.name
        for name, things in public_objects().items()
        if name != "credo"
        for other in things
    )


def write(path: Path, text: str) -> None:
    """Write a page if it has changed, so that Sphinx reads only those again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def generate(app: Sphinx) -> None:
    """Event ``builder-inited``: write the pages, remove those of names that no longer exist."""
    folder = Path(app.srcdir) / "api" / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    packages = public_objects()
    listed = [name for names in parts().values() for name in names]
    pages = {f"{public_modules()[name].__name__}.package": package_page(name, packages[name]) for name in listed}
    for things in packages.values():
        pages.update({thing.name: object_page(thing) for thing in things if page_name(thing).endswith(thing.name)})
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        write(folder / f"{name}.rst", text)
    LOGGER.info("API reference: %d objects in %d packages", len(pages) - len(listed), len(listed))


def fill_index(app: Sphinx, name: str, source: list[str]) -> None:
    """Event ``source-read``: the packages by part, below the text of api/index.md."""
    if name != "api/index":
        return
    modules = public_modules()
    for part, names in parts().items():
        full = [modules[module].__name__ for module in names]
        entries = "\n".join(f"{module} <{FOLDER}/{module}.package>" for module in full)
        lines = "\n".join(
            f"- [`{module}`]({FOLDER}/{module}.package.rst): {summary(modules[short])}"
            for module, short in zip(full, names, strict=True)
        )
        source[0] += f"\n## {part}\n\n{lines}\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def summary(module: Any) -> str:
    """The first line of a module's docstring."""
    return (inspect.getdoc(module) or "").partition("\n")[0].partition(": ")[2] or inspect.getdoc(module) or ""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", generate, priority=900)
    app.connect("source-read", fill_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
