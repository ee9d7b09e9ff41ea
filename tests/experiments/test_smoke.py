"""Every experiment completes a smoke run without data files."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from matplotlib.image import imread

from credo import experiments

EXTRAS = {"bayesian-lora": ("transformers", "peft")}
"""Packages that an experiment needs beside those of credo."""


LONG = ("lenet-by-method",)
"""Smoke runs of many methods, which take longer than the suite has time for."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in experiments.names()]
)
def test_smoke_run_needs_no_data_files_and_keeps_global_state(name, tmp_path, monkeypatch):
    for package in EXTRAS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{name} needs {package}: pip install 'credo[adapters]'")
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


@pytest.mark.slow
def test_seed_determines_the_values(tmp_path):
    first, again, other = (
        [row.values for row in experiments.run("bbb-regression", "smoke", out=tmp_path, seed=seed).result.rows]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
