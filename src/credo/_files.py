"""Files and folders that appear whole or not at all, one writer at a time; and JSON that is read with suspicion."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from credo.errors import InputError, LoadError

try:
    import fcntl
except ImportError:  # Windows: writers are not kept apart there
    fcntl = None  # type: ignore[assignment]

_LARGEST_JSON = 64 * 2**20
_MAX_CONTAINERS, _MAX_VALUES = 2**20, 2**23  # in a JSON file: a pair of brackets takes 30 times its size in memory
_INDENTED = 2**20  # larger JSON is not for people to read
_LONGEST_QUOTE = 300
_MARK = ".credo-"
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}  # file systems that have none
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextlib.contextmanager
def write_lock(path: str | Path, *, wait: bool = False) -> Iterator[Path]:
    """Be the only writer of ``path``, a file or a folder, until the end of the block.

    Folders above it are made, and removed at the end if they are empty. What killed writers left beside it is removed,
    and a replacement that was cut off between its two steps is undone. In the block, the same thread may reserve
    ``path`` again.

    Args:
        path: what will be written.
        wait: until another writer is done.

    Raises:
        InputError: another writer is at work there, or nothing can be written.
    """
    held = _HELD.get()
    with _writing(path):
        target = _resolved(path)
        lock = None if target in held else _Lock(target, wait)
    if lock is None:
        yield target
        return
    token = _HELD.set(held | {target})
    try:
        yield target
    finally:
        _HELD.reset(token)
        lock.release()


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of ``files`` that appears whole or not at all; replaces only a folder of such files.

    The new folder is written beside the old one and takes its place by renaming. Between the two renames the old
    one stands under the name :func:`recover` looks for.
    """
    with write_lock(path) as target, _writing(target):
        check_replaceable(target, files)
        with _staging(target) as staging:
            for name, content in files.items():
                _write_file(staging / name, content)
            staging.chmod(0o755)
            _replace(target, staging)


def check_folder_writable(path: str | Path, names: Collection[str]) -> None:
    """Raise InputError if a folder of files called ``names`` could not be written: tried by writing one."""
    with write_lock(path) as target, _writing(target):
        check_replaceable(target, names)
        with _staging(target) as staging:
            (staging / max(names, key=len)).touch()


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A new file to write to, which takes the place of ``path`` at the end, and is gone where anything failed."""
    with _writing(path):
        _check_regular(Path(path))
        with write_lock(path) as target:
            handle, name = tempfile.mkstemp(prefix=_hidden(target, "").name, dir=target.parent)
            os.close(handle)
            part = Path(name)
            try:
                yield part
                part.chmod(0o644)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)


def check_replaceable(path: str | Path, names: Collection[str]) -> None:
    """Raise InputError if a path is no folder, or a folder that holds anything but files called ``names``."""
    with _writing(path):
        target = recover(path)
        if not target.exists():
            return
        foreign = [target.name]
        if target.is_dir():
            foreign = [p.name for p in target.iterdir() if p.name not in names and not _is_temporary(p)]
    if foreign:
        raise InputError(f"{target} holds other things ({shorten(sorted(foreign))}); choose a new folder")


def recover(path: str | Path) -> Path:
    """Return ``path`` after undoing a replacement that was interrupted between its two steps."""
    target = Path(path).resolve()
    if target.name and not target.exists() and _hidden(target, "previous").exists():
        with write_lock(target, wait=True):  # a writer may be between its two steps right now
            pass
    return target


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of limited size; raises ``LoadError`` otherwise."""
    try:
        if not path.is_file():
            raise LoadError(f"{path} does not exist or is not a file; is {path.parent} a folder that credo saved?")
        if path.stat().st_size > _LARGEST_JSON:
            raise LoadError(f"{path} is too large to be written by credo")
        text = path.read_text(encoding="utf-8")
        if not _is_small(text):
            raise LoadError(f"{path} holds more lists, objects and values than credo writes")
        content = json.loads(text, parse_constant=_reject_constant)
    except LoadError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} is damaged or not JSON: {shorten(error)}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} must hold a JSON object")
    return content


def to_json(value: Mapping[str, Any]) -> bytes:
    """``value`` as JSON that :func:`read_json` takes; numbers that JSON cannot hold become ``null``."""
    plain = _plain(value)
    try:
        text = json.dumps(plain, indent=2, allow_nan=False)
        if len(text) > _INDENTED:
            text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"this cannot be written as JSON: {error}") from error
    if len(text) > _LARGEST_JSON or not _is_small(text):
        raise InputError(f"this is too large to be written as JSON: {len(text) / 2**20:,.0f} MiB, at most 64 are read")
    return text.encode()


def shorten(value: object) -> str:
    """``value`` for an error message: one line, its middle left out where it is long; of a list the first three."""
    text = ", ".join(map(str, value[:3])) if isinstance(value, list) else str(value)
    text = " ".join(text.split())
    half = _LONGEST_QUOTE // 2
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:half]} … {text[-half:]}"


class _Lock:
    """The right to write ``target``: a lock on a file beside it, which the system releases when its holder dies."""

    def __init__(self, target: Path, wait: bool) -> None:
        if not target.name:
            raise InputError(f"{target} cannot be written: choose a folder in it")
        self._path = _hidden(target, "reserved")
        self._made = [folder for folder in target.parents if not folder.exists()]
        self._is_alone = fcntl is not None
        try:
            self._handle = self._acquire(target, wait)
        except BaseException:
            self._remove_made()
            raise
        try:
            _finish_replacement(target)
            if self._is_alone:
                _remove_stale_files(target, keep=self._path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the right back."""
        with contextlib.suppress(OSError):  # the file is removed while it is locked, so that nobody else's is
            self._path.unlink()
        os.close(self._handle)
        self._remove_made()

    def _acquire(self, target: Path, wait: bool) -> int:
        while True:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, f"{self._path.parent} is not a folder") from error
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if self._is_alone:
                    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if self._is_current(handle):
                    return handle
            except BlockingIOError as error:
                os.close(handle)
                raise InputError(
                    f"{target} is being written by another process or thread: wait until it is done, or choose "
                    "another place"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(handle)
                    raise
                self._is_alone = False
            os.close(handle)

    def _is_current(self, handle: int) -> bool:
        """Whether the file is still there: the holder before may have removed it just now."""
        try:
            return os.path.samestat(os.fstat(handle), self._path.stat())
        except FileNotFoundError:
            return False

    def _remove_made(self) -> None:
        for folder in self._made:
            with contextlib.suppress(OSError):  # something was written there
                folder.rmdir()


def _finish_replacement(target: Path) -> None:
    """Undo a replacement that was cut off between its two steps, or clear up after one that was cut off behind them."""
    previous = _hidden(target, "previous")
    if previous.exists() and not target.exists():
        previous.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def _remove_stale_files(target: Path, keep: Path) -> None:
    """Remove what killed writers of ``target`` left beside it."""
    for stray in target.parent.glob(f"{glob.escape(_hidden(target, '').name)}*"):
        if stray.is_dir():
            shutil.rmtree(stray, ignore_errors=True)
        elif stray != keep:
            stray.unlink(missing_ok=True)


def _hidden(target: Path, word: str) -> Path:
    """A name beside ``target`` that only credo uses. Temporary names are as long as these, which have eight letters."""
    return target.with_name(f".{target.name}{_MARK}{word}")


def _is_temporary(path: Path) -> bool:
    """Whether this is what a killed writer left."""
    return path.name.startswith(".") and _MARK in path.name


def _resolved(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL in it, a circle of links
        raise InputError(f"{str(path)!r} is not a path: {error}") from error


@contextlib.contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """Errors of the file system as a sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{shorten(path)} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, gone at the end if it was not renamed."""
    staging = Path(tempfile.mkdtemp(prefix=_hidden(target, "").name, dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_regular(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a pipe or a device, which a file cannot replace: give the name of a file")


def _is_small(text: str) -> bool:
    """Whether JSON takes little memory once it is read."""
    return text.count("[") + text.count("{") <= _MAX_CONTAINERS and text.count(",") <= _MAX_VALUES


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(target: Path, new: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    previous = _hidden(target, "previous")
    target.rename(previous)
    try:
        new.rename(target)
    except BaseException:
        previous.rename(target)
        raise
    shutil.rmtree(previous, ignore_errors=True)
