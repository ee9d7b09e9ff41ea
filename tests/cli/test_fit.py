"""``credo fit``: output, files and errors. ``credo demo`` is tested in test_demo.py."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

import credo
from cli.tables import PAGE, table
from credo.tabular import runs as library
from credo.tabular.table_files import open_table
from tabular.hostile import CORPUS, TARGET


def test_fit_writes_a_run_and_prints_the_next_command(call, data, tmp_path, quick_report):
    result = call("fit", data, "--target", TARGET, "--epochs", 2, "--out", "my run")
    assert result.exit_code == 0, result.output
    for words in (
        "60 rows, 4 columns",
        "regression, because 'y' holds numbers, 60 different values in 60 rows",
        "The method is Bayes by Backprop, because epochs was given",
        "trained on 48 rows",
        "Metrics on 12 held-out rows",
        "coverage (95 %)",
        "Report: my run/report.html",
        "credo predict 'my run' new.csv",
    ):
        assert words in result.stdout
    assert sorted(path.name for path in (tmp_path / "my run").iterdir()) == sorted(library.FILES)
    assert (tmp_path / "my run" / "report.html").read_text() == PAGE
    assert isinstance(credo.load(tmp_path / "my run"), credo.Regressor)


def test_task_is_chosen_from_the_target(call, tmp_path, quick_report):
    table(task="classification").to_csv("data.csv", index=False)
    result = call("fit", "data.csv", "--target", TARGET, "--method", "map", "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert "for classification, because 'y' holds text, 3 different values in 60 rows" in result.stdout
    assert "accuracy" in result.stdout
    assert isinstance(credo.load(tmp_path / "run"), credo.Classifier)


def test_stdout_is_json_only(call, data, tmp_path, quick_report):
    frame = table().assign(constant=7)
    frame.to_csv(data, index=False)
    result = call("fit", data, "--target", TARGET, "--epochs", 2, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["notes"] == ["Left out, because all values are the same: 'constant'."]
    assert "note: Left out" in result.stderr
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written.pop("digests").keys() == {"model.safetensors", "holdout.csv"}
    assert {key: printed[key] for key in written} == written
    assert (written["source"], written["target"], written["task"]) == ("data.csv", TARGET, "regression")
    assert (written["trained_rows"], written["held_out_rows"], written["seed"]) == (48, 12, 0)
    assert [score["name"] for score in written["scores"]][:3] == ["nll", "rmse", "crps"]
    assert printed["report"] == "run/report.html"


def test_quiet_prints_nothing(call, data, tmp_path, quick_report):
    result = call("fit", data, "--target", TARGET, "--epochs", 2, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "run" / "run.json").exists()


def test_no_held_out_rows_give_no_scores(call, data, tmp_path):
    result = call("fit", data, "--target", TARGET, "--epochs", 2, "--holdout", 0)
    assert result.exit_code == 0, result.output
    assert "trained on 60 rows" in result.stdout
    assert "no rows were held out" in result.stdout
    assert "trained on every row" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scores"] == []
    again = call("report", "run")
    assert again.exit_code == 1
    assert "no rows were held out" in again.stderr


def test_seed_determines_the_model(call, data, tmp_path, quick_report):
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert call("fit", data, "--target", TARGET, "--epochs", 2, "--seed", seed, "--out", out).exit_code == 0
    a, b, c = ((tmp_path / out / "model.safetensors").read_bytes() for out in "abc")
    assert a == b
    assert a != c


def test_columns_can_be_dropped(call, data, tmp_path, quick_report):
    result = call("fit", data, "--target", TARGET, "--drop", "x", "--drop", "color", "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert credo.load(tmp_path / "run").columns_.names == ("z",)
    assert list(pd.read_csv(tmp_path / "run" / "holdout.csv").columns) == ["z", TARGET]


@pytest.mark.parametrize("calibrate", ["variance", "conformal"])
def test_calibration(call, tmp_path, quick_report, calibrate):
    table(120).to_csv("data.csv", index=False)
    result = call("fit", "data.csv", "--target", TARGET, "--epochs", 2, "--calibrate", calibrate)
    assert result.exit_code == 0, result.output
    assert credo.load(tmp_path / "run").calibrator_ is not None


def test_only_a_run_is_replaced(call, data, tmp_path, quick_report):
    command = ("fit", data, "--target", TARGET, "--epochs", 1)
    assert call(*command).exit_code == 0
    assert call(*command, "--holdout", 0).exit_code == 0
    assert "trained on every row" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "report.html").write_text("mine")
    for out in ("run", "papers", "data.csv"):
        result = call(*command, "--out", out)
        assert result.exit_code == 1
        assert "holds other things" in result.stderr
    assert (tmp_path / "papers" / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "bb"], "did you mean 'bbb'"),
        (["--task", "regresion"], "did you mean 'regression'"),
        (["--calibrate", "quantiles"], "did you mean 'quantile'"),
        (["--holdout", "1"], "from 0 to below 1"),
        (["--holdout", "-0.1"], "from 0 to below 1"),
        (["--epochs", "0"], "--epochs"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**63)], "--seed"),
        (["--device", "toaster"], "device must be one that torch can use here"),
        (["--out"], "requires an argument"),
    ],
)
def test_bad_options_are_usage_errors(call, data, tmp_path, options, words):
    result = call("fit", data, "--target", TARGET, *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.csv", "--target", "y"], "nowhere.csv does not exist"),
        (["data.csv", "--target", "Y "], "did you mean 'y'?"),
        (["data.csv", "--target", "y", "--drop", "X"], "did you mean 'x'?"),
        (["data.csv", "--target", "y", "--drop", "weight"], "choose from x, z, color, y"),
        (["data.csv", "--target", "y", "--drop", "y"], "not dropped"),
        (["data.csv", "--target", "y", "--holdout", "0.95"], "leaves 3 to train on"),
        (["data.csv", "--target", "y", "--calibrate", "temperature"], "unknown calibrate 'temperature'"),
        (["data.csv", "--target", "y", "--calibrate", "conformal"], "needs at least 19"),
        (["data.csv", "--target", "y", "--out", "data.csv/run"], "cannot be"),
    ],
)
def test_bad_data_give_one_line(call, data, tmp_path, words, sentence):
    result = call("fit", *words)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.startswith("credo: ")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


QUICK = [case for case in CORPUS if case.name != "ten thousand columns"]  # takes seconds, and tests nothing else


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_hostile_files(call, tmp_path, case):
    path = case.write(tmp_path)
    options = ["--task", case.task, "--holdout", 0, "--epochs", 1, "--method", "map"]
    result = call("fit", path, "--target", TARGET, *options)
    if case.outcome == "refused":
        assert result.exit_code == 1
        assert result.stderr.startswith("credo: ")
        assert result.stderr.count("\n") == 1
        assert all(word.lower() in result.stderr.lower() for word in case.words)
        assert list(tmp_path.iterdir()) == [path]
        return
    assert result.exit_code == 0, result.output
    assert all(line.startswith("note: ") for line in result.stderr.splitlines())
    assert bool(result.stderr) == (case.outcome == "noted")
    assert all(word.lower() in result.stderr.lower() for word in case.words)


def test_interrupt_prints_nothing_and_leaves_no_files(call, data, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(credo.Regressor, "fit", interrupted)
    result = call("fit", data, "--target", TARGET)
    assert result.exit_code == 130
    assert result.stderr == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


def test_exit_codes_of_a_process(data, tmp_path):
    """Streams and exit codes of a separate process."""

    def credo_(*words):
        command = [sys.executable, "-c", "from credo.cli import main; main()", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = credo_("fit", "data.csv", "--target", TARGET, "--epochs", "1", "--holdout", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "run"
    refused = credo_("fit", "data.csv", "--target", "price", "--out", "other")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "credo: data.csv has no column 'price': choose from 'x', 'z', 'color', 'y'.\n"


@pytest.mark.parametrize("command", ["fit", "compare"])
@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("x" * 300, "File name too long"),
        ("é" * 125, "File name too long"),
        ("data.csv/run", "data.csv is not a folder"),
        ("/proc/run", "cannot be written"),
    ],
)
def test_unwritable_folders_raise_before_training(call, data, tmp_path, monkeypatch, command, out, words):
    def never(*args, **options):
        raise AssertionError("it must not train")

    monkeypatch.setattr(credo.Regressor, "fit", never)
    result = call(command, data, "--target", TARGET, "--out", out)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.startswith("credo: ")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


def test_folder_is_locked_during_training(call, data, tmp_path, monkeypatch, quick_report):
    fit, refused = credo.Regressor.fit, []

    def interrupted_by_another(self, x, y, **details):
        assert (tmp_path / ".run.credo-reserved").exists()
        with ThreadPoolExecutor(1) as pool:
            refused.append(pool.submit(call, "fit", data, "--target", TARGET).result())
        return fit(self, x, y, **details)

    monkeypatch.setattr(credo.Regressor, "fit", interrupted_by_another)
    first = call("fit", data, "--target", TARGET, "--epochs", 1)
    assert first.exit_code == 0, first.output
    (second,) = refused
    assert second.exit_code == 1
    assert "run is being written by another process or thread: wait until it is done" in second.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "run"]


def test_files_of_a_killed_run_are_removed(call, data, tmp_path, quick_report):
    assert call("fit", data, "--target", TARGET, "--epochs", 1).exit_code == 0
    (tmp_path / ".run.credo-abcd1234").mkdir()
    (tmp_path / ".run.credo-abcd1234" / "model.safetensors").touch()
    (tmp_path / ".run.credo-reserved").touch()
    (tmp_path / "run" / ".report.html.credo-abcd1234").touch()
    result = call("fit", data, "--target", TARGET, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "run"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(library.FILES)


def test_carriage_returns_in_cells_are_preserved(call, tmp_path, quick_report):
    """In held-out rows and in copied columns."""
    frame = table().assign(note=["one\rtwo", "three", "\r", '"\r\n"'] * 15)
    frame.to_csv("data.csv", index=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
    assert call("fit", "data.csv", "--target", TARGET, "--epochs", 1).exit_code == 0
    again = call("report", "run")
    assert again.exit_code == 0, again.output
    held_out = library.open_run("run").holdout
    assert held_out["note"].tolist() == frame["note"][held_out.index].tolist()
    assert call("predict", "run", "data.csv", "--out", "out.csv", "--keep-all").exit_code == 0
    (piece,) = open_table(tmp_path / "out.csv").chunks(100, as_text=["note"])
    assert piece["note"].tolist() == frame["note"].tolist()


def test_text_that_cannot_be_saved_raises_before_training(call, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(credo.Regressor, "fit", None)
    table().assign(note=["a\0b", "c"] * 30).to_parquet("data.parquet")
    result = call("fit", "data.parquet", "--target", TARGET)
    assert result.exit_code == 1
    assert "NUL character" in result.stderr
    assert "clean 'note'" in result.stderr


def test_rows_are_split_by_group_or_time_and_the_report_says_so(call, data, tmp_path, quick_report):
    table().assign(who=lambda t: [f"p{i // 6}" for i in range(len(t))]).to_csv(data, index=False)
    result = call("fit", data, "--target", TARGET, "--method", "map", "--epochs", 1, "--group", "who")
    assert result.exit_code == 0, result.output
    said = "by groups ('who'): no group is both trained on and tested"
    assert said in " ".join(result.stdout.split())
    assert quick_report[0][1]["split"] == said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["split"] == said
    both = call("fit", data, "--target", TARGET, "--epochs", 1, "--group", "who", "--time", "who")
    assert both.exit_code == 1
    assert "not by both" in both.stderr


def test_a_sampler_says_whether_its_chains_have_converged(call, data, monkeypatch, quick_report):
    for name, value in {"WARMUP": 60, "DRAWS": 6, "STARTING_STEPS": 50, "MAX_GRADIENTS": 300}.items():
        monkeypatch.setattr(f"credo.tabular.sampled.{name}", value)
    result = call("fit", data, "--target", TARGET, "--method", "hmc")
    assert result.exit_code == 0, result.output
    assert "Hamiltonian Monte Carlo for regression" in result.stdout
    assert "4 chains of 6 draws: R-hat of the predictions" in " ".join(result.stdout.split())
    refused = call("fit", data, "--target", TARGET, "--method", "hmc", "--epochs", 3)
    assert refused.exit_code == 1
    assert "epochs does not apply" in " ".join(refused.output.split())
