"""Models to serve, made once per session, and servers of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .live import Live


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``regression``, ``classification`` and ``other``, the first with another seed."""
    from .live import save_run

    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about how columns are read
        patch.setattr("credo.report.render", lambda *rows, **options: "<p>a report</p>")
        save_run(folder / "regression")
        save_run(folder / "classification", task="classification")
        save_run(folder / "other", seed=1)
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Live]:
    """A server of a regression with small limits."""
    from .live import running

    with running(runs / "regression", max_body=2**18, max_rows=500) as live:
        yield live


@pytest.fixture(scope="module")
def class_server(runs: Path) -> Iterator[Live]:
    """A server of a classification."""
    from .live import running

    with running(runs / "classification") as live:
        yield live
