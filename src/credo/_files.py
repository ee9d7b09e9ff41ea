"""Folders that are written whole or not at all, and JSON that is read with suspicion."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from credo.errors import InputError, LoadError

_LARGEST_JSON = 64 * 2**20
_LONGEST_QUOTE = 300


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of ``files`` that appears whole or not at all; replaces only a folder of such files.

    The new folder is written beside the old one and takes its place by renaming. Between the two renames the old
    one stands under the name :func:`recover` looks for.
    """
    target = Path(path).resolve()
    try:
        check_replaceable(target, files)
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            for name, content in files.items():
                _write_file(staging / name, content)
            staging.chmod(0o755)
            _replace(target, staging)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error}") from error


def check_replaceable(path: str | Path, names: Collection[str]) -> None:
    """Refuse a path that is no folder, or a folder that holds anything but files called ``names``."""
    target = recover(path)
    if not target.exists():
        return
    foreign = [p.name for p in target.iterdir() if p.name not in names] if target.is_dir() else [target.name]
    if foreign:
        raise InputError(f"{target} holds other things ({shortened(sorted(foreign))}); choose a new folder")


def recover(path: str | Path) -> Path:
    """``path``, after undoing a replacement that was cut off between its two steps."""
    target = Path(path).resolve()
    if not target.exists() and _backup(target).exists():
        _backup(target).rename(target)
    return target


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of reasonable size, or a sentence."""
    try:
        if not path.is_file():
            raise LoadError(f"{path} does not exist or is not a file; is {path.parent} a folder that credo saved?")
        if path.stat().st_size > _LARGEST_JSON:
            raise LoadError(f"{path} is too large to be written by credo")
        content = json.loads(path.read_text(encoding="utf-8"))
    except LoadError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} is damaged or not JSON: {shortened(error)}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} must hold a JSON object")
    return content


def to_json(value: Mapping[str, Any]) -> bytes:
    """``value`` as JSON; numbers that JSON cannot hold become ``null``."""
    try:
        return json.dumps(_plain(value), indent=2, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"this cannot be written as JSON: {error}") from error


def shortened(value: object) -> str:
    """``value`` for an error message: one line, its middle left out where it is long; of a list the first three."""
    text = ", ".join(map(str, value[:3])) if isinstance(value, list) else str(value)
    text = " ".join(text.split())
    half = _LONGEST_QUOTE // 2
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:half]} … {text[-half:]}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _backup(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous") if target.name else target


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(target: Path, new: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    backup = _backup(target)
    shutil.rmtree(backup, ignore_errors=True)
    target.rename(backup)
    try:
        new.rename(target)
    except BaseException:
        backup.rename(target)
        raise
    shutil.rmtree(backup, ignore_errors=True)
