"""``credo compare``: a table of methods and a folder with the report."""

from __future__ import annotations

import json

import pytest

from cli.tables import PAGE, table
from credo.tabular import methods
from tabular.hostile import TARGET

QUICK = ("--target", TARGET, "--epochs", 2, "--folds", 2)


def test_methods_are_compared_in_one_table(call, data, tmp_path, quick_report):
    result = call("compare", data, *QUICK, "--methods", "map,bbb")
    assert result.exit_code == 0, result.output
    for words in ("★", "MAP, one network", "Bayes by Backprop", "difference", "standard error of the paired"):
        assert words in result.stdout
    assert "MC dropout" not in result.stdout
    assert "Report: compare/report.html" in result.stdout
    assert (tmp_path / "compare" / "report.html").read_text() == PAGE
    written = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert [entry["name"] for entry in written["results"]] == ["map", "bbb"]
    assert (written["rows"], written["folds"], written["task"]) == (60, 2, "regression")
    assert written["verdict"] in result.stdout.replace("\n", "")


def test_all_methods_with_epochs_are_compared_if_epochs_are_given(call, tmp_path, quick_report):
    names = [name for name in methods.names() if methods.get(name).has_epochs]
    table(60, "classification").assign(constant=7).to_csv("data.csv", index=False)
    result = call("compare", "data.csv", *QUICK, "--json", "--drop", "x", "--out", "here")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [entry["name"] for entry in printed["results"]] == names
    assert printed["notes"] == ["Left out, because all values are the same: 'constant'."]
    assert printed["best"] in [entry["name"] for entry in printed["results"]]
    assert len(printed["gaps"]) == len(names) - 1
    written = json.loads((tmp_path / "here" / "compare.json").read_text())
    assert {key: printed[key] for key in written} == written


def test_quiet_prints_nothing(call, data, tmp_path, quick_report):
    result = call("compare", data, *QUICK, "--methods", "map", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "compare" / "compare.json").exists()


def test_only_a_comparison_is_replaced(call, data, tmp_path, quick_report):
    for _ in range(2):
        assert call("compare", data, *QUICK, "--methods", "map", "--quiet").exit_code == 0
    (tmp_path / "compare" / "notes.txt").write_text("mine")
    result = call("compare", data, *QUICK, "--methods", "map")
    assert result.exit_code == 1
    assert "holds other things (notes.txt)" in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--methods", "bbb,ensembel"], 2, "did you mean 'ensemble'"),
        (["--folds", "1"], 2, "--folds"),
        (["--folds", "40"], 1, "folds must be between 2 and 30"),
        (["--task", "classification"], 1, "is continuous"),
        (["--drop", "w"], 1, "unknown column to drop 'w'"),
    ],
)
def test_bad_options_raise(call, data, tmp_path, options, code, words):
    result = call("compare", data, "--target", TARGET, *options)
    assert result.exit_code == code
    assert words in result.stderr
    assert not (tmp_path / "compare").exists()
