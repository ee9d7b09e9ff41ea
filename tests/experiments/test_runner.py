"""A run writes all tables and figures, or nothing."""

from __future__ import annotations

import csv
import json

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from credo import experiments
from credo.errors import InputError
from credo.experiments import Experiment, Result, Row, RunConfig


def count(config: RunConfig) -> Result:
    """Return two rows, one of which is the seed, and a figure."""
    config.report("counting")
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, config.seed])
    seed = Row("seed | its name", (float(config.seed),), published=3.0, source="Table 1", note="counted")
    return Result((seed, Row("nothing", (0.0,))), {"line": figure})


def toy(run=count) -> Experiment:
    return Experiment("toy", "A toy", "Nobody, Nowhere, 2000, Table 1", "It counts.", ("line",), run)


def test_folder_holds_tables_and_figures(tmp_path):
    messages = []
    found = experiments.run(toy(), "quick", 3, tmp_path, seed=2, report=messages.append)
    assert messages == [f"seed {k} of 3: counting" for k in (1, 2, 3)]
    assert found.folder == tmp_path / "toy"
    assert sorted(found.folder.iterdir()) == sorted(found.files)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    assert imread(found.folder / "line.png").size

    record = json.loads((found.folder / "table.json").read_text())
    assert record["name"] == "toy"
    assert record["command"] == "credo reproduce toy --quick --seeds 3 --seed 2"
    assert {"date", "hardware", "reference", "title", "seconds"} <= set(record)
    row = record["rows"][0]
    assert (row["published"], row["source"], row["note"]) == (3.0, "Table 1", "counted")
    assert (row["mean"], row["values"]) == (3.0, [2.0, 3.0, 4.0])
    assert row["standard_error"] == pytest.approx(3**-0.5)  # s = 1 over √3

    with (found.folder / "table.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["quantity"] for line in lines] == ["seed | its name", "nothing"]
    assert (lines[0]["repetitions"], lines[1]["published"]) == ("3", "")

    page = (found.folder / "table.md").read_text()
    assert "| seed \\| its name | 3 (Table 1) | 3.00 ± 0.58 | counted |" in page
    assert "It counts." in page
    assert "![line](line.png)" in page


def test_one_seed_has_no_standard_error(tmp_path):
    found = experiments.run(toy(), out=tmp_path)
    assert found.record["command"] == "credo reproduce toy"
    assert found.record["rows"][0]["standard_error"] is None
    assert "±" not in (found.folder / "table.md").read_text()


def test_second_run_replaces_the_first(tmp_path):
    experiments.run(toy(), out=tmp_path)
    found = experiments.run(toy(), out=tmp_path, seed=5)
    assert json.loads((found.folder / "table.json").read_text())["rows"][0]["mean"] == 5.0
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_failure_keeps_the_previous_run(tmp_path):
    experiments.run(toy(), out=tmp_path)

    def fail(config):
        if config.seed:
            raise RuntimeError("the second seed fails")
        return count(config)

    with pytest.raises(RuntimeError, match="second seed"):
        experiments.run(toy(fail), seeds=2, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    assert json.loads((tmp_path / "toy" / "table.json").read_text())["command"] == "credo reproduce toy"


def test_unwritable_folder_raises_before_the_run(tmp_path):
    def never(config):
        raise AssertionError("it must not run")

    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.txt").touch()
    with pytest.raises(InputError, match="holds other things"):
        experiments.run(toy(never), out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written: .*file is not a folder"):
        experiments.run(toy(never), out=tmp_path / "file")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": "smok"}, "unknown budget 'smok': did you mean 'smoke'"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 2**32 - 2, "seeds": 3}, "must be at most 4294967295, got 4294967296"),
        ({"device": "nowhere"}, "device must be one that torch can use here"),
    ],
)
def test_invalid_arguments_raise(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        experiments.run(toy(), out=tmp_path, **wrong)
    assert not list(tmp_path.iterdir())


def test_missing_figures_raise(tmp_path):
    with pytest.raises(InputError, match="must return the figures line, got none"):
        experiments.run(toy(lambda config: Result((Row("q", (1.0,)),))), out=tmp_path)
    assert not list(tmp_path.iterdir())
