"""The contract of a method: a module whose forward is its loss, with ``fit``, ``predict`` and ``save``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from credo import data as data_
from credo.model import Model
from credo.predictive import Predictive


class Method(Model):
    """How a posterior is found. ``model(x, y)`` is the loss; ``model.predict(x)`` the predictive distribution."""

    @abstractmethod
    def forward(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The loss per datum, differentiable."""

    @abstractmethod
    def predictor(self, samples: int, seed: int | None) -> Predictor:
        """What predicts with fixed draws, for as many batches as needed."""

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


class Predictor(ABC):
    """Predicts with draws that stay the same from batch to batch."""

    @abstractmethod
    def __call__(self, x: Any, batch_size: int | None = None) -> Predictive:
        """The predictive distribution for the rows of ``x``."""
