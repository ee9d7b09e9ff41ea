"""The demo and its command, with few epochs."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import credo
from credo import cli
from credo.errors import InputError
from credo.experiments.demo import run_demo

pytestmark = pytest.mark.filterwarnings("ignore:Left out, because all values are the same")  # pixels at the border


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "new", epochs=3)


@pytest.fixture
def without_figures(monkeypatch):
    """Empty figures for tests of what is printed and scored, because drawing takes most of the time."""
    monkeypatch.setattr("credo.report.page._draw_svg", lambda plot, width, height: b"")


def test_regression_and_classification_are_fitted_and_reported(tiny):
    assert [job.run.record["task"] for job in tiny] == ["regression", "classification"]
    for job in tiny:
        assert {score.name for score in job.run.scores} > {"nll"}
        assert job.report.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_models_can_be_loaded(tiny):
    model = credo.load(tiny[0].folder)
    rows = tiny[0].run.holdout.drop(columns="progression")
    mean, std = model.predict(rows, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_seed_determines_the_result(tmp_path, tiny):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = run_demo(tmp_path, epochs=3)
    assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip(tiny, again, strict=True):
        assert first.run.scores == second.run.scores


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_command_prints_scores_and_report_paths(tmp_path):
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path), "--epochs", "1"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "95 % interval" in result.output
    assert result.output.rstrip().endswith(f"Report: {tmp_path / 'digits' / 'report.html'}")
    quiet = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path), "--epochs", "1", "--quiet"])
    assert (quiet.exit_code, quiet.output) == (0, "")


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_command_prints_json(tmp_path):
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path), "--epochs", "1", "--json"])
    assert [job["target"] for job in json.loads(result.stdout)["jobs"]] == ["progression", "digit"]


def test_unwritable_folder_raises_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written: .*file is not a folder"):
        run_demo(tmp_path / "file")


def test_version_option():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"credo {credo.__version__}\n"


def test_input_error_is_printed_without_traceback(monkeypatch, capsys):
    def fail():
        raise InputError("samples must be at least 0, got -1")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "credo: samples must be at least 0, got -1\n"
