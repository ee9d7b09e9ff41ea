"""Fixtures that call commands in an empty folder, and small runs made once per session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.tables import PAGE, table
from credo import cli
from credo.tabular.runs import fit_run
from tabular.hostile import TARGET


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli.app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.fixture
def quick_report(monkeypatch):
    """Replace the report by a constant; the list of its calls."""
    calls = []

    def render(*rows, **options):
        calls.append((rows, options))
        return PAGE

    monkeypatch.setattr("credo.report.render", render)
    monkeypatch.setattr("credo.report.render_comparison", render)
    return calls


@pytest.fixture(scope="session")
def stored_runs(tmp_path_factory):
    """A run of each task, to copy."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("credo.report.render", lambda *rows, **options: PAGE)
        for task in ("regression", "classification"):
            fit_run(table(task=task), TARGET, epochs=20, source="data.csv").save(folder / task)
    return folder


@pytest.fixture
def runs(stored_runs, tmp_path):
    """A run of each task, in the folders ``regression`` and ``classification`` of the working folder."""
    for folder in stored_runs.iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


@pytest.fixture
def data(tmp_path) -> Path:
    """A valid table as a file in the working folder."""
    table().to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"
