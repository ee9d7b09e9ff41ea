"""The pages for people: their code runs, their links exist, and their version is that of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import credo

ROOT = Path(__file__).parent.parent
GENERATED = {"_build", "auto_examples", "results", "generated"}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not GENERATED & set(page.parts)),
]
THEORY = sorted((ROOT / "docs" / "theory").glob("*.md"))
LINK = re.compile(r"\]\((?!http)([^)\s#]*)(?:#([^)\s]+))?\)")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(page: Path) -> str:
    """The text of a page outside blocks of code and literals."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the repository and the site make them."""
    headings = re.findall(
        r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name == "generative.md" else page for page in PAGES],
    ids=page_name,
)
def test_every_python_block_runs_in_order(page: Path) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    """Files exist, and headings for the anchors of Markdown pages."""
    broken = []
    for target, anchor in LINK.findall(without_code(page)):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_every_test_that_the_theory_names_exists() -> None:
    """``tests/path.py::test_name`` or ``tests/path.py::TestClass::test_name``, at least one on each page."""
    for page in THEORY:
        named = re.findall(r"`(tests/[\w/]+\.py)::(?:(\w+)::)?(test_\w+)`", page.read_text(encoding="utf-8"))
        assert named or page.stem == "index"
        for path, group, name in named:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^class {group}\b" if group else r"", source, re.MULTILINE), (page.name, path, group)
            assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), (page.name, path, name)


def test_the_index_of_the_theory_links_to_every_page() -> None:
    index = (ROOT / "docs" / "theory" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in THEORY if page.stem != "index" and f"]({page.name})" not in index] == []


def test_links_from_the_readme_reach_every_page() -> None:
    """Directly or through other pages; those at the top of the repository directly."""
    readme = ROOT / "README.md"
    links = {
        page: {
            (page.parent / target).resolve() for target, _ in LINK.findall(page.read_text(encoding="utf-8")) if target
        }
        for page in PAGES
    }
    assert {*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "CITATION.cff"} - {readme} <= links[readme]
    reached, new = {readme}, {readme}
    while new:
        new = {target for page in new for target in links[page] if target in links} - reached
        reached |= new
    assert [page_name(page) for page in PAGES if page not in reached] == []


def test_changelog_and_citation_have_the_version_of_the_package() -> None:
    releases = re.findall(
        r"^## \[(\S+)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version, date = releases[1]
    assert releases[0] == ("Unreleased", "")
    assert version == credo.__version__
    assert f"\nversion: {version}\n" in citation
    assert f'\ndate-released: "{date}"\n' in citation


def test_public_names_exist_and_nothing_heavy_comes_with_the_import() -> None:
    """Every public name can be had; matplotlib and Fabric are imported when they are needed."""
    code = (
        "import sys, credo\n"
        "heavy = {'matplotlib', 'lightning_fabric', 'sklearn', 'pandas', 'jinja2', 'rich', 'scipy'}\n"
        "assert not heavy & set(sys.modules)\n"
        "assert all(hasattr(credo, name) for name in dir(credo))\n"
        "assert not hasattr(credo, 'nonsense')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
