"""The contract of a method: a module whose forward is its loss, with ``fit``, ``predict`` and ``save``."""

from __future__ import annotations

import inspect
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.utils.data import DataLoader

from credo import data as data_
from credo.errors import InputError
from credo.predictive import Predictive


class Method(nn.Module, ABC):
    """How a posterior is found. ``model(x, y)`` is the loss; ``model.predict(x)`` the predictive distribution."""

    registry: ClassVar[dict[str, type[Method]]] = {}
    history: list[dict[str, float]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.isabstract(cls):
            Method.registry[cls.__name__] = cls

    @abstractmethod
    def forward(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The loss per datum, differentiable."""

    @abstractmethod
    def fit(self, data: Any, **options: Any) -> Self:
        """Learn from ``data``: a DataLoader, a Dataset, or (X, y) tensors or arrays."""

    @abstractmethod
    def predictor(self, samples: int, seed: int | None) -> Predictor:
        """What predicts with fixed draws, for as many batches as needed."""

    @abstractmethod
    def config(self) -> dict[str, object]:
        """What JSON can hold of the constructor's arguments."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the method again from :meth:`config`, with a network of the same shape."""

    def loss(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The same as ``model(x, y)``, by its name, for your own training loop."""
        return self.forward(x, y, n_data, **options)

    def predict(self, x: Any, samples: int = 100, seed: int | None = None, batch_size: int | None = None) -> Predictive:
        """The predictive distribution for the rows of ``x``.

        The network is left exactly as it was; with a seed, so is torch's random state. Draw ``s`` is one
        function for all rows, whatever the batch size and order of rows.

        Args:
            x: a tensor or array of rows; a tuple or mapping of them; or a DataLoader, which is streamed and
                whose predictions come back as one object on the CPU.
            samples: how many posterior draws; 0 gives the deterministic prediction of the mean weights.
            seed: the same seed gives the same draws.
            batch_size: rows to put through the network at once; by default as memory allows.
        """
        if isinstance(x, DataLoader):
            return Predictive.concatenate([p.cpu() for p in self.stream(x, samples, seed)])
        return self.predictor(samples, seed)(x, batch_size)

    def stream(self, batches: Iterable[Any], samples: int = 100, seed: int | None = None) -> Iterator[Predictive]:
        """Predict batch by batch in bounded memory, with the same draws for all of them.

        Args:
            batches: inputs, or (input, target, ...) tuples or lists as a DataLoader yields them.
            samples: how many posterior draws.
            seed: for the draws.
        """
        predictor = self.predictor(samples, seed)
        for batch in data_.undisturbed(batches):
            yield predictor(data_.inputs_of(batch))

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


class Predictor(ABC):
    """Predicts with draws that stay the same from batch to batch."""

    @abstractmethod
    def __call__(self, x: Any, batch_size: int | None = None) -> Predictive:
        """The predictive distribution for the rows of ``x``."""


def check_samples(samples: object, least: int = 0) -> None:
    """Refuse a number of draws below ``least``."""
    if isinstance(samples, bool) or not isinstance(samples, numbers.Integral) or int(samples) < least:
        raise InputError(f"samples must be {least} or more, got {samples!r}")
