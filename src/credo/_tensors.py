"""Tensors in files: safetensors, with a digest, checked as a whole before anything is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from credo._files import shorten
from credo.errors import InputError, LoadError

TENSORS = "model.safetensors"
_LARGEST_HEADER = 2**24  # of a safetensors file: names, shapes and offsets
_MAX_TENSORS = 2**17


@runtime_checkable
class AdaptsToSaved(Protocol):
    """A module whose tensors depend on its state, such as the masks of a pruned posterior."""

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that the module would have after :meth:`_prepare_for`; only shapes and dtypes matter."""

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Change the module so that it has the tensors of :meth:`_expected_tensors`."""


def digest(content: bytes) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def check_digest(path: Path, expected: object, source: str) -> None:
    """Raise ``LoadError`` if the file ``path`` is not the one that ``source``, a file beside it, was written with."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error
    if found != expected:
        raise LoadError(f"{path} and {source} beside it are not of the same run: one of them was replaced or changed")


def tensor_bytes(module: nn.Module, left_out: Collection[str] = ()) -> bytes:
    """:func:`unique_tensors` as a safetensors file."""
    tensors = unique_tensors(module, left_out)
    if len(tensors) > _MAX_TENSORS:
        raise InputError(f"this model holds {len(tensors):,} tensors, but a run holds {_MAX_TENSORS:,} at most")
    for name, value in _first_names(module):
        if _is_broken(value, isinstance(value, nn.Parameter)):
            raise InputError(f"{name} holds numbers that are NaN or infinite, which would not load: train it again")
    return to_bytes(tensors)


def unique_tensors(module: nn.Module, left_out: Collection[str] = ()) -> dict[str, Tensor]:
    """All parameters and persistent buffers but those ``left_out``, on the CPU; a tied one under its first name."""
    return {name: to_cpu(value) for name, value in _first_names(module) if name not in left_out}


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are not trained, not copied; a tied one under its first name."""
    return {name: value for name, value in _first_names(module) if _is_frozen(value)}


def changing_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What training can change, by its name in ``state_dict``: trainable parameters and buffers, not copied."""
    state = module.state_dict(keep_vars=True)
    return {name: value.detach() for name, value in state.items() if not _is_frozen(value)}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, types, shapes and values, in hexadecimal; one tensor at a time is copied to the CPU."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        found.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def to_cpu(value: Tensor) -> Tensor:
    """A contiguous copy of ``value`` on the CPU that shares memory with nothing."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def get_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a safetensors file."""
    try:
        if not path.is_file():
            raise LoadError(f"{path} does not exist or is not a file")
        with path.open("rb") as start:
            header = int.from_bytes(start.read(8), "little")
        if _LARGEST_HEADER < header <= path.stat().st_size:
            raise LoadError(f"{path} has a header larger than any that credo writes")
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if len(names) > _MAX_TENSORS:
                raise LoadError(f"{path} holds {len(names):,} tensors, but a run holds {_MAX_TENSORS:,} at most")
            return {name: file.get_tensor(name) for name in names}
    except LoadError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise LoadError(f"{path} is truncated or not a safetensors file: {shorten(error)}") from error


@torch.no_grad()
def put_tensors(module: nn.Module, values: Mapping[str, Tensor], source: str) -> None:
    """Copy ``values`` into the parameters and buffers of ``module``; all of them, or none.

    Submodules whose tensors depend on their state take part as :class:`AdaptsToSaved`.

    Args:
        module: the model.
        values: tensors by name, as :func:`unique_tensors` returns them.
        source: where they come from, for errors.

    Raises:
        LoadError: names, shapes or dtypes do not match, or values are NaN or infinite; ``module`` is unchanged.
    """
    adaptive = {
        prefix: (part, {n.removeprefix(f"{prefix}."): v for n, v in values.items() if n.startswith(f"{prefix}.")})
        for prefix, part in module.named_modules()
        if isinstance(part, AdaptsToSaved)
    }
    expected: dict[str, Tensor] = dict(_first_names(module))
    for prefix, (part, saved) in adaptive.items():
        for name in [name for name in expected if name.startswith(f"{prefix}.")]:
            del expected[name]
        expected |= {f"{prefix}.{name}": value for name, value in part._expected_tensors(saved).items()}
    missing, unexpected = expected.keys() - values.keys(), values.keys() - expected.keys()
    if missing or unexpected:
        parts = [f"lacks {shorten(sorted(missing))}"] if missing else []
        parts += [f"holds {shorten(sorted(unexpected))}, which the model does not have"] if unexpected else []
        raise LoadError(
            f"{source} does not match the network: it {' and '.join(parts)}; pass the architecture it was saved with, "
            "with the same parameters frozen"
        )
    for name, value in expected.items():
        new = values[name]
        if new.shape != value.shape or new.dtype != value.dtype:
            raise LoadError(
                f"{source} does not match the network: {name} is {new.dtype} {list(new.shape)} there, "
                f"{value.dtype} {list(value.shape)} here"
            )
        if _is_broken(new, isinstance(value, nn.Parameter) or value.requires_grad):
            raise LoadError(f"{source} holds numbers that are NaN or infinite, in {shorten(name)}: train it again")
    for part, saved in adaptive.values():
        part._prepare_for(saved)
    for name, value in _first_names(module):
        value.copy_(values[name])


def _is_broken(value: Tensor, is_parameter: bool) -> bool:
    """Whether it is NaN or infinite; buffers such as attention masks may hold infinities."""
    return bool(value.isnan().any() or (is_parameter and value.isinf().any()))


def _is_frozen(value: object) -> bool:
    return isinstance(value, nn.Parameter) and not value.requires_grad


def _first_names(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield name, value
