"""The model that is served, and its replacement by a new one without a gap."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from credo.errors import CredoError
from credo.io import CARD
from credo.serving.row_schema import RowSchema
from credo.serving.served_model import ServedModel

_LOGGER = logging.getLogger("credo.serving")

Signature = tuple[int, int, int] | None


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model and the types of its rows."""

    model: ServedModel
    schema: RowSchema


class ModelStore:
    """Holds the current model. A request keeps the one that it began with.

    Args:
        path: the folder of the model.
        device: the device to predict on.
        on_reload: called with the version of a new model, or with ``None`` if it could not be loaded.

    Attributes:
        current: the model that new requests get.
        error: why the last reload failed; empty if it did not.

    Raises:
        CredoError: if the folder cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        device: str | None = None,
        on_reload: Callable[[str | None], None] = lambda version: None,
    ) -> None:
        self._path = Path(path)
        self._device = device
        self._on_reload = on_reload
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="credo-load")
        self.error = ""
        self._signature = self._look()
        self.current = self._load()

    async def reload(self) -> Loaded:
        """Load the folder again and replace the current model once the new one has predicted a row.

        Returns:
            The new model.

        Raises:
            CredoError: if it cannot be loaded; the current model stays.
        """
        async with self._lock:
            self._signature = self._look()
            try:
                loaded = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
            except CredoError as error:
                self.error = str(error)
                self._on_reload(None)
                _LOGGER.warning(
                    "%s cannot be loaded, model %s stays: %s", self._path, self.current.model.version, error
                )
                raise
            self.error = ""
            self._on_reload(loaded.model.version)
            _LOGGER.info("model %s replaces %s", loaded.model.version, self.current.model.version)
            self.current = loaded
            return loaded

    async def reload_if_changed(self) -> bool:
        """Reload if the folder was replaced; errors are logged.

        Returns:
            Whether a new model is served.
        """
        if self._look() in (None, self._signature):
            return False
        try:
            await self.reload()
        except CredoError:
            return False
        return True

    async def watch(self, seconds: float) -> None:
        """Call :meth:`reload_if_changed` again and again, ``seconds`` apart."""
        while True:
            await asyncio.sleep(seconds)
            await self.reload_if_changed()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _load(self) -> Loaded:
        model = ServedModel(self._path, self._device)
        return Loaded(model, RowSchema(model))

    def _look(self) -> Signature:
        """What changes with the card of a folder; ``None`` if there is none now."""
        try:
            found = os.stat(self._path / CARD)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
