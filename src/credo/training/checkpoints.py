"""Checkpoints of training: a run that can be loaded, and beside it what the optimiser needs to go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import Optimizer

from credo._files import check_replaceable, read_json, to_json, write_folder
from credo.errors import LoadError

if TYPE_CHECKING:
    from credo.methods.network import NetworkMethod

_OPTIMIZER, _TRAINING = "optimizer.safetensors", "training.json"


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that a checkpoint must not replace, before training rather than after the first epoch."""
    from credo import io

    check_replaceable(folder, (io.TENSORS, io.CARD, _OPTIMIZER, _TRAINING))


class State(NamedTuple):
    """Where a training run stands."""

    epochs_done: int
    epochs: int
    seed: int
    n_data: int
    step: int
    best_epoch: int
    best_score: float | None
    history: list[dict[str, float]]
    scaler: dict[str, float]
    """The loss scale of 16-bit precision; empty elsewhere."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read and found to fit the model, but not applied yet."""

    state: State
    best: dict[str, Tensor]
    """The model's tensors at its best validation score, or nothing."""
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    source: str

    def apply(self, model: NetworkMethod, optimizer: Optimizer) -> None:
        """Put model and optimiser where the checkpoint left them."""
        from credo import io

        io.put_tensors(model, self.model, self.source)
        optimizer.load_state_dict(self.optimizer)
        model.history = list(self.state.history)


def write(
    folder: str | Path, model: NetworkMethod, optimizer: Optimizer, state: State, best: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint, replacing the previous one as a whole."""
    from credo import io

    tensors: dict[str, Tensor] = {f"best.{name}": value for name, value in best.items()}
    numbers: dict[str, Any] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"state.{index}.{key}"] = value
    training = {**state._asdict(), "optimizer": type(optimizer).__name__, "optimizer_numbers": numbers}
    write_folder(
        folder,
        {
            io.TENSORS: to_bytes(io.unique_tensors(model)),
            io.CARD: to_json(io.describe(model)),
            _OPTIMIZER: to_bytes({name: io.to_cpu(value) for name, value in tensors.items()}),
            _TRAINING: to_json(training),
        },
    )


def read(folder: str | Path, model: NetworkMethod, optimizer: Optimizer) -> Checkpoint:
    """Read a checkpoint and check that it fits; nothing is changed yet."""
    from credo import io

    path = Path(folder)
    training = read_json(path / _TRAINING)
    name = type(optimizer).__name__
    if training.get("optimizer") != name:
        raise LoadError(f"{path} was written with the optimiser {training.get('optimizer')!r}, not {name!r}")
    best: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for key, value in io.get_tensors(path / _OPTIMIZER).items():
        kind, _, rest = key.partition(".")
        (best if kind == "best" else tensors)[rest] = value
    numbers = training.get("optimizer_numbers")
    if not isinstance(numbers, dict):
        raise _damaged(path)
    numbers = {key.partition(".")[2]: value for key, value in numbers.items()}
    return Checkpoint(
        _state(training, path),
        _checked_best(best, model, path),
        io.get_tensors(path / io.TENSORS),
        {
            "state": _optimizer_state({**tensors, **numbers}, optimizer, path),
            "param_groups": optimizer.state_dict()["param_groups"],
        },
        str(path),
    )


def _state(training: dict[str, Any], path: Path) -> State:
    kinds = {name: list if name == "history" else dict if name == "scaler" else int for name in State._fields}
    kinds["best_score"] = float | int | None  # type: ignore[assignment]
    if not all(isinstance(training.get(name, path), kind) for name, kind in kinds.items()):
        raise _damaged(path)
    return State(**{name: training[name] for name in kinds})


def _checked_best(best: dict[str, Tensor], model: NetworkMethod, path: Path) -> dict[str, Tensor]:
    expected = {name: value.shape for name, value in model.state_dict().items()}
    if best and {name: value.shape for name, value in best.items()} != expected:
        raise LoadError(f"the best weights in {path} are not those of this model; pass the model it was written for")
    return best


def _optimizer_state(values: dict[str, Any], optimizer: Optimizer, path: Path) -> dict[int, dict[str, Any]]:
    """The optimiser's state by parameter, each tensor of a shape that can belong to its parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        index, _, key = name.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise _damaged(path)
        shape = parameters[int(index)].shape
        own = value.shape if isinstance(value, Tensor) else ()
        if len(own) == len(shape) and any(a not in (b, 1) for a, b in zip(own, shape, strict=True)):
            raise LoadError(f"the state of the optimiser in {path} does not fit the model's parameters")
        state.setdefault(int(index), {})[key] = value
    return state


def _damaged(path: Path) -> LoadError:
    return LoadError(f"{path / _TRAINING} is damaged or was not written by this version of credo")
