"""The base of everything that is trained by gradient: a module that can be fitted and saved."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from credo import io
from credo.training.loop import train
from credo.training.options import FitKeywords, with_fit_options
from credo.training.task import Task


class Model(nn.Module, ABC):
    """A module with ``fit`` and ``save``; calling it returns its loss.

    Concrete subclasses are registered by name, so that :func:`credo.load` can build them.

    Attributes:
        history: metrics per epoch of the last :meth:`fit`.
        n_data: the number of training data, after :meth:`fit`.
    """

    _training_path: str | None = None
    """How the steps of the last :meth:`fit` ran, in words."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []
        self.n_data: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.isabstract(cls):
            io.MODELS.register(cls)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train on data; a model that was fitted before continues from its weights.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the model is as after its last good epoch.
        """
        train(self._training_task(), data, options)
        return self

    def save(self, path: str | Path, *, frozen: bool = True) -> None:
        """Write ``path/model.safetensors`` and ``path/card.json``, to be read by :func:`credo.load`.

        Args:
            path: a folder; an earlier run there is replaced.
            frozen: whether to write the parameters that are not trained. With ``False``, what was learned about an
                adapter or a head is saved without the network that it belongs to: the files hold a fingerprint of the
                frozen parameters, and :func:`credo.load` takes a network that has the same ones.
        """
        io.save(self, path, frozen=frozen)

    @abstractmethod
    def _training_task(self) -> Task[Any]:
        """How the training loop trains this model."""

    @abstractmethod
    def _get_config(self) -> dict[str, object]:
        """What JSON can hold of the constructor's arguments."""

    @classmethod
    @abstractmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model from :meth:`_get_config`, with a network, or networks, of the same shape."""

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ``LoadError`` for a configuration that asks for more than ``tensors`` can fill."""
        likelihood = config.get("likelihood")
        sizes = [likelihood.get(name) for name in ("outputs", "classes")] if isinstance(likelihood, dict) else []
        io.check_sizes([config.get("latent"), *sizes], tensors)

    @abstractmethod
    def _describe_networks(self) -> dict[str, object]:
        """The networks' classes, and how to build them if they come from ``credo.architectures``."""

    def _describe_training(self) -> dict[str, object]:
        return {"history": self.history, "n_data": self.n_data, "trained_by": self._training_path}

    def _restore_training(self, card: object) -> None:
        """Restore history, number of data and what :meth:`summary` says of training, as far as ``card`` makes sense."""
        found = card if isinstance(card, dict) else {}
        history, n_data, path = (found.get(key) for key in ("history", "n_data", "trained_by"))
        if isinstance(history, list):
            self.history = history
        if isinstance(n_data, int) and n_data > 0:
            self.n_data = n_data
        if isinstance(path, str):
            self._training_path = path
