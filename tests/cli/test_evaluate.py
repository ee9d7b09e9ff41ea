"""``credo evaluate`` and ``credo report``: scores and reports on held-out rows."""

from __future__ import annotations

import json

import pytest
import torch

import credo
from cli.tables import PAGE, table
from credo import metrics
from tabular.hostile import TARGET


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_scores_match_the_library(call, runs, task):
    frame = table(30, task)
    frame.to_csv("test.csv", index=False)
    result = call("evaluate", task, "test.csv", "--json", "--seed", 3)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert (printed["rows"], printed["report"], printed["notes"]) == (30, None, [])
    model = credo.load(runs / task)
    y = frame.pop(TARGET)
    truth = torch.tensor(y.to_numpy()) if task == "regression" else torch.from_numpy(model.target_.encode(y))
    scores = metrics.scores(model.predict_dist(frame), truth, seed=3)
    for got, wanted in zip(printed["scores"], scores, strict=True):
        assert got["name"] == wanted.name
        # The targets went through float32 once, which moves them by 2⁻²⁴ of their scale.
        assert [got["value"], got["lower"], got["upper"]] == pytest.approx(
            [wanted.value, wanted.lower, wanted.upper], rel=1e-5
        )


def test_table_has_one_line_per_score(call, runs):
    table(30).to_csv("test.csv", index=False)
    result = call("evaluate", "regression", "test.csv", "--level", 0.8)
    assert result.exit_code == 0, result.output
    assert "Metrics on 30 rows of test.csv" in result.stdout
    assert "coverage (80 %)" in result.stdout
    assert call("evaluate", "regression", "test.csv", "--quiet").output == ""


def test_rows_without_a_target_are_left_out(call, runs):
    frame = table(30)
    frame.loc[:3, TARGET] = None
    frame.to_csv("test.csv", index=False)
    result = call("evaluate", "regression", "test.csv", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["rows"] == 26
    assert printed["notes"] == ["Left out, because the target is missing: 4 of 30 rows."]


def test_rows_outside_the_training_range_give_a_note(call, runs):
    frame = table(30)
    frame.loc[[1, 2], "x"] = [50.0, -50.0]
    frame.to_csv("test.csv", index=False)
    result = call("evaluate", "regression", "test.csv", "--json")
    assert result.exit_code == 0, result.output
    told = "2 rows lie outside the training range in 'x': predictions there are extrapolations."
    assert json.loads(result.stdout)["notes"] == [told]


def test_report_on_the_rows(call, runs, quick_report):
    table(30).to_csv("test.csv", index=False)
    result = call("evaluate", "regression", "test.csv", "--report", "pages/test.html", "--seed", 5)
    assert result.exit_code == 0, result.output
    assert "Report: pages/test.html" in result.stdout
    assert (runs / "pages" / "test.html").read_text() == PAGE
    ((model, x, y), options) = quick_report[0]
    assert isinstance(model, credo.Regressor)
    assert (len(x), list(x.columns), y.name) == (30, ["x", "z", "color"], TARGET)
    evaluation = options.pop("evaluation")
    assert (len(evaluation.y), evaluation.seed) == (30, 5)
    assert options == {"source": "test.csv", "seed": 5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns=TARGET), "has no column 'y'"),
        (lambda frame: frame.assign(y=None), "missing in every row"),
        (lambda frame: frame.assign(y="purple"), "none of the 3 classes of training"),
    ],
    ids=["no target", "no values", "unknown class"],
)
def test_rows_that_cannot_be_scored_raise(call, runs, change, words):
    change(table(30, "classification")).to_csv("test.csv", index=False)
    result = call("evaluate", "classification", "test.csv")
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_report_of_a_run_is_made_from_its_held_out_rows(call, runs, quick_report):
    (runs / "regression" / "report.html").unlink()
    assert call("report", "regression").exit_code == 0
    assert (runs / "regression" / "report.html").read_text() == PAGE
    result = call("report", "regression", "--out", "again.html", "--json")
    assert json.loads(result.stdout) == {"run": "regression", "report": "again.html", "notes": []}
    ((_, x, y), options) = quick_report[1]
    assert len(x) == len(y) == 12
    assert options == {"source": "data.csv", "split": "at random", "seed": 0, "evaluation": None}


def test_model_without_held_out_rows_has_no_report(call, runs):
    credo.load(runs / "regression").save(runs / "bare")
    result = call("report", "bare")
    assert result.exit_code == 1
    assert "run.json does not exist" in result.stderr


def test_report_is_an_html_page(call, runs):
    """Without a replacement of the report."""
    result = call("report", "classification", "--out", "page.html", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (runs / "page.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
