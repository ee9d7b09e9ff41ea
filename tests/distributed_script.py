"""A training script as a user would write it, for two processes; what each saw goes to a file of its own.

Run as ``python distributed_script.py FOLDER STRATEGY``. With ``ddp`` Fabric starts this script a second time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.errors import CredoError
from credo.methods import NetworkMethod
from credo.seeding import seeded

ROWS, BATCH, EPOCHS = 21, 5, 6
"""Neither do the rows fill their batches, nor the batches divide between two processes."""


def make_net(norm: bool = False) -> nn.Sequential:
    with seeded(0, torch.device("cpu")):
        return nn.Sequential(nn.Linear(1, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh(), nn.Linear(8, 1))


def table() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1.0, 1.0, ROWS)[:, None]
    return x, (3.0 * x).sin()


def fit(model: NetworkMethod, data: Any = None, **options: Any) -> NetworkMethod:
    defaults = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 1e-2, "seed": 0}
    return model.fit(table() if data is None else data, **{**defaults, **options})


def fit_map(**options: Any) -> NetworkMethod:
    return fit(credo.MAP(make_net(), credo.Gaussian(0.3)), **options)


def fit_bbb(**options: Any) -> NetworkMethod:
    return fit(credo.BayesByBackprop(make_net(), credo.Gaussian(0.3)), **{"epochs": 30, "lr": 0.05, **options})


def digest(model: nn.Module) -> str:
    tensors = model.state_dict().values()
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in tensors)).hexdigest()


def record_terms(model: NetworkMethod) -> list[float]:
    """The negative log likelihood of every step, as this process sees it."""
    seen: list[float] = []
    terms = model.terms

    def spy(*args: Any, **kwargs: Any) -> Any:
        result = terms(*args, **kwargs)
        seen.append(result.nll.item())
        return result

    model.terms = spy  # type: ignore[method-assign]
    return seen


def crash_in_epoch_4(progress: float) -> float:
    if progress * EPOCHS > 3.1:
        raise RuntimeError("crash")
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def explode_in_epoch_3(progress: float) -> float:
    return 1.0 if progress * EPOCHS < 2 - 1e-9 else 1e30


def with_script(folder: Path) -> dict[str, Any]:
    """Everything that two processes started from a script do; the process group lives on from fit to fit."""
    processes = {"devices": 2, "strategy": "ddp", "device": "cpu"}
    seen: dict[str, Any] = {}

    model = fit_map(**processes)
    seen["map"] = {"digest": digest(model), "n_data": model.n_data, "nll": [entry["nll"] for entry in model.history]}
    model = fit_bbb(checkpoint=folder / "bbb", **processes)
    seen["bbb"] = {"digest": digest(model), "n_data": model.n_data}

    alike = credo.BayesByBackprop(make_net(), credo.Gaussian(0.3))
    noise = record_terms(alike)
    fit(alike, (torch.ones(8, 1), torch.ones(8, 1)), batch_size=8, epochs=2, **processes)
    seen["noise"] = noise

    x, y = table()
    model = credo.MAP(make_net(norm=True), credo.Gaussian(0.3))
    fit(model, validation=(x, 0.3 * y), patience=2, epochs=25, batch_size=11, schedule="constant", **processes)
    seen["early stopping"] = {"digest": digest(model), "epochs": len(model.history)}

    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    seen["loader"] = {"digest": digest(fit_map(data=loader, **processes))}

    place = {"checkpoint": folder / "resumed", **processes}
    try:
        fit_map(schedule=crash_in_epoch_4, **place)
    except RuntimeError as error:
        seen["crash"] = str(error)
    seen["resumed"] = digest(fit_map(resume=True, **place))
    return seen


def with_fork(folder: Path) -> dict[str, Any]:
    """Errors and results that come home from forked processes."""
    processes = {"devices": 2, "strategy": "ddp_fork", "device": "cpu"}
    seen: dict[str, Any] = {}
    model = credo.MAP(make_net(), credo.Gaussian(0.3))
    before = digest(model)
    for name, options in {
        "misfits": {"data": (table()[0], table()[1][:, 0])},
        "diverges": {"lr": 1e30},
        "diverges later": {"schedule": explode_in_epoch_3},
    }.items():
        try:
            fit(model, **options, **processes)
        except CredoError as error:
            seen[name] = {
                "type": type(error).__name__,
                "message": str(error),
                "unchanged": digest(model) == before,
                "epochs": len(model.history),
            }
    model = credo.MAP(make_net())
    fit(model, epochs=100, batch_size=ROWS, **processes)
    seen["long history"] = len(model.history)
    seen["likelihood"] = type(model.likelihood).__name__
    return seen


if __name__ == "__main__":
    folder, strategy = Path(sys.argv[1]), sys.argv[2]
    seen = with_script(folder) if strategy == "ddp" else with_fork(folder)
    (folder / f"rank{os.environ.get('LOCAL_RANK', 0)}.json").write_text(json.dumps(seen))
