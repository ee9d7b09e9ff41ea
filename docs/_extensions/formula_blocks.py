"""Formulas of docstrings, which are indented paragraphs in plain Unicode, as blocks that keep their characters.

Characters that mean something else to reStructuredText are escaped: bars, as in ``|x|``, and initials of authors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"^\s*(Args|Attributes|Returns|Yields|Raises|Example|Examples|References?|Notes?|Warns):\s*$")


def mark_formulas(lines: list[str]) -> list[str]:
    """Turn indented paragraphs that no directive, list or section opens into literal blocks."""
    marked: list[str] = []
    previous, i = "", 0  # the last line of text
    while i < len(lines):
        line = lines[i]
        indent = len(line) - len(line.lstrip())
        base = len(previous) - len(previous.lstrip())
        opens = line.strip() and marked and not marked[-1].strip() and indent >= base + 4
        if opens and not SECTION.match(previous) and not re.match(r"\s*(\.\. |[-*] |\d+\. )", previous):
            block = []
            while i < len(lines) and (not lines[i].strip() or len(lines[i]) - len(lines[i].lstrip()) >= indent):
                block.append(lines[i])
                i += 1
            if previous.rstrip().endswith("::") or block[0].lstrip().startswith((">>>", ".. ")):
                marked += block
            else:
                marked += [" " * base + ".. code-block:: text", " " * base + "   :class: formula", ""]
                marked += [(" " * base + "   " + line[indent:]).rstrip() for line in block]
                marked.append("")
            continue
        marked.append(line)
        previous = line if line.strip() else previous
        i += 1
    return marked


def escape(line: str) -> str:
    """Escape the bars of ``|μ|``, which would be a substitution; what stands between backticks is left alone.

    An initial at the start of a line, as in ``C. M. Bishop``, would be the start of an enumeration.
    """
    line = re.sub(r"^(\s*[A-Z])\. ", r"\1\\. ", line)
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(part if part.startswith("`") else re.sub(r"(?<!\\)\|", r"\|", part) for part in parts)


def escape_text(lines: list[str]) -> list[str]:
    """Escape all lines but those of literal blocks and examples."""
    escaped, literal = [], -1
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= literal:
            literal = -1
        escaped.append(line if literal >= 0 or line.lstrip().startswith((">>>", "...")) else escape(line))
        if line.lstrip().startswith((".. code-block", ".. math")) or line.rstrip().endswith("::"):
            literal = indent
    return escaped


def process(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Event ``autodoc-process-docstring``, before napoleon reads the sections."""
    lines[:] = escape_text(mark_formulas(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
