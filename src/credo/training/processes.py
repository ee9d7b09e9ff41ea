"""One process or several: Fabric for the device, and how results of other processes come back."""

from __future__ import annotations

import atexit
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.spawn import ProcessException

from credo import _tensors, errors, io
from credo._files import atomic_file, read_json, to_json
from credo._notices import logger
from credo.data import batches
from credo.errors import CredoError, DivergenceError, InputError
from credo.training.options import FitOptions
from credo.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Train = Callable[["Fabric", Task[Any], Any, FitOptions], None]

_RUN, _ERROR = "run", "error-{}.json"


def make_fabric(options: FitOptions, home: torch.device) -> Fabric:
    """Fabric for ``options``; without a device among them, for the device ``home``."""
    from lightning_fabric import Fabric  # takes seconds, which only training should cost

    if "fsdp" in str(options.strategy).lower():
        raise InputError(
            f"strategy={options.strategy!r} is not for fit, whose checkpoints and best weights are whole models: shard "
            "the model by torch.distributed.fsdp.fully_shard in a loop of your own, as docs/howto/scale.md shows"
        )
    try:
        device = home if options.device is None else torch.device(options.device)
        if device.type == "cuda" and options.devices * options.num_nodes == 1:
            return Fabric(accelerator="cuda", devices=[device.index or 0], precision=options.precision)
        return Fabric(
            accelerator=device.type,
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy=options.strategy,
            precision=options.precision,
        )
    except Exception as error:  # Fabric and torch raise many kinds of errors for unknown names
        raise InputError(f"device, devices, num_nodes, strategy or precision cannot be used here: {error}") from error


def launch(fabric: Fabric, train: Train, task: Task[Any], data: Any, options: FitOptions) -> None:
    """Run ``train`` in as many processes as ``fabric`` has; afterwards the task's model holds what they learned."""
    if options.devices * options.num_nodes == 1:
        train(fabric, task, data, options)
        return
    with tempfile.TemporaryDirectory(prefix="credo-") as folder:
        here = Path(folder)
        try:
            # Fabric copies the modules among the arguments, so that processes do not train one model in shared memory.
            # The rest is bound by partial: Fabric searches arguments for modules, which a frozen dataclass forbids.
            process = partial(
                _process, task=task, train=train, data=data, options=options, folder=here, parent=os.getpid()
            )
            rank_zero = fabric.launch(process, task.module)
        except ProcessException as error:
            if (here / _RUN).exists():
                _load_results(task, here / _RUN, data)
            raise _original(here) or error from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error):
                raise
            raise InputError(
                f"model, data or options cannot be sent to another process ({error}); define functions at the top of a "
                "module, or run a script with strategy='ddp'"
            ) from error
        if rank_zero != os.getpid():
            _load_results(task, here / _RUN, data)


def _process(
    fabric: Fabric,
    module: nn.Module,
    task: Task[Any],
    train: Train,
    data: Any,
    options: FitOptions,
    folder: Path,
    parent: int,
) -> int:
    """Run in each process. Results come back as files: pipes hold too little, shared memory ends with its process."""
    atexit.register(_close_process_group)
    task.model = module
    is_child = os.getpid() != parent
    rank = fabric.global_rank
    try:
        with _silent(rank != 0):
            train(fabric, task, data, options)
    except CredoError as error:
        if is_child:
            with atomic_file(folder / _ERROR.format(rank)) as part:  # the first process to fail ends the others
                part.write_bytes(to_json({"class": type(error).__name__, "message": str(error)}))
            if isinstance(error, DivergenceError):  # raised by all processes at once, each back at its last good state
                if rank == 0:
                    io.save(task.model, folder / _RUN)
                fabric.barrier()
        raise
    if is_child and rank == 0:
        io.save(task.model, folder / _RUN)
    fabric.barrier()
    return os.getpid()


def _close_process_group() -> None:
    """Close the connections to other processes before the interpreter ends, which running threads of gloo may abort."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _load_results(task: Task[Any], run: Path, data: Any) -> None:
    """Load what another process saved into the model of this one."""
    model = task.model
    first = next(iter(batches(task.make_dataset(data), 1, torch.device("cpu"), model.dtype, task.make_batch)))
    with _silent(True):
        task.setup(first)
    _tensors.put_tensors(task.module, _tensors.get_tensors(run / _tensors.TENSORS), str(run))
    model._restore_training(read_json(run / io.CARD)["training"])
    task.module.eval()


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Suppress notices that another process gives."""
    before = logger.disabled
    logger.disabled = before or silent
    try:
        yield
    finally:
        logger.disabled = before


def _original(folder: Path) -> CredoError | None:
    """The error as the first of the processes raised it."""
    for path in sorted(folder.glob(_ERROR.format("*"))):
        told = read_json(path)
        error: CredoError = getattr(errors, told["class"], CredoError)(told["message"])
        return error
    return None
