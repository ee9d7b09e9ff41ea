"""``kill -9`` at random points of ``save``, of ``fit`` with checkpoints and of ``credo fit``: nothing is half there.

A copy of the process counts the function calls that it makes and kills itself at a chosen one. Servers are killed in
``tests/serving/test_faults.py``.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import credo
from credo import _files, cli
from credo.seeding import seeded
from credo.tabular.runs import open_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is copied by os.fork")


def calls_in_copy(work: Callable[[], object], at: int | None = None, file: str | None = None) -> int | None:
    """Run ``work`` in a copy of this process, which is killed at call number ``at``.

    Args:
        work: what is done.
        at: the number of a call of a function, Python's or C's, or of its return; ``None``: nothing is killed.
        file: only the calls that are made in this source file are counted; ``None``: all.

    Returns:
        The number of calls, or ``None`` if the process was killed.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, if there are threads
        child = os.fork()
    if child == 0:
        found = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal found
            found += file is None or frame.f_code.co_filename == file
            if found == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            work()
            sys.setprofile(None)
            os.write(writer, b"%d" % found)
            os._exit(0)
        except BaseException:
            sys.setprofile(None)
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return int(told) if told else None


def points(total: int | None, number: int) -> list[int]:
    """Random calls of ``total``."""
    assert total is not None
    return random.Random(0).sample(range(1, total + 1), min(number, total))


def make_net() -> nn.Sequential:
    with seeded(0, torch.device("cpu")):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def table() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 24).view(12, 2)
    return x, x.sum(1, keepdim=True).sin()


def fit(**options: Any) -> credo.BayesByBackprop:
    options = {"epochs": 4, "batch_size": 6, "seed": 0, "progress": False, **options}
    return credo.BayesByBackprop(make_net(), credo.Gaussian(0.1)).fit(table(), **options)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_a_killed_save_leaves_the_old_run_or_the_new_one(tmp_path: Path) -> None:
    """60 kills where files are written, 10 anywhere. A save that has returned is never undone."""
    path = tmp_path / "run"
    models = [fit(seed=seed) for seed in (0, 1)]
    models[0].save(path)
    found = set()
    for file, number in ((_files.__file__, 60), (None, 10)):
        total = calls_in_copy(lambda: models[0].save(path), file=file)
        for kill, point in enumerate(points(total, number)):
            new = models[kill % 2]
            before = weights(credo.load(path, net=make_net()))
            assert calls_in_copy(lambda new=new: new.save(path), point, file) is None
            after = weights(credo.load(path, net=make_net()))
            kept, replaced = torch.equal(after, before), torch.equal(after, weights(new))
            assert kept or replaced
            found |= {("kept", kept), ("replaced", replaced)}
    assert {("kept", True), ("replaced", True)} <= found
    models[1].save(path)
    assert torch.equal(weights(credo.load(path, net=make_net())), weights(models[1]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("file", [None, _files.__file__], ids=["anywhere", "where files are written"])
def test_a_killed_fit_continues_from_its_checkpoint_to_the_same_bits(tmp_path: Path, file: str | None) -> None:
    """8 kills; each run is then continued to the end."""
    expected = weights(fit())
    total = calls_in_copy(lambda: fit(checkpoint=tmp_path / "whole"), file=file)
    for point in points(total, 8):
        path = tmp_path / f"run{point}"
        assert calls_in_copy(lambda path=path: fit(checkpoint=path), point, file) is None
        again = fit(checkpoint=path, resume=True)
        assert torch.equal(weights(again), expected)
        assert len(again.history) == 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_credo_fit_leaves_the_old_run_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Half of the kills where files are written, half anywhere; the seed tells which run is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("credo.report.render", lambda *rows, **options: "<!doctype html>")
    x = [f"{i},{i % 3},{0.1 * i * (i % 3)}" for i in range(40)]
    Path("data.csv").write_text("\n".join(["a,b,y", *x]) + "\n")

    def command(seed: int) -> None:
        words = ["fit", "data.csv", "--target", "y", "--method", "map", "--epochs", "1", "--seed", str(seed)]
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 0, result.output

    command(0)
    seed = 0
    for file in (None, _files.__file__):
        total = calls_in_copy(lambda: command(0), file=file)
        for point in points(total, kills // 2):
            before, seed = open_run("run").record["seed"], seed + 1
            assert calls_in_copy(lambda seed=seed: command(seed), point, file) is None
            assert open_run("run").record["seed"] in (before, seed)  # its digests are checked
    command(1000)
    assert open_run("run").record["seed"] == 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "run"]
