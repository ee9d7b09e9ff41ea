"""``credo predict``: one row of output per row of input, or no output on errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pandas as pd
import pytest

import credo
from cli.tables import table
from credo.tabular import predictions
from tabular.hostile import TARGET

OF_NUMBERS = ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


def inside(rows):
    """Rows inside the training range."""
    frame = table(rows)
    return frame.assign(x=frame["x"].clip(-1.0, 1.0), z=frame["z"].clip(1.0, 9.0))


@pytest.fixture
def new(runs):
    """Rows to predict, with their identifiers."""
    frame = inside(25).drop(columns=TARGET).assign(id=[f"n{i}" for i in range(25)])
    frame.to_csv(runs / "new.csv", index=False)
    return frame


def expected(run, frame, level=0.95):
    """The predictions of the library."""
    model = credo.load(run)
    return predictions.to_frame(model.predict_dist(frame[list(model.columns_.names)]), model.target_, level)


def assert_close(written, frame):
    """Equal to the ten digits that are written."""
    pd.testing.assert_frame_equal(written, frame, rtol=1e-9, check_dtype=False)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_predictions_match_the_library(call, new, tmp_path, task):
    result = call("predict", task, "new.csv", "--out", "out.csv")
    assert result.exit_code == 0, result.output
    assert result.stdout == "25 predictions: out.csv\n"
    assert result.stderr == "note: Ignored, because training had no such column: 'id'.\n"
    written = pd.read_csv(tmp_path / "out.csv")
    assert_close(written, expected(task, new))
    names = OF_NUMBERS if task == "regression" else ["class", "p_high", "p_low", "p_middle", *written.columns[4:]]
    assert list(written.columns) == names
    assert not list(tmp_path.glob(".*"))


def test_default_output_is_stdout(call, new, tmp_path):
    to_file = call("predict", "regression", "new.csv", "--out", "out.csv")
    assert to_file.exit_code == 0
    for options in ([], ["--out", "-"], ["--quiet"]):
        result = call("predict", "regression", "new.csv", *options)
        assert result.exit_code == 0
        assert result.stdout == (tmp_path / "out.csv").read_text()


def test_columns_are_copied(call, new, tmp_path):
    assert call("predict", "regression", "new.csv", "--out", "a.csv", "--keep", "id", "--keep", "x").exit_code == 0
    assert call("predict", "regression", "new.csv", "--out", "b.csv", "--keep-all").exit_code == 0
    a, b = pd.read_csv(tmp_path / "a.csv"), pd.read_csv(tmp_path / "b.csv")
    assert list(a.columns) == ["id", "x", *OF_NUMBERS]
    assert list(b.columns) == ["x", "z", "color", "id", *OF_NUMBERS]
    pd.testing.assert_frame_equal(a[["id", "x"]], new[["id", "x"]], check_exact=True)
    pd.testing.assert_frame_equal(a, b[list(a.columns)])


def test_copied_cells_are_not_changed(call, new, tmp_path):
    new.assign(id=[f"{k:03d}" for k in range(len(new))]).to_csv(tmp_path / "coded.csv", index=False)
    assert call("predict", "regression", "coded.csv", "--out", "a.csv", "--keep", "id").exit_code == 0
    assert (tmp_path / "a.csv").read_text().splitlines()[1].startswith("000,")


def test_copied_missing_values_are_not_changed(call, new, tmp_path):
    """The country code of Namibia is NA."""
    new.assign(id=["NA", "", "null", "007", " x "] * 5).to_csv(tmp_path / "coded.csv", index=False)
    assert call("predict", "regression", "coded.csv", "--out", "a.csv", "--keep", "id").exit_code == 0
    carried = [line.split(",")[0] for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert carried == ["NA", "", "null", "007", '" x "'] * 5


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_formulas_are_copied_or_escaped(call, new, tmp_path, suffix):
    pytest.importorskip("pyarrow")
    cells = ["=HYPERLINK(1)", "@x", "-1.5", "+2", "ok"] * 5
    new.rename(columns={"id": "=id"}).assign(**{"=id": cells}).to_csv("new.csv", index=False)
    read = pd.read_parquet if suffix == ".parquet" else lambda path: pd.read_csv(path, dtype=str)
    command = ("predict", "regression", "new.csv", "--out", f"out{suffix}", "--keep", "=id", "--json")
    plain, escaped = call(*command), call(*command, "--escape-formulas")
    assert plain.exit_code == escaped.exit_code == 0, escaped.output
    assert json.loads(plain.stdout)["columns"] == ["=id", *OF_NUMBERS]
    assert json.loads(escaped.stdout)["columns"] == ["'=id", *OF_NUMBERS]
    assert read(tmp_path / f"out{suffix}")["'=id"].tolist() == ["'=HYPERLINK(1)", "'@x", "-1.5", "+2", "ok"] * 5
    assert call(*command).exit_code == 0
    assert read(tmp_path / f"out{suffix}")["=id"].tolist() == cells


def test_unwritable_file_raises_before_loading(call, new, monkeypatch):
    def never(*args, **options):
        raise AssertionError("it must not load")

    monkeypatch.setattr("credo.tabular.runs.load_model", never)
    for command, option in (("predict", "--out"), ("evaluate", "--report")):
        for name, words in (("x" * 300, "File name too long"), ("new.csv/a", "new.csv is not a folder")):
            result = call(command, "regression", "new.csv", option, name)
            assert result.exit_code == 1
            assert words in result.stderr


def test_output_in_a_run_folder_raises(call, new, tmp_path):
    result = call("predict", "regression", "new.csv", "--out", "regression/card.json")
    assert result.exit_code == 1
    assert "is in the folder of the run" in result.stderr


def test_level_of_the_bounds(call, new, tmp_path):
    result = call("predict", "regression", "new.csv", "--out", "out.csv", "--level", 0.5)
    assert result.exit_code == 0, result.output
    assert_close(pd.read_csv(tmp_path / "out.csv"), expected("regression", new, 0.5))


@pytest.mark.parametrize("suffix", [".parquet", ".csv.gz"])
def test_file_formats(call, new, tmp_path, suffix):
    pytest.importorskip("pyarrow")
    new.to_parquet(tmp_path / "new.parquet")
    with gzip.open(tmp_path / "new.csv.gz", "wt") as stream:
        new.to_csv(stream, index=False)
    result = call("predict", "classification", f"new{suffix}", "--out", f"out{suffix}", "--keep", "id")
    assert result.exit_code == 0, result.output
    out = tmp_path / f"out{suffix}"
    written = pd.read_parquet(out) if suffix == ".parquet" else pd.read_csv(out)
    assert written.pop("id").tolist() == new["id"].tolist()
    assert_close(written, expected("classification", new))


def test_predictions_do_not_depend_on_pieces(call, new, tmp_path, monkeypatch):
    new.assign(color="mauve").to_csv("new.csv", index=False)
    whole = call("predict", "regression", "new.csv", "--keep", "id")
    monkeypatch.setattr(predictions, "_MAX_CHUNK_ROWS", 7)
    chunks = call("predict", "regression", "new.csv", "--keep", "id")
    assert chunks.exit_code == 0
    assert chunks.stdout == whole.stdout
    ignored, unseen = chunks.stderr.splitlines()
    assert (
        ignored == "note: Ignored, because training had no such column: 'id'. The same in 3 later chunks of the table."
    )
    assert "'color' (7 rows, such as 'mauve'). The same in 3 later chunks" in unseen
    assert "'color' (25 rows, such as 'mauve')" in whole.stderr


def test_json_output(call, new, tmp_path):
    result = call("predict", "regression", "new.csv", "--out", "out.csv", "--json", "--keep", "id")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == {
        "out": "out.csv",
        "rows": 25,
        "columns": ["id", *OF_NUMBERS],
        "notes": ["Ignored, because training had no such column: 'id'."],
    }
    no_room = call("predict", "regression", "new.csv", "--json")
    assert no_room.exit_code == 2
    assert "--json needs --out" in no_room.stderr


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_rows_outside_the_training_range_are_counted_in_all_pieces(call, runs, monkeypatch, task):
    frame = inside(25).drop(columns=TARGET)
    frame.loc[[0, 11, 24], "z"] = [-1.0, 99.0, 1e9]
    frame.to_csv("new.csv", index=False)
    monkeypatch.setattr(predictions, "_MAX_CHUNK_ROWS", 7)
    result = call("predict", task, "new.csv", "--out", "out.csv", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"] == [
        "3 rows lie outside the training range in 'z': predictions there are extrapolations."
    ]


def test_column_order_and_target_are_ignored(call, runs, tmp_path):
    frame = inside(25)
    frame.to_csv("new.csv", index=False)
    frame[[TARGET, "color", "z", "x"]].assign(**{TARGET: "?"}).to_csv("turned.csv", index=False)
    straight, turned = call("predict", "regression", "new.csv"), call("predict", "regression", "turned.csv")
    assert straight.exit_code == turned.exit_code == 0
    assert straight.stdout == turned.stdout
    assert turned.stderr == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns="z"), "the column 'z' is missing, which training had"),
        (lambda frame: frame.rename(columns={"color": "Color"}), "did you mean 'Color'?"),
        (lambda frame: frame.assign(x="red"), "held numbers in training"),
        (lambda frame: frame[:0], "holds a header but no rows"),
    ],
    ids=["missing", "renamed", "swapped", "empty"],
)
def test_mismatched_rows_raise(call, runs, tmp_path, change, words):
    change(table(25)).to_csv("new.csv", index=False)
    (tmp_path / "out.csv").write_text("mine")
    result = call("predict", "regression", "new.csv", "--out", "out.csv")
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "new.csv"], "is a folder that credo saved?"),
        (["new.csv", "new.csv"], "credo"),
        (["regression", "nowhere.csv"], "nowhere.csv does not exist"),
        (["regression", "new.csv", "--keep", "nam"], "unknown column to keep 'nam'"),
        (["regression", "new.csv", "--out", "new.csv"], "is the input file"),
        (["regression", "new.csv", "--out", "regression"], "is a folder"),
        (["regression", "new.csv", "--out", "new.csv/out.csv"], "cannot be written"),
    ],
)
def test_errors_are_one_line(call, new, words, sentence):
    result = call("predict", *words)
    assert result.exit_code == 1
    assert sentence.replace("is a folder that", "a folder that") in result.stderr
    assert result.stderr.splitlines()[-1].startswith("credo: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_copied_column_with_the_name_of_a_prediction_raises(call, new, tmp_path):
    new.rename(columns={"id": "mean"}).to_csv("new.csv", index=False)
    result = call("predict", "regression", "new.csv", "--keep", "mean")
    assert result.exit_code == 1
    assert "the names of predictions, 'mean'" in result.stderr


def test_interrupt_keeps_the_existing_file(call, new, tmp_path, monkeypatch):
    given = iter([predictions.to_frame])

    def second_time_interrupted(*args):
        to_frame = next(given, None)
        if to_frame is None:
            raise KeyboardInterrupt
        return to_frame(*args)

    (tmp_path / "out.csv").write_text("mine")
    monkeypatch.setattr(predictions, "_MAX_CHUNK_ROWS", 7)
    monkeypatch.setattr(predictions, "to_frame", second_time_interrupted)
    result = call("predict", "regression", "new.csv", "--out", "out.csv")
    assert (result.exit_code, result.output) == (130, "")
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_closed_pipe_gives_no_traceback(new, tmp_path):
    """As in ``credo predict run new.csv | head -1``: 2,500 rows are more than a pipe of 64 KiB and its reader hold."""
    pd.concat([new] * 100).to_csv(tmp_path / "new.csv", index=False)
    command = [sys.executable, "-c", "from credo.cli import main; main()", "predict", "regression", "new.csv"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert first == ",".join(OF_NUMBERS) + "\n"
    assert "Traceback" not in said
