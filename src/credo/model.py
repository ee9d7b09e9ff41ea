"""What everything credo learns by gradient has in common: a module that can be fitted, described and saved."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn


class Model(nn.Module, ABC):
    """A module with ``fit`` and ``save``. Finished subclasses are registered by name, which is how a card names them.

    Attributes:
        history: one entry an epoch of its training.
    """

    registry: ClassVar[dict[str, type[Model]]] = {}
    history: list[dict[str, float]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.isabstract(cls):
            Model.registry[cls.__name__] = cls

    @abstractmethod
    def fit(self, data: Any, **options: Any) -> Self:
        """Learn from ``data``."""

    @abstractmethod
    def get_config(self) -> dict[str, object]:
        """What JSON can hold of the constructor's arguments."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model again from :meth:`get_config`, with a network, or networks, of the same shape."""

    @abstractmethod
    def network_card(self) -> dict[str, object]:
        """What a saved run says about the network."""

    def training_card(self) -> dict[str, object]:
        """What a saved run says about its training."""
        return {"history": self.history}

    def restore_training(self, card: object) -> None:
        """Take over what :meth:`training_card` said, as far as it makes sense."""
        history = card.get("history") if isinstance(card, dict) else None
        if isinstance(history, list):
            self.history = history

    def save(self, path: str | Path) -> None:
        """Write ``path/model.safetensors`` and ``path/card.json``; read them back with :func:`credo.load`."""
        from credo import io

        io.save(self, path)
