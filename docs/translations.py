"""Keep the Korean catalogues in step with the English pages.

    python docs/translations.py update     # new strings are added empty, changed ones are marked fuzzy
    python docs/translations.py check      # list strings without a translation, fuzzy ones, those that are gone, and
                                           # translations with other formulas, code or links, or with a stray asterisk
    python docs/translations.py check --strict     # the same, and exit with 1 if there are any

The pages of ``TRANSLATED`` are translated; the rest of the Korean site is in English.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

DOCS = Path(__file__).parent
CATALOGUES = DOCS / "locale" / "ko" / "LC_MESSAGES"
TRANSLATED = ("index", "start/*", "choose", "theory/*", "glossary")
"""Patterns of the pages that are translated."""
FURTHER = {"index": ["Examples"]}
"""Strings that are missing in the templates: titles of pages that are generated."""
DATED = (
    '"POT-Creation-Date',
    '"PO-Revision-Date',
    '"Generated-By',
    '"Last-Translator',
    '"Report-Msgid',
    '"Language-Team',
)
MARKDOWN = MarkdownIt("commonmark").use(dollarmath_plugin)
HEADER = """\
# Korean translation of the documentation of credo.
# Copyright (C) 2026 the credo developers. The license is that of credo.
#"""


def templates() -> Iterator[tuple[str, Catalog]]:
    """The strings of the pages to translate, by the names of the pages."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sphinx", "-q", "-b", "gettext", "-t", "catalogues", str(DOCS), folder]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # warnings are those of the build of the site
        for path in sorted(Path(folder).rglob("*.pot")):
            name = path.relative_to(folder).with_suffix("").as_posix()
            if any(fnmatch(name, pattern) for pattern in TRANSLATED):
                with path.open("rb") as file:
                    template = read_po(file)
                for text in FURTHER.get(name, ()):
                    template.add(text)
                yield name, template


def updated(name: str, template: Catalog) -> Catalog:
    """The catalogue of a page with the strings of its template."""
    path = CATALOGUES / f"{name}.po"
    catalog = Catalog(locale="ko", project="credo", charset="utf-8", fuzzy=False)
    if path.exists():
        with path.open("rb") as file:
            catalog = read_po(file, locale="ko")
    catalog.update(template, update_creation_date=False)
    catalog.header_comment = HEADER
    for message in catalog:
        if message.id and not message.string and re.fullmatch(r"(`[^`]*`[, ]*|[\d,.]+)+", str(message.id)):
            message.string = message.id  # code and numbers
    return catalog


def write(name: str, catalog: Catalog) -> None:
    """Write a catalogue without dates, positions and fields that nobody fills in."""
    path = CATALOGUES / f"{name}.po"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_po(file, catalog, width=120, no_location=True, omit_header=False, include_previous=False)
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(DATED)]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")


def inline(text: str) -> list[Token]:
    """The parts of a string of Markdown."""
    return MARKDOWN.parseInline(text)[0].children or []


def fixed(text: str) -> set[str]:
    """What a translation has too, maybe more often: formulas, code and the targets of links and images."""
    if "\\" in text and "$" not in text and "`" not in text:
        return {" ".join(text.split())}  # a formula on lines of its own
    literal = {token.content for token in inline(text) if token.type in ("math_inline", "code_inline")}
    links = [token.attrs for token in inline(text) if token.attrs]
    return literal | {str(link.get("href", link.get("src"))) for link in links}


def defects(original: str, translation: str) -> Iterator[str]:
    """Differences between a string and its translation that no translation should have."""
    expected, found = fixed(original), fixed(translation)
    yield from (f"not in the translation: {part} of: {original}" for part in sorted(expected - found))
    yield from (f"only in the translation: {part} of: {original}" for part in sorted(found - expected))
    if "$" in original or "\\" not in original:  # not a formula on lines of its own
        # "**증거(evidence)**는" is not bold, because a letter follows the asterisks; "**증거**(evidence)는" is
        stray = [token.content for token in inline(translation) if token.type == "text" and "*" in token.content]
        yield from (f"stray asterisk: {text}" for text in stray)


def stale(catalog: Catalog) -> Iterator[str]:
    """What a translator has to do."""
    for message in catalog:
        if message.id and message.fuzzy:
            yield f"changed: {message.id}"
        elif message.id and not message.string:
            yield f"missing: {message.id}"
        elif message.id:
            yield from defects(str(message.id), str(message.string))
    for message in catalog.obsolete.values():
        yield f"gone: {message.id}"


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["update"], ["check"]):
        print(__doc__)
        return 2
    found = 0
    for name, template in templates():
        catalog = updated(name, template)
        if arguments[0] == "update":
            catalog.obsolete.clear()
            write(name, catalog)
        lines = list(stale(catalog))
        found += len(lines)
        translated = sum(bool(message.id and message.string and not message.fuzzy) for message in catalog)
        print(f"{name}: {translated} translated, {len(lines)} to do")
        if arguments[0] == "check" and translated:
            print("".join(f"    {' '.join(line.split())[:110]}\n" for line in lines), end="")
    return int(bool(found) and "--strict" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
