"""``credo reproduce`` with a toy experiment."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from credo import cli, experiments
from credo.errors import InputError
from credo.experiments import Experiment, Result, Row, RunConfig, registry


def count(config: RunConfig) -> Result:
    config.report("counting")
    return Result((Row("seed | its name", (float(config.seed),), 3.0, "Table 1", "counted"), Row("nothing", (0.0,))))


def toy(run=count):
    return Experiment("toy", "A toy", "Nobody, Nowhere, 2000, Table 1", "It counts.", (), run)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with the toy registered, in an empty folder."""
    experiments.names()
    monkeypatch.setitem(registry._REGISTRY, "toy", toy())
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli.app, ["reproduce", *words], env={"COLUMNS": "140"})


def test_list_contains_all_experiments(call):
    result = call("list")
    assert result.exit_code == 0, result.output
    for name in experiments.names():
        assert name in result.stdout
    listed = json.loads(call("list", "--json").stdout)["experiments"]
    assert sorted(entry["name"] for entry in listed) == experiments.names()
    parts = [entry["part"] for entry in listed]
    assert parts == sorted(parts), "experiments of one part are listed together"


def test_run_prints_the_table_and_the_files(call, tmp_path):
    result = call("toy", "--quick", "--seeds", "2", "--seed", "1", "--out", "here")
    assert result.exit_code == 0, result.output
    for words in ("A toy", "seed | its name", "1.50 ± 0.50", "counted", "here/toy/table.md"):
        assert words in result.stdout
    assert (tmp_path / "here" / "toy" / "table.json").exists()


def test_json_matches_the_file(call, tmp_path):
    result = call("toy", "--smoke", "--json", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    written = json.loads((tmp_path / "reproductions" / "toy" / "table.json").read_text())
    assert json.loads(result.stdout) == {**written, "notes": []}


def test_quiet_prints_nothing(call, tmp_path):
    result = call("toy", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "reproductions" / "toy" / "table.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toyy"], "did you mean 'toy'"),
        (["toy", "--quick", "--smoke"], "--quick and --smoke cannot be combined"),
        (["toy", "--device", "nowhere"], "device must be one that torch can use here"),
        (["toy", "--seeds", "0"], "--seeds"),
        ([], "NAME"),
    ],
)
def test_usage_errors_have_exit_code_2(call, tmp_path, words, message):
    result = call(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_failures_have_exit_code_1(call, tmp_path, monkeypatch, capsys):
    def fail(config):
        raise InputError("t10k-images-idx3-ubyte.gz is missing: put it there")

    monkeypatch.setitem(registry._REGISTRY, "toy", toy(fail))
    monkeypatch.setattr("sys.argv", ["credo", "reproduce", "toy", "--quiet"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "credo: t10k-images-idx3-ubyte.gz is missing: put it there\n"
    assert not (tmp_path / "reproductions" / "toy").exists()


def test_help_has_an_example(call):
    assert "credo reproduce bbb-regression --quick --seeds 3" in call("--help").stdout
