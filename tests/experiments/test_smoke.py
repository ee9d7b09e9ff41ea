"""Every experiment runs from start to end on what comes with the library."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib.image import imread

from credo import experiments


@pytest.mark.parametrize("name", experiments.names())
def test_smoke_run_needs_no_data_and_disturbs_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path / "none"))
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    found = experiments.run(name, "smoke", out=tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads

    quantities = [row.quantity for row in found.result.rows]
    assert len(set(quantities)) == len(quantities)
    assert all(math.isfinite(row.mean) for row in found.result.rows)
    assert all(path.stat().st_size for path in found.files)
    for figure in found.experiment.figures:
        pixels = imread(found.folder / f"{figure}.png")
        assert min(pixels.shape[:2]) > 400
        assert pixels[..., :3].std() > 0.05


def test_seed_decides_the_numbers(tmp_path):
    first, again, other = (
        [row.values for row in experiments.run("bbb-regression", "smoke", out=tmp_path, seed=seed).result.rows]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_away_from_data_only_bayes_by_backprop_is_unsure(tmp_path):
    value = _quick("bbb-regression", tmp_path)
    assert value["Bayes by Backprop: ratio of the two, far / on the data"] > 2.0
    assert value["standard network: ratio of the two, far / on the data"] < 1.0


@pytest.mark.slow
def test_turned_digit_is_less_certain_than_the_upright_one(tmp_path):
    value = _quick("dropout-rotated-digit", tmp_path)
    upright, worst = (
        value["entropy of the upright 1, nats"],
        value["entropy of the image that it is least sure of, nats"],
    )
    assert worst > 10.0 * upright
    assert value["range of its leading softmax output over 100 draws"] > 0.5


@pytest.mark.slow
def test_more_data_explain_epistemic_uncertainty_away(tmp_path):
    value = _quick("kendall-gal-uncertainty", tmp_path)
    for task in ("curve", "digits"):
        bayes = f"{task}, Bayes by Backprop"
        assert value[f"{bayes}: epistemic, trained on ¼ / all"] > 1.5
        for method in ("MC dropout", "Bayes by Backprop"):
            assert value[f"{task}, {method}: epistemic, other / same data"] > 1.5


def _quick(name, folder):
    return {row.quantity: row.mean for row in experiments.run(name, "quick", out=folder).result.rows}
