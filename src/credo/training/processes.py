"""One process or several: Fabric for the device at hand, and the way home for what other processes learned."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.spawn import ProcessException

from credo import errors
from credo._files import read_json
from credo._notices import logger
from credo.errors import CredoError, DivergenceError, InputError
from credo.training.options import Options

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from credo.training.contract import Trainable

Train = Callable[["Fabric", "Trainable", Any, Options], None]

_RUN, _ERROR = "run", "error-{}.json"


def make_fabric(options: Options, home: torch.device) -> Fabric:
    """Fabric for ``options``; without a device among them, for the device ``home``."""
    from lightning_fabric import Fabric  # takes seconds, which only training should cost

    try:
        device = home if options.device is None else torch.device(options.device)
        if device.type == "cuda" and options.devices == 1:
            return Fabric(accelerator="cuda", devices=[device.index or 0], precision=options.precision)
        return Fabric(
            accelerator=device.type, devices=options.devices, strategy=options.strategy, precision=options.precision
        )
    except Exception as error:  # Fabric and torch have many words for a name that does not exist
        raise InputError(f"device, devices, strategy or precision cannot be used here: {error}") from error


def launch(fabric: Fabric, train: Train, model: Trainable, data: Any, options: Options) -> None:
    """Run ``train`` in as many processes as ``fabric`` has; afterwards ``model`` holds what they learned."""
    if options.devices == 1:
        train(fabric, model, data, options)
        return
    with tempfile.TemporaryDirectory(prefix="credo-") as folder:
        here = Path(folder)
        try:
            # Only the model is an argument: Fabric looks into arguments for modules, which a frozen dataclass forbids.
            process = partial(_process, train=train, data=data, options=options, folder=here, parent=os.getpid())
            rank_zero = fabric.launch(process, model)
        except ProcessException as error:
            if (here / _RUN).exists():
                _bring_home(model, here / _RUN, data)
            raise _original(here) or error from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error):
                raise
            raise InputError(
                f"model, data or options cannot be sent to another process ({error}); define functions at the top of a "
                "module, or run a script with strategy='ddp'"
            ) from error
        if rank_zero != os.getpid():
            _bring_home(model, here / _RUN, data)


def _process(
    fabric: Fabric, model: Trainable, train: Train, data: Any, options: Options, folder: Path, parent: int
) -> int:
    """What each process runs. Results travel as files: pipes hold too little, shared memory ends with its owner."""
    from credo import io

    is_child = os.getpid() != parent
    rank = fabric.global_rank
    try:
        with _silent(rank != 0):
            train(fabric, model, data, options)
    except CredoError as error:
        if is_child:
            told = {"class": type(error).__name__, "message": str(error)}
            (folder / _ERROR.format(rank)).write_text(json.dumps(told))
            if isinstance(error, DivergenceError):  # raised by all processes at once, each back at its last good state
                if rank == 0:
                    io.save(model, folder / _RUN)
                fabric.barrier()
        raise
    if is_child and rank == 0:
        io.save(model, folder / _RUN)
    fabric.barrier()
    return os.getpid()


def _bring_home(model: Trainable, run: Path, data: Any) -> None:
    from credo import io
    from credo.data import batches

    first = next(iter(batches(model.as_dataset(data), 1, torch.device("cpu"), model.dtype, model.as_batch)))
    with _silent(True):
        model.resolve(first)
    io.put_tensors(model, io.get_tensors(run / io.TENSORS), str(run))
    model.restore_training(read_json(run / io.CARD)["training"])
    model.eval()


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Keep back notices that another process gives."""
    before = logger.disabled
    logger.disabled = before or silent
    try:
        yield
    finally:
        logger.disabled = before


def _original(folder: Path) -> CredoError | None:
    """The error as the first of the processes raised it."""
    for path in sorted(folder.glob(_ERROR.format("*"))):
        told = json.loads(path.read_text())
        error: CredoError = getattr(errors, told["class"], CredoError)(told["message"])
        return error
    return None
