"""The traps of docs/traps.md and the tests that carry their numbers belong together."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "traps.md"


def page_sections() -> dict[int, str]:
    parts = re.split(r"^### (\d+)\. ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def numbers_in_tests() -> set[int]:
    source = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    return {int(number) for number in re.findall(r"^def test_trap_(\d+)_", source, flags=re.MULTILINE)}


def test_every_trap_on_the_page_has_a_test() -> None:
    assert list(page_sections()) == list(range(1, 29))
    assert numbers_in_tests() == set(page_sections())


def test_every_trap_names_its_tests() -> None:
    for number, text in page_sections().items():
        assert all(f"**{part}:**" in text for part in ("Wrong", "See it", "credo", "Test")), number
        assert f"`trap_{number:02}`" in text, number
