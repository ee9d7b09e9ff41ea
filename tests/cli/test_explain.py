"""``credo explain``: a table, and a folder with tables and pictures."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import credo
from cli.tables import table
from credo import explain
from tabular.hostile import TARGET

FILES = {"effects.csv", "effects.png", "importance.csv", "importance.png", "uncertainty.csv", "uncertainty.png"}


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_folder_has_tables_and_pictures(call, runs, task):
    result = call("explain", task, "--out", "explained")
    assert result.exit_code == 0, result.output
    for words in ("12 rows held out of training", "importance", "95% of draws", "color", "explained"):
        assert words in result.stdout
    folder = runs / "explained"
    assert {path.name for path in folder.iterdir()} == FILES
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    effects = pd.read_csv(folder / "effects.csv")
    assert set(effects["column"]) == {"x", "z", "color"}
    assert {"value", "mean", "lower", "upper", "outside"} <= set(effects)


def test_only_explanations_are_replaced(call, runs):
    for _ in range(2):
        assert call("explain", "regression", "--column", "x", "--out", "explained", "--quiet").output == ""
    (runs / "explained" / "notes.txt").write_text("mine")
    result = call("explain", "regression", "--out", "explained")
    assert result.exit_code == 1
    assert "holds other things (notes.txt)" in result.stderr


def test_numbers_are_those_of_the_library(call, runs):
    frame = table(40)
    frame.to_csv("test.csv", index=False)
    result = call("explain", "regression", "--data", "test.csv", "--json", "--column", "z", "--seed", 3, "--level", 0.8)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert (printed["rows"], printed["score"], printed["out"]) == (40, "r2", None)
    wanted = explain.permutation_importance(
        credo.load(runs / "regression"), frame.drop(columns=TARGET), frame[TARGET], score="r2", seed=3, level=0.8
    ).to_frame()
    found = pd.DataFrame(printed["importance"])
    assert found["column"].tolist() == wanted["column"].tolist()
    assert found["importance"].tolist() == pytest.approx(wanted["importance"].tolist(), rel=1e-5)
    assert {entry["column"] for entry in printed["effects"]} == {"z"}


def test_effect_of_a_column_is_printed(call, runs):
    result = call("explain", "regression", "--column", "color")
    assert result.exit_code == 0, result.output
    assert "Partial dependence of 'y' on 'color'" in result.stdout


def test_correlated_columns_are_grouped(call, runs):
    frame = table(40)
    frame["z"] = frame["x"]
    frame.to_csv("test.csv", index=False)
    result = call("explain", "regression", "--data", "test.csv", "--group-correlated", "--json")
    assert result.exit_code == 0, result.output
    assert {entry["column"] for entry in json.loads(result.stdout)["importance"]} == {"x + z", "color"}


def test_rows_without_target_give_no_importance(call, runs):
    table(30).drop(columns=TARGET).to_csv("test.csv", index=False)
    result = call("explain", "regression", "--data", "test.csv", "--out", "explained", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert "importance" not in printed
    assert printed["notes"] == ["The table has no column 'y', so that the importance is left out."]
    assert not (runs / "explained" / "importance.csv").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--column", "height"), 1, "column 'height'"),
        (("--data", "nowhere.csv"), 1, "nowhere.csv"),
        (("--out", "regression"), 1, "holds other things"),
        (("--level", 2), 2, "level"),
        (("--rows", 1), 2, "--rows"),
    ],
)
def test_invalid_options(call, runs, options, code, words):
    result = call("explain", "regression", *options)
    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_run_without_held_out_rows_needs_data(call, runs):
    frame = table(40)
    frame.to_csv("all.csv", index=False)
    arguments = ("--target", TARGET, "--holdout", 0, "--epochs", 2, "--out", "all", "--quiet")
    assert call("fit", "all.csv", *arguments).exit_code == 0
    result = call("explain", "all")
    assert result.exit_code == 1
    assert "--data" in result.stderr
    assert call("explain", "all", "--data", "all.csv", "--quiet").exit_code == 0
