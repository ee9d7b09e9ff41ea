"""Files from spreadsheets on the command line: from ``credo fit`` to ``credo predict`` of a single row."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import credo
from tabular.hostile import to_csv

ROWS = 60
QUICK = ("--method", "map", "--epochs", 1)


def table(**columns):
    """A number, and a target that depends on it, with columns replaced or added."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1.0, 9.0, ROWS)
    y = 100.0 * x + 10.0 * rng.normal(size=ROWS)
    return {"x": [f"{v:.2f}" for v in x], "y": [f"{v:.1f}" for v in y]} | columns


def german(numbers):
    return [f"{float(v):,.2f}".translate(str.maketrans(",.", ".,")) for v in numbers]


def test_german_file(call, tmp_path, quick_report):
    """Read in CP1252 with decimal commas; a later file with the single row 1,234 is read in the same way."""
    given = table()
    day = [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024" for i in range(ROWS)]
    content = to_csv({"größe": german(given["x"]), "tag": day, "preis": german(given["y"])}, ";")
    (tmp_path / "de.csv").write_bytes(content.decode().encode("cp1252"))
    result = call("fit", "de.csv", "--target", "preis", *QUICK, "--json")
    assert result.exit_code == 0, result.output
    notes = " ".join(json.loads(result.stdout)["notes"])
    for words in ("cp1252", "decimal commas", "'größe'", "the target 'preis'", "day before month"):
        assert words in notes
    assert json.loads(result.stdout)["task"] == "regression"
    model = credo.load("run")
    (tmp_path / "new.csv").write_text("größe;tag\n1,234;03.04.2024\n", encoding="utf-8")
    assert call("predict", "run", "new.csv", "--out", "out.csv").exit_code == 0
    plain = pd.DataFrame({"größe": ["1,234"], "tag": ["2024-04-03"]})
    assert pd.read_csv("out.csv")["mean"][0] == pytest.approx(model.predict(plain)[0], rel=1e-9)
    assert model.columns_.parse(plain).values[0, 0] == 1.234
    assert call("evaluate", "run", "de.csv").exit_code == 0
    assert call("report", "run").exit_code == 0


@pytest.mark.parametrize(
    ("options", "value", "words"),
    [
        ([], 1234.0, "--decimal ,"),
        (["--decimal", ","], 1.234, "decimal commas"),
        (["--type", "v=category"], None, ""),
    ],
)
def test_choices_are_saved_with_the_model(call, tmp_path, quick_report, options, value, words):
    (tmp_path / "t.csv").write_bytes(to_csv({"v": ["1,234", "5,678"] * (ROWS // 2), "y": range(ROWS)}))
    result = call("fit", "t.csv", "--target", "y", *QUICK, *options)
    assert result.exit_code == 0, result.output
    assert words in result.stderr
    columns = credo.load("run").columns_
    if value is None:
        assert [category.name for category in columns.categories] == ["v"]
    else:
        assert columns.parse(pd.DataFrame({"v": ["1,234"]})).values.tolist() == [[value]]


@pytest.mark.parametrize(("option", "expected"), [("--dayfirst", "day before month"), ("--monthfirst", "month before")])
def test_order_of_dates_can_be_chosen(call, tmp_path, quick_report, option, expected):
    days = ["03/04/2024", "05/06/2024", "07/08/2024"] * (ROWS // 3)
    (tmp_path / "t.csv").write_bytes(to_csv({"d": days, "y": range(ROWS)}))
    assert call("fit", "t.csv", "--target", "y", *QUICK, option).exit_code == 0
    assert expected in credo.load("run").columns_.summary()[0].reading


def test_mistyped_and_unreadable_targets_are_named(call, tmp_path, quick_report):
    """Of all rows only these are affected: a quantity stays one, and the others are fitted."""
    y = table()["y"]
    y[3], y[5], y[11] = "?", "n.a.", f"{float(y[11]) * 1e6:.0f}"
    (tmp_path / "t.csv").write_bytes(to_csv(table(y=y)))
    result = call("fit", "t.csv", "--target", "y", "--holdout", 0, "--method", "map", "--epochs", 200)
    assert result.exit_code == 0, result.output
    assert "for regression" in result.stdout
    assert "the target is missing: 2 of 60 rows ('?' in 1 row, 'n.a.' in 1 row)" in result.stderr
    assert "in row 11: check" in result.stderr
    model, good = credo.load("run"), table()
    error = model.predict(pd.DataFrame({"x": good["x"]})) - np.array(good["y"], dtype=float)
    assert np.abs(np.delete(error, [3, 5, 11])).max() < 0.2 * np.std(np.array(good["y"], dtype=float))


def test_leaks_and_copies_are_noted(call, tmp_path, quick_report):
    good = table()
    twice = {name: [*cells, *cells] for name, cells in (good | {"gross": good["y"]}).items()}
    (tmp_path / "t.csv").write_bytes(to_csv(twice))
    result = call("fit", "t.csv", "--target", "y", *QUICK)
    assert result.exit_code == 0, result.output
    assert "almost perfectly" in result.stderr
    assert "'gross' (equal to the target)" in result.stderr
    assert "held-out rows also occur in training" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--decimal", ";"], "decimal"),
        (["--type", "v"], "COLUMN=TYPE"),
        (["--type", "v=int"], "column type"),
    ],
)
def test_bad_choices_are_usage_errors(call, tmp_path, options, words):
    (tmp_path / "t.csv").write_bytes(to_csv({"v": range(ROWS), "y": range(ROWS)}))
    result = call("fit", "t.csv", "--target", "y", *options)
    assert result.exit_code == 2
    assert words in result.stderr
