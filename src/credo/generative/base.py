"""What the generative models have in common: networks by name, data without targets, training by the core."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import InputError, LoadError
from credo.likelihoods import likelihood_from_config
from credo.methods.network import describe_network
from credo.training.contract import Trainable


class GenerativeModel(Trainable):
    """A model of data x alone: ``model.fit(x)``, then ``model.sample(n)``.

    Data are tensors or arrays ``[N, ...]``, a Dataset or a DataLoader; what stands behind the first part of a pair,
    such as labels, is not looked at. Options of ``fit`` are those of :class:`credo.training.Options`, and two more:
    ``grids``, a folder for pictures of samples, and ``grid_every``, the number of epochs between them.

    Subclasses list their networks in ``parts``; each is an attribute.
    """

    parts: ClassVar[tuple[str, ...]]
    _grids: Path | None = None
    _grid_every: int = 1

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__()
        for name in self.parts:
            setattr(self, name, networks[name])
        self.history = []

    @abstractmethod
    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` new data ``[n, ...]``; with a seed torch's random state is neither used nor changed."""

    @abstractmethod
    def own_config(self) -> dict[str, object]:
        """What JSON can hold of the arguments that are not networks."""

    @abstractmethod
    def check_values(self, x: Tensor) -> None:
        """Refuse data whose values, such as their range, the model cannot mean."""

    @abstractmethod
    def check_call(self, x: Tensor) -> None:
        """Put a batch through the networks and refuse, in a sentence, shapes that do not fit each other."""

    def fit(self, data: Any, *, grids: str | Path | None = None, grid_every: int = 1, **options: Any) -> Self:
        """Learn from ``data``.

        Args:
            data: ``[N, ...]`` tensors or arrays, a Dataset or a DataLoader.
            grids: a folder into which grids of samples are drawn as training goes, ``epoch-0010.png`` and so on.
            grid_every: epochs between two grids.
            options: ``epochs=20, batch_size=128, lr=1e-3, validation=None, device=None, seed=None`` and more, see
                :class:`credo.training.Options`.
        """
        if isinstance(grid_every, bool) or not isinstance(grid_every, int) or grid_every < 1:
            raise InputError(f"grid_every must be a whole number of epochs, 1 or more, got {grid_every!r}")
        self._grids, self._grid_every = (None if grids is None else Path(grids)), grid_every
        try:
            return super().fit(data, **options)
        finally:
            self._grids = None

    def after_epoch(self, entry: Mapping[str, float]) -> None:
        """Draw a grid of samples where one is due."""
        epoch = int(entry["epoch"])
        if self._grids is None or epoch % self._grid_every:
            return
        from credo.plots import image_grid

        with evaluating(self):
            samples = self.sample(64, seed=0)
        self._grids.mkdir(parents=True, exist_ok=True)
        image_grid(samples.cpu()).savefig(self._grids / f"epoch-{epoch:04d}.png")

    def as_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data without targets; a pair (x, labels) loses its labels."""
        if isinstance(data, Dataset | DataLoader):
            return data
        x = data[0] if isinstance(data, tuple | list) and len(data) in (2, 3) else data
        if isinstance(x, list):
            raise InputError("data must be a tensor, an array, a Dataset or a DataLoader, got a list: stack it first")
        x = data_.prepare_input(x, torch.device("cpu"), self.dtype, keep_device=True)
        if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
            found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"data must be rows of numbers or images, shape [N, ...] with N of 1 or more, got {found}")
        x = x if x.is_floating_point() else x.to(self.dtype)
        return data_.TensorRows(x, x.new_zeros(len(x)), None)

    def as_batch(self, raw: Any) -> data_.Batch:
        """The first part of what a loader yields."""
        if isinstance(raw, data_.Batch):
            return raw
        x = data_.inputs_of(raw)
        if not isinstance(x, Tensor):
            raise InputError(f"a loader must yield tensors, or tuples that begin with one, got {type(x).__name__}")
        x = x.to(self.dtype)
        return data_.Batch(x, x.new_zeros(len(x)), None)

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Values of everything that is held in memory, and one call of the networks."""
        self.check_values(dataset.x if isinstance(dataset, data_.TensorRows) else batch.x)
        with torch.no_grad(), evaluating(self):
            self.check_call(batch.x[:2])

    def explain(self, batch: data_.Batch) -> None:
        """Raise a sentence where a minibatch does not fit."""
        self.check_values(batch.x)
        with torch.no_grad(), evaluating(self):
            self.check_call(batch.x)

    def batches(self, data: Any, batch_size: int) -> Iterator[Tensor]:
        """The batches of ``data`` in order, on the model's device, ``[b, ...]`` each."""
        dataset = self.as_dataset(data)
        return (batch.x for batch in data_.batches(dataset, batch_size, self.device, self.dtype, self.as_batch))

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """All parameters in one group."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "weight_decay": weight_decay}]

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the networks."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def network_card(self) -> dict[str, object]:
        """Every network's class, and how to build it where it comes from ``credo.architectures``."""
        return {"parts": {name: describe_network(getattr(self, name)) for name in self.parts}}

    def config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return self.own_config()

    @classmethod
    def from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model again; ``net`` maps the names of its parts to networks."""
        missing = [name for name in cls.parts if not isinstance(net, Mapping) or name not in net]
        if missing:
            raise LoadError(
                f"{cls.__name__} has the networks {', '.join(cls.parts)}; pass them as a mapping: "
                f"credo.load(path, net={{{', '.join(f'{name!r}: ...' for name in cls.parts)}}})"
            )
        arguments = {**config, **overrides}
        if isinstance(arguments.get("likelihood"), dict):
            arguments["likelihood"] = likelihood_from_config(arguments["likelihood"])
        return cls(**{name: net[name] for name in cls.parts}, **arguments)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, and every part's own mode after it."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
