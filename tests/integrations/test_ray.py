"""Ray tasks: results of one machine, also when a worker is lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score
from torch import nn

import credo
from credo.errors import InputError
from credo.integrations import ray as integration
from credo.seeding import seeded
from credo.tabular.comparison import compare
from integrations.conftest import make_table

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

ray = pytest.importorskip("ray", reason="needs the extra ray")


@pytest.fixture(scope="module")
def cluster():
    path = os.pathsep.join([str(Path(credo.__file__).parents[1]), str(Path(__file__).parents[1])])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def make_net() -> nn.Module:
    with seeded(0, torch.device("cpu")):
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def make_ensemble() -> credo.DeepEnsemble:
    with seeded(1, torch.device("cpu")):
        return credo.DeepEnsemble(make_net(), members=3, members_at_once=False)


def table() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def die_once(x: float, marker: str) -> float:
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_is_started_again(cluster, tmp_path):
    marker = tmp_path / "killed"
    assert integration.run_tasks(die_once, [(x, str(marker)) for x in (1.0, 2.0, 3.0)]) == [1.0, 4.0, 9.0]
    assert marker.exists()


def test_members_are_those_of_one_machine(cluster):
    options = {"epochs": 3, "batch_size": 16, "seed": 0}
    alone, together = make_ensemble().fit(table(), **options), make_ensemble()
    integration.fit_ensemble(together, table(), **options)
    for name, value in alone.state_dict().items():
        assert torch.equal(together.state_dict()[name], value), name
    assert [entry["nll"] for entry in together.history] == [entry["nll"] for entry in alone.history]
    assert torch.equal(together.predict(table()[0]).mean, alone.predict(table()[0]).mean)


@pytest.mark.slow
def test_folds_of_a_comparison_are_those_of_one_machine(cluster):
    frame = make_table()
    frame["target"] = frame["size"].fillna(0.0) + (frame["color"] == "red")
    options = {"task": "regression", "methods": ["map"], "folds": 3, "epochs": 3}
    alone, together = compare(frame, "target", **options), integration.compare(frame, "target", **options)
    assert together.results[0].fold_nll == pytest.approx(alone.results[0].fold_nll, rel=1e-12)


@pytest.mark.slow
def test_scikit_learn_scores_on_ray(cluster):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = credo.Regressor("map", epochs=2, random_state=0, progress=False)
    alone = cross_val_score(model, X, X[:, 0], cv=3)
    with integration.joblib_backend():
        together = cross_val_score(model, X, X[:, 0], cv=3, n_jobs=-1)
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_a_wrong_option_is_named_before_tasks_start(cluster):
    with pytest.raises(InputError, match="unknown option of fit"):
        integration.fit_ensemble(make_ensemble(), table(), epoch=3)


def test_without_ray_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the extra `ray`: pip install credo\[ray\]"):
        integration.run_tasks(pow, [(1, 2)])
