"""Checkpoints of training: a saved model, and the state of the optimizers beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer

from credo import _tensors, io
from credo._files import check_folder_writable, check_replaceable, read_json, to_json, write_folder, write_lock
from credo.errors import LoadError

_OPTIMIZER, _TRAINING = "optimizer.safetensors", "training.json"


@contextlib.contextmanager
def folder_for(folder: str | Path | None, rank: int) -> Iterator[None]:
    """Reserve the folder of the checkpoints during training, after checking that it may be replaced."""
    names = (_tensors.TENSORS, io.CARD, _OPTIMIZER, _TRAINING)
    with contextlib.ExitStack() as stack:
        if folder is not None and rank == 0:
            stack.enter_context(write_lock(folder))
            check_folder_writable(folder, names)
        elif folder is not None:
            check_replaceable(folder, names)
        yield


class State(NamedTuple):
    """The progress of a training run."""

    epochs_done: int
    epochs: int
    seed: int
    n_data: int
    step: int
    best_epoch: int
    best_score: float | None
    history: list[dict[str, float]]
    scaler: dict[str, float]
    """The loss scale of 16-bit precision; otherwise empty."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read and checked against the model, but not applied yet."""

    state: State
    best: dict[str, Tensor]
    """The model's tensors at its best validation score, or empty."""
    model: dict[str, Tensor]
    optimizers: dict[str, dict[str, Any]]
    """The state of every optimizer."""
    source: str

    def apply(self, model: Any, optimizers: Mapping[str, Optimizer]) -> None:
        """Restore the model, its history and its optimizers."""
        _tensors.put_tensors(model, self.model, self.source)
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(self.optimizers[name])
        model.history = list(self.state.history)


def write(
    folder: str | Path, model: Any, optimizers: Mapping[str, Optimizer], state: State, best: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint, replacing the previous one as a whole."""
    tensors: dict[str, Tensor] = {f"best.{name}": value for name, value in best.items()}
    numbers: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                (tensors if isinstance(value, Tensor) else numbers)[f"state.{name}.{index}.{key}"] = value
    training = {**state._asdict(), "optimizers": _kinds(optimizers), "optimizer_numbers": numbers}
    weights = _tensors.tensor_bytes(model)
    optimizer_state = to_bytes({name: _tensors.to_cpu(value) for name, value in tensors.items()})
    training["digests"] = {_tensors.TENSORS: _tensors.digest(weights), _OPTIMIZER: _tensors.digest(optimizer_state)}
    write_folder(
        folder,
        {
            _tensors.TENSORS: weights,
            io.CARD: to_json(io.describe(model, weights)),
            _OPTIMIZER: optimizer_state,
            _TRAINING: to_json(training),
        },
    )


def read(folder: str | Path, model: Any, optimizers: Mapping[str, Optimizer]) -> Checkpoint:
    """Read a checkpoint and check that it matches the model; nothing is changed yet."""
    path = Path(folder)
    training = read_json(path / _TRAINING)
    kinds = _kinds(optimizers)
    if training.get("optimizers") != kinds:
        written = training.get("optimizers")
        found = written.values() if isinstance(written, dict) else [written]
        raise LoadError(
            f"{path} was written with the optimizer {', '.join(map(repr, found))}, not "
            f"{', '.join(map(repr, kinds.values()))}"
        )
    best: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in _tensors.get_tensors(path / _OPTIMIZER).items():
        kind, _, rest = key.partition(".")
        (best if kind == "best" else values)[rest] = value
    numbers = training.get("optimizer_numbers")
    if not isinstance(numbers, dict):
        raise _damaged(path)
    values.update({key.partition(".")[2]: value for key, value in numbers.items()})
    if not {name.partition(".")[0] for name in values} <= optimizers.keys():
        raise _damaged(path)
    states = {
        name: {
            "state": _optimizer_state(_under(name, values), optimizer, path),
            "param_groups": optimizer.state_dict()["param_groups"],
        }
        for name, optimizer in optimizers.items()
    }
    checked = _checked_best(best, model, path)
    weights = _tensors.get_tensors(path / _tensors.TENSORS)
    digests = training.get("digests")
    for name in (_tensors.TENSORS, _OPTIMIZER):
        _tensors.check_digest(path / name, digests.get(name) if isinstance(digests, dict) else None, _TRAINING)
    return Checkpoint(_state(training, path), checked, weights, states, str(path))


def _kinds(optimizers: Mapping[str, Optimizer]) -> dict[str, str]:
    return {name: type(optimizer).__name__ for name, optimizer in optimizers.items()}


def _under(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names begin with ``prefix.``, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _state(training: dict[str, Any], path: Path) -> State:
    kinds = {name: list if name == "history" else dict if name == "scaler" else int for name in State._fields}
    kinds["best_score"] = float | int | None  # type: ignore[assignment]
    if not all(isinstance(training.get(name, path), kind) for name, kind in kinds.items()):
        raise _damaged(path)
    return State(**{name: training[name] for name in kinds})


def _checked_best(best: dict[str, Tensor], model: nn.Module, path: Path) -> dict[str, Tensor]:
    expected = {name: value.shape for name, value in _tensors.changing_tensors(model).items()}
    if best and {name: value.shape for name, value in best.items()} != expected:
        raise LoadError(f"the best weights in {path} are not those of this model; pass the model it was written for")
    return best


def _optimizer_state(values: dict[str, Any], optimizer: Optimizer, path: Path) -> dict[int, dict[str, Any]]:
    """The optimizer's state by parameter, each tensor of a shape that can belong to its parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        index, _, key = name.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise _damaged(path)
        shape = parameters[int(index)].shape
        own = value.shape if isinstance(value, Tensor) else ()
        if len(own) == len(shape) and any(a not in (b, 1) for a, b in zip(own, shape, strict=True)):
            raise LoadError(f"the state of the optimizer in {path} does not fit the model's parameters")
        state.setdefault(int(index), {})[key] = value
    return state


def _damaged(path: Path) -> LoadError:
    return LoadError(f"{path / _TRAINING} is damaged or was not written by this version of credo")
