"""The how-to page on other training loops, run where Lightning and transformers are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import credo

pytestmark = [pytest.mark.extras, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "frameworks.md"
LIGHTNING, HUGGING_FACE = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(code: str, folder: Path) -> None:
    """Run code as a script elsewhere: folders of tests, such as ``datasets``, have names that transformers imports."""
    path = {"PYTHONPATH": str(Path(credo.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_lightning_trains_a_posterior(tmp_path):
    """It learns the sine, on a scale of 1, with scales that are no longer those of the start."""
    pytest.importorskip("lightning")
    checks = """
assert float((p.mean - y).square().mean()) < 0.2
assert bool((p.epistemic > 0).all())
scales = torch.cat([scale.flatten() for scale in method.posterior.scale().values()])
assert float((scales - 0.01).abs().max()) > 1e-3
"""
    run(LIGHTNING + checks, tmp_path)


def test_trainer_of_hugging_face_trains_a_posterior(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    names = "import torch\nfrom torch import nn\nimport credo\nfolder = 'out'\n"
    checks = """
assert result.global_step == 12
assert q.mean.shape == (64, 2)
assert hugging_face.predict(rows).predictions.shape == (64, 2)
"""
    run(names + HUGGING_FACE + checks, tmp_path)
