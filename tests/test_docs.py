"""The code in the README and the guide runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs_in_order(page: Path) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_public_names_exist_and_nothing_heavy_comes_with_the_import() -> None:
    """Every public name can be had; matplotlib and Fabric are imported when they are needed."""
    code = (
        "import sys, credo\n"
        "assert not {'matplotlib', 'lightning_fabric', 'sklearn', 'pandas', 'jinja2'} & set(sys.modules)\n"
        "assert all(hasattr(credo, name) for name in dir(credo))\n"
        "assert not hasattr(credo, 'nonsense')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
