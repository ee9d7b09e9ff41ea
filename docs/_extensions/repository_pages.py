"""Pages that read in the repository as well as on the site.

Markdown pages are written for the repository's own viewer; before Sphinx reads them,

- a list of links between ``<!-- contents -->`` and ``<!-- end -->`` becomes the table of contents of its page too
  (``<!-- contents: cards -->``: shown as cards);
- pages of ``PAGES`` take the text of a file outside docs, such as CHANGELOG.md, and keep their contents;
- links to files that the site does not have lead to the page that has their text, or become plain text;
- links to ``examples.md`` lead to the gallery, and those to an example or a file of results to its page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGES = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the site and the files of the repository that they show."""
GENERATED = {"docs/examples.md": "docs/auto_examples/index.rst", "README.md": "docs/index.md"}
"""Files that people link to in the repository, and the page of the site that takes their place."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
CONTENTS = re.compile(r"<!-- contents(?P<options>[^>]*)-->\n(?P<list>.*?)<!-- end -->", re.DOTALL)


def relative(target: str, folder: str) -> str:
    """A path of the repository as seen from one of its folders."""
    return PurePosixPath(os.path.relpath(target, folder or ".")).as_posix()


def rewrite_links(text: str, origin: str, page: str) -> str:
    """Links of the file ``origin`` of the repository, for a page of the site at ``page``, both relative to the root."""
    shown = {file: f"docs/{name}.md" for name, file in PAGES.items()}

    def rewrite(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(PurePosixPath(origin).parent / target)
        path = GENERATED.get(path, shown.get(path, path))
        path = re.sub(r"^docs/examples/(\w+/plot_\w+)\.py$", r"docs/auto_examples/\1.rst", path)
        path = re.sub(r"^benchmarks/results/(\w+)\.json$", r"docs/results/\1.md", path)
        if path.startswith("docs/") and path.endswith((".md", ".rst")):
            anchor = "" if path in GENERATED.values() else anchor
            return f"[{label}]({relative(path, str(PurePosixPath(page).parent))}{anchor})"
        if label.strip("`") in (path, target):
            return f"`{path}`"
        return label if "`" in label else f"{label} (`{path}`)"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts)


def contents(text: str) -> str:
    """Add a hidden toctree after every list of links that is marked as contents."""

    def extend(match: re.Match[str]) -> str:
        links = re.findall(r"^\s*(?:[-*|]|\d+\.) *\**\[([^\]]+)\]\(([^)#]+)\)", match["list"], flags=re.MULTILINE)
        entries = [f"{label} <{re.sub(r'[.](md|rst)$', '', target)}>" for label, target in links]
        style = "{.cards}\n" if "cards" in match["options"] else ""
        return f"{style}{match['list']}\n```{{toctree}}\n:hidden:\n\n" + "\n".join(entries) + "\n```\n"

    return CONTENTS.sub(extend, text)


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Event ``source-read``."""
    if not str(app.env.doc2path(name)).endswith(".md"):
        return
    page = f"docs/{name}.md"
    text = source[0]
    if name in PAGES:
        origin = PAGES[name]
        text = (Path(app.srcdir).parent / origin).read_text(encoding="utf-8")
        app.env.note_dependency(str(Path(app.srcdir).parent / origin))
        text = rewrite_links(text, origin, page) + "\n" + "".join(match[0] for match in CONTENTS.finditer(source[0]))
    source[0] = contents(rewrite_links(text, page, page))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
