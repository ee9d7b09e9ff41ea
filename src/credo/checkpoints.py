"""Checkpoints of training: a run that can be loaded, and beside it what the optimiser needs to go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import Optimizer

from credo.errors import LoadError

if TYPE_CHECKING:
    from credo.methods.base import NetworkMethod

_OPTIMIZER, _TRAINING = "optimizer.safetensors", "training.json"


def write(
    folder: str | Path,
    model: NetworkMethod,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    best: Mapping[str, Tensor],
) -> None:
    """Write a checkpoint, replacing the previous one as a whole.

    Args:
        folder: where.
        model: the model as it is now.
        optimizer: its optimiser.
        state: numbers, strings and lists about the training.
        best: the model's tensors at its best validation score, or nothing.
    """
    from credo import io

    tensors: dict[str, Tensor] = {f"best.{name}": value for name, value in best.items()}
    numbers: dict[str, float] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"state.{index}.{key}"] = value
            else:
                numbers[f"state.{index}.{key}"] = value
    tensors = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    training = {**state, "optimizer": type(optimizer).__name__, "optimizer_numbers": numbers}
    io.write_folder(
        folder,
        {
            io.TENSORS: to_bytes(io.unique_tensors(model)),
            io.CARD: json.dumps(io.finite(io.describe(model)), indent=2, allow_nan=False).encode(),
            _OPTIMIZER: to_bytes(tensors),
            _TRAINING: json.dumps(io.finite(training), indent=2, allow_nan=False).encode(),
        },
    )


def read(folder: str | Path, model: NetworkMethod, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put model and optimiser back where a checkpoint left them.

    Returns:
        The ``state`` and the ``best`` tensors that were given to :func:`write`.
    """
    from credo import io

    path = Path(folder)
    training = io.read_json(path / _TRAINING)
    try:
        stored = load_file(path / _OPTIMIZER)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{path / _OPTIMIZER} is missing, truncated or not a safetensors file: {error}") from error
    if training.get("optimizer") != type(optimizer).__name__:
        raise LoadError(f"{path} was written with {training.get('optimizer')}, not {type(optimizer).__name__}")
    state: dict[int, dict[str, Any]] = {}
    best: dict[str, Tensor] = {}
    for name, value in {**stored, **training.pop("optimizer_numbers", {})}.items():
        kind, _, rest = name.partition(".")
        if kind == "best":
            best[rest] = value
        else:
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = value
    io.read_tensors(path / io.TENSORS, model)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return training, best
