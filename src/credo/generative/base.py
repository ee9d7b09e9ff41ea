"""What the generative models have in common: networks by name, data without targets, training by the core."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo._arguments import check_integer
from credo.errors import CredoError, InputError, LoadError
from credo.likelihoods import likelihood_from_config
from credo.methods.network import NetworkMethod, describe_network
from credo.model import Model
from credo.selection import is_compiled
from credo.training.contract import Trainable

_IN_A_GRID = 64


class DataModel(Trainable):
    """A model of data x alone: ``model.fit(x)``.

    Data are tensors or arrays ``[N, ...]``, a Dataset or a DataLoader. Where they come with labels, as a tuple
    ``(x, labels)`` or from a loader, those are not looked at; a third part, ``sample_weight``, weights the rows.
    Options of ``fit`` are those of :class:`credo.training.Options`, and two more: ``grids``, a folder for pictures of
    what the model can do, and ``grid_every``, the number of epochs between them.

    Subclasses list their networks in ``parts``; each is an attribute.
    """

    parts: ClassVar[tuple[str, ...]]
    latent: int
    """The size of a code, or of the noise."""
    may_be_methods: ClassVar[tuple[str, ...]] = ()
    """The parts whose weights may have a posterior."""
    _grids: Path | None = None
    _grid_every: int = 1
    _rows: Tensor | None = None
    """The first rows of the data, kept while grids are drawn."""

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__()
        require_plain_networks(**{name: part for name, part in networks.items() if name not in self.may_be_methods})
        for name in self.parts:
            setattr(self, name, networks[name])
        self.history = []

    @abstractmethod
    def pictures(self, x: Tensor) -> Tensor:
        """What a grid shows: images of the model's own, for the first rows ``x [n, ...]`` of the data."""

    @abstractmethod
    def check_values(self, x: Tensor) -> None:
        """Raise ``InputError`` for a batch whose values, such as their range, the model cannot have meant."""

    @abstractmethod
    def check_call(self, x: Tensor) -> None:
        """Put a batch through the networks and refuse, in a sentence, shapes that do not fit each other."""

    def fit(
        self, data: Any, labels: Any = None, *, grids: str | Path | None = None, grid_every: int = 1, **options: Any
    ) -> Self:
        """Learn from ``data``. A model that has been fitted goes on from its weights; its history begins anew.

        Args:
            data: ``[N, ...]`` tensors in the networks' floating-point type, arrays of numbers, a Dataset or a
                DataLoader; ``(x, labels, sample_weight)`` to weight rows.
            labels: not looked at.
            grids: a folder into which grids of images are drawn as training goes, ``epoch-0010.png`` and so on:
                samples, or data beside their reconstructions.
            grid_every: epochs between two grids.
            options: ``epochs=20, batch_size=128, lr=1e-3, validation=None, device=None, seed=None`` and more, see
                :class:`credo.training.Options`.
        """
        self._grids = _grid_folder(grids)
        self._grid_every = check_integer(grid_every, "grid_every", minimum=1)
        try:
            return super().fit(data if labels is None else (data, labels), **options)
        finally:
            self._grids = self._rows = None

    def after_epoch(self, entry: Mapping[str, float]) -> None:
        """Draw a grid where one is due."""
        epoch = int(entry["epoch"])
        if self._grids is None or self._rows is None or epoch % self._grid_every or _is_helper_process():
            return
        from credo.plots import image_grid

        with evaluating(self):
            images = self.pictures(self._rows)
        low, high = (float(end) for end in self._rows.aminmax())  # black and white as in the data
        figure = image_grid(images.cpu(), value_range=(low, high) if low < high else None)
        figure.savefig(self._grids / f"epoch-{epoch:04d}.png")

    def as_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data without targets; of a tuple, labels are dropped and weights of rows are kept."""
        if isinstance(data, Dataset | DataLoader):
            return data
        if isinstance(data, list):
            raise InputError("data must be a tensor, an array, a Dataset or a DataLoader, got a list: stack it first")
        if isinstance(data, tuple) and len(data) not in (2, 3):
            raise InputError(f"a tuple must be (x, labels) or (x, labels, sample_weight), got {len(data)} parts")
        if isinstance(data, tuple) and isinstance(data[0], Dataset | DataLoader):
            raise InputError("a data set or loader brings its own labels: pass it alone")
        x, labels, weight = (*data, None)[:3] if isinstance(data, tuple) else (data, None, None)
        x = data_.prepare_input(x, torch.device("cpu"), self.dtype, keep_device=True)
        if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
            found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"data must be rows of numbers or images, shape [N, ...] with N of 1 or more, got {found}")
        _check_labels(labels, len(x))
        x = x if x.is_floating_point() else x.to(self.dtype)
        return data_.as_dataset((x, x.new_zeros(len(x)), weight), self.dtype)

    def as_batch(self, raw: Any) -> data_.Batch:
        """The first part of what a loader yields, and the third, weights of rows, where there is one."""
        if isinstance(raw, data_.Batch):
            return raw
        x = data_.inputs_of(raw)
        weight = raw[2] if isinstance(raw, tuple | list) and len(raw) == 3 else None
        if not isinstance(x, Tensor):
            raise InputError(f"a loader must yield tensors, or tuples that begin with one, got {type(x).__name__}")
        x = x.to(self.dtype)
        self.check_values(x)  # here, on the CPU: on a GPU a wrong value can be the end of the process
        return data_.Batch(x, x.new_zeros(len(x)), None if weight is None else torch.as_tensor(weight).to(self.dtype))

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Values of everything that is held in memory, and one call of the networks."""
        if isinstance(dataset, data_.TensorRows):
            self.check_values(dataset.x)
        if self._grids is not None and self._rows is None:  # held-out data are looked at after those of training
            from credo.plots.images import as_images

            as_images(batch.x[:1].cpu())
            self._rows = batch.x[:_IN_A_GRID]
            self._grids.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), evaluating(self):
            self.check_call(batch.x[:2])

    def explain(self, batch: data_.Batch) -> None:
        """Raise a sentence where a minibatch does not fit."""
        with torch.no_grad(), evaluating(self):
            self.check_call(batch.x)

    def batches(self, data: Any, batch_size: int) -> Iterator[Tensor]:
        """The batches of ``data`` in order, checked, on the model's device, ``[b, ...]`` each."""
        for batch in self.checked_batches(data, batch_size):
            yield batch.x

    def as_codes(self, z: Any) -> Tensor:
        """``z`` as codes or noise of the model's size, ``[N, latent]``, where the model is."""
        try:
            codes = torch.as_tensor(z, dtype=self.dtype, device=self.device)
        except (TypeError, ValueError) as error:
            raise InputError(f"z must hold numbers, shape [N, {self.latent}], got {type(z).__name__}") from error
        if codes.ndim != 2 or codes.shape[1] != self.latent or len(codes) == 0:
            raise InputError(f"z must have shape [N, {self.latent}] with N of 1 or more, got {list(codes.shape)}")
        return codes

    def checked_batches(self, data: Any, batch_size: int) -> Iterator[data_.Batch]:
        """The same with the weights of rows, where there are some."""
        dataset = self.as_dataset(data)
        if isinstance(dataset, data_.TensorRows):
            self.check_values(dataset.x)
        empty = True
        for batch in data_.batches(dataset, batch_size, self.device, self.dtype, self.as_batch):
            empty = False
            yield batch
        if empty:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer; ``weight_decay`` reaches the networks' weights only.

        What a likelihood learns, and the scales of a posterior over weights, are no weights.
        """
        learned = [p for p in self.parameters() if p.requires_grad]
        if weight_decay == 0.0:
            return [{"params": learned, "weight_decay": 0.0}]
        known = {id(p) for name in self.parts for p in network_of(getattr(self, name)).parameters()}
        weights, others = [p for p in learned if id(p) in known], [p for p in learned if id(p) not in known]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": weight_decay}]
        return [*groups, {"params": others, "weight_decay": 0.0}] if others else groups

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self._any_parameter().device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the networks."""
        return self._any_parameter().dtype

    def _any_parameter(self) -> Tensor:
        for parameter in self.parameters():
            if parameter.is_floating_point():
                return parameter
        raise InputError("none of the networks has parameters, so there is nothing to learn")

    def network_card(self) -> dict[str, object]:
        """Every network's class, and how to build it where it comes from ``credo.architectures``."""
        return {"parts": {name: describe_network(network_of(getattr(self, name))) for name in self.parts}}

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


class GenerativeModel(DataModel):
    """A model of data that can make new ones: ``model.fit(x)``, then ``model.sample(n)``."""

    @abstractmethod
    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` new data ``[n, ...]``; with a seed torch's random state is neither used nor changed."""

    def pictures(self, x: Tensor) -> Tensor:
        """Samples, from the same random numbers every time."""
        return self.sample(_IN_A_GRID, seed=0)


def require_plain_networks(**parts: object) -> None:
    """Raise ``InputError`` for a method, such as MCDropout, or a compiled network, in the place of a plain one."""
    for name, part in parts.items():
        if isinstance(part, Model):
            raise InputError(f"the {name} must be a network, not a {type(part).__name__} around one")
        if is_compiled(part):
            raise InputError(
                f"the {name} is compiled already: pass the plain network, and compile with fit(compile=True)"
            )


def network_of(part: nn.Module) -> nn.Module:
    """The network of a part, which may be a method with a posterior over its weights."""
    return part.net if isinstance(part, NetworkMethod) else part


def called(name: str, network: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What ``network`` outputs for ``x``, or a sentence that says that it cannot take it; for :meth:`check_call`."""
    try:
        return network(x)
    except CredoError:
        raise
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"the {name} cannot be called on a batch of shape {list(x.shape)}: {error}") from error


def _check_labels(labels: Any, count: int) -> None:
    """Raise ``InputError`` for what cannot be the labels of ``count`` data, though they are not used."""
    if labels is None:
        return
    found = len(labels) if isinstance(labels, Sized) and getattr(labels, "ndim", 1) != 0 else 0
    if found != count:
        raise InputError(
            f"there are {count} data but {found} labels: labels, which are not looked at, must be one a datum"
        )


def _grid_folder(grids: object) -> Path | None:
    """The folder for grids, which need not exist yet."""
    if grids is None:
        return None
    if not isinstance(grids, str | Path) or (Path(grids).exists() and not Path(grids).is_dir()):
        raise InputError(f"grids must be a folder to draw into, such as 'grids', got {grids!r}")
    return Path(grids)


def _is_helper_process() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0


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
