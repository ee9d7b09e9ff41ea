"""Reports whose explanations are short, but in the tests of the explanations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

SHORT = {"_MAX_ROWS": 20, "_PERMUTATIONS": 1, "_SAMPLES": 5}


@pytest.fixture(autouse=True, scope="module")
def short_explanations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Permute few rows once: what explanations cost is most of the time of a report on a small table."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] != "test_explanations":
            for name, value in SHORT.items():
                patch.setattr(f"credo.report.explanations.{name}", value)
        yield
