"""The demo and its command, small enough to run on every change."""

import math

import pytest
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

import credo
from credo import cli
from credo.errors import InputError
from credo.experiments.demo import run_demo


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "new", effort=0.002, samples=5)


def test_every_method_is_measured(tiny):
    assert [row.method for row in tiny.curve] == ["Bayes by Backprop", "MC dropout", "Deep ensemble"]
    assert [row.method for row in tiny.digits] == ["MAP", "Bayes by Backprop", "MC dropout", "Deep ensemble"]
    for row in [*tiny.curve, *tiny.digits]:
        assert all(math.isfinite(value) for value in vars(row).values() if not isinstance(value, str))


def test_measures_are_in_their_range(tiny):
    for row in tiny.curve:
        assert 0.0 <= row.coverage <= 1.0
        assert row.aleatoric > 0.0
        assert row.epistemic_in_gap > 0.0
    for row in tiny.digits:
        assert 0.0 <= row.auroc <= 1.0
        assert 0.0 < row.entropy <= tiny.most_entropy + 1e-6


def test_pictures_are_written(tiny):
    assert [path.name for path in tiny.figures] == ["curve.png", "rotated.png", "entropy.png"]
    for path in tiny.figures:
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 400
        assert pixels[..., :3].std() > 0.05


def test_seed_decides_the_result_and_nothing_else_does(tmp_path, tiny):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = run_demo(tmp_path, effort=0.002, samples=5)
    assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip([*tiny.curve, *tiny.digits], [*again.curve, *again.digits], strict=True):
        assert {**vars(first), "seconds": 0} == {**vars(second), "seconds": 0}


def test_command_prints_tables_and_where_the_pictures_are(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr("credo.experiments.demo.run_demo", lambda out, seed, report: tiny)
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for word in ("Bayes by Backprop", "epistemic", "AUROC", "curve.png"):
        assert word in result.output
    quiet = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path), "--quiet"])
    assert quiet.exit_code == 0
    assert quiet.output == ""


def test_folder_that_cannot_be_made_is_named_before_any_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="out must be a folder that can be written to"):
        run_demo(tmp_path / "file")


def test_command_shows_its_version():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"credo {credo.__version__}\n"


def test_error_on_purpose_is_one_sentence(monkeypatch, capsys):
    def fail():
        raise InputError("samples must be 0 or more, got -1")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "credo: samples must be 0 or more, got -1\n"


@pytest.mark.slow
def test_full_demo_says_what_it_claims(tmp_path):
    """At full effort: the mean-field band opens in the gap, the noise is found, letters are told from digits."""
    demo = run_demo(tmp_path)
    for row in demo.curve:
        assert row.aleatoric == pytest.approx(demo.noise, rel=0.4)
        assert row.coverage > 0.85
    assert demo.curve[0].epistemic_in_gap > 2.5 * demo.curve[0].epistemic_on_data
    for row in demo.digits:
        assert row.accuracy > 0.95
        assert row.entropy < row.rotated_entropy
        assert row.auroc > 0.8
