"""``fit(logger=...)``: options and the entries of the history, in the loggers of Fabric and in any other."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
from lightning_fabric.loggers import CSVLogger
from torch import nn

import credo
from credo.errors import DivergenceError, InputError
from credo.seeding import seeded


class Memory:
    """A logger that has everything Lightning's loggers have."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.parameters: dict[str, Any] = {}
        self.status: str | None = None

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params):
        self.parameters = dict(params)

    def finalize(self, status):
        self.status = status


class Minimal:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def log_metrics(self, metrics, step):
        self.steps.append(step)


def make_net() -> nn.Module:
    with seeded(0, torch.device("cpu")):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def table():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def test_every_logger_gets_the_history():
    memory, minimal = Memory(), Minimal()
    model = credo.MAP(make_net()).fit(
        table(), epochs=3, batch_size=8, seed=0, lr=0.02, validation=table(), logger=[memory, minimal]
    )
    assert [step for step, _ in memory.metrics] == minimal.steps == [3, 6, 9]
    assert [metrics for _, metrics in memory.metrics] == model.history
    assert memory.status == "success"
    assert memory.parameters["method"] == "MAP"
    assert (memory.parameters["lr"], memory.parameters["epochs"], memory.parameters["seed"]) == (0.02, 3, 0)
    assert "validation" not in memory.parameters


def test_logging_does_not_change_the_run():
    plain, logged = (
        credo.BayesByBackprop(make_net()).fit(table(), epochs=2, seed=0, logger=logger) for logger in (None, Memory())
    )
    assert [e["elbo"] for e in plain.history] == [e["elbo"] for e in logged.history]


def test_numbers_that_a_callback_adds_are_logged():
    memory = Memory()

    def square(model, entry):
        entry["own"] = entry["epoch"] ** 2

    credo.MAP(make_net()).fit(table(), epochs=2, seed=0, logger=memory, on_epoch_end=square)
    assert [metrics["own"] for _, metrics in memory.metrics] == [1.0, 4.0]


def test_csv_logger_of_fabric_writes_a_table(tmp_path):
    logger = CSVLogger(tmp_path, name="run")
    model = credo.MAP(make_net()).fit(table(), epochs=3, batch_size=10, seed=0, logger=logger)
    with open(f"{logger.log_dir}/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [2, 4, 6]
    assert [float(row["nll"]) for row in rows] == [entry["nll"] for entry in model.history]


@pytest.mark.parametrize("at_once", [True, False])
def test_members_of_an_ensemble_have_names_of_their_own(at_once):
    memory = Memory()
    credo.DeepEnsemble(make_net, members=2, members_at_once=at_once).fit(table(), epochs=2, seed=0, logger=memory)
    seen = {name for _, metrics in memory.metrics for name in metrics}
    assert {"nll/0", "nll/1", "elbo/0", "elbo/1"} <= seen
    assert "nll" not in seen


def test_a_run_that_fails_is_reported_as_failed():
    memory = Memory()
    with pytest.raises(DivergenceError):
        credo.MAP(make_net()).fit(table(), epochs=3, lr=1e30, schedule="constant", seed=0, logger=memory)
    assert memory.status == "failed"


@pytest.mark.parametrize("logger", ["runs", CSVLogger, [Memory(), 1]])
def test_what_is_no_logger_is_named(logger):
    with pytest.raises(InputError, match="logger must have a method log_metrics"):
        credo.MAP(make_net()).fit(table(), logger=logger)


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tensorboard_logger_of_fabric_writes_events(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from lightning_fabric.loggers import TensorBoardLogger

    logger = TensorBoardLogger(tmp_path, name="run")
    model = credo.MAP(make_net()).fit(table(), epochs=3, batch_size=10, seed=0, logger=logger)
    events = accumulator.EventAccumulator(logger.log_dir)
    events.Reload()
    seen = events.Scalars("nll")
    assert [event.step for event in seen] == [2, 4, 6]
    assert [event.value for event in seen] == pytest.approx([entry["nll"] for entry in model.history])


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_mlflow_logger_of_lightning_writes_metrics_and_parameters(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    address = f"sqlite:///{tmp_path}/mlflow.db"
    logger = loggers.MLFlowLogger("sine", tracking_uri=address, artifact_location=str(tmp_path / "artifacts"))
    model = credo.MAP(make_net()).fit(table(), epochs=3, batch_size=10, seed=0, lr=0.02, logger=logger)
    client = mlflow.tracking.MlflowClient(address)
    seen = client.get_metric_history(logger.run_id, "nll")
    assert sorted((metric.step, metric.value) for metric in seen) == [
        (2 * entry["epoch"], pytest.approx(entry["nll"])) for entry in model.history
    ]
    run = client.get_run(logger.run_id)
    assert run.data.params["lr"] == "0.02"
    assert run.info.status == "FINISHED"
