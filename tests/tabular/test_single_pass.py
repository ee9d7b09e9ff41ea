"""``credo fit`` does each expensive step once: read, choose the task, parse, predict, bootstrap."""

from __future__ import annotations

from collections import Counter
from pkgutil import resolve_name

import pandas as pd
import pytest
from typer.testing import CliRunner

from credo import cli
from credo.report.page import Section
from credo.tabular.columns import Columns
from tabular.hostile import TARGET, good_columns

STEPS = {
    "credo.tabular.files.open_table": 1,
    "credo.tabular.runs.guess_task": 1,
    "credo.tabular.column_types.parse_columns": 2,  # the training rows, and at most 1,000 in search of leaks
    "credo.tabular.columns.parse_columns": 2,  # the held-out rows, and again at most 1,000
    "credo.tabular.base.TableEstimator._predict": 1,
    "credo.metrics.scores": 1,
    "credo.report.render": 1,
}


def count_calls(monkeypatch, path, calls):
    original = resolve_name(path)

    def counted(*args, **kwargs):
        calls[path] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(path, counted)


def test_fit_does_every_step_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(good_columns(60)).to_csv("data.csv", index=False)
    calls = Counter()
    # Explanations predict permuted tables, many times.
    monkeypatch.setattr("credo.report.rendering.explanation_section", lambda result: Section("drivers", "Drivers", []))
    for path in STEPS:
        count_calls(monkeypatch, path, calls)
    result = CliRunner().invoke(cli.app, ["fit", "data.csv", "--target", TARGET, "--epochs", "2"])
    assert result.exit_code == 0, result.output
    assert calls == STEPS


def test_learn_and_read_equals_learn_then_read(mixed):
    columns, rows = Columns.learn_and_read(mixed)
    with pytest.warns(UserWarning, match="count as missing"):  # the word and the infinity, in every table
        again = columns.read(mixed)
    for first, second in zip(rows, again, strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(first), pd.DataFrame(second), check_exact=True)


@pytest.fixture
def mixed():
    frame = pd.DataFrame(good_columns(60))
    return frame.assign(
        text=["1", "2", None, "not a number", *["3.5"] * 56],
        day=pd.date_range("2020-01-01", periods=60, freq="37D").astype(str),
        infinite=[float("inf"), *range(59)],
        constant=1,
        flag=[True, False, None] * 20,
    )
