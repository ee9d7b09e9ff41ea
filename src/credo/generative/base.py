"""What generative models have in common: networks by name, and data without targets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import Unpack

from credo import data as data_
from credo import io
from credo._arguments import check_integer
from credo.errors import CredoError, InputError, LoadError
from credo.generative.rows import row_weights, side_by_side
from credo.likelihoods import likelihood_from_config
from credo.methods import NetworkMethod
from credo.model import Model
from credo.selection import is_compiled
from credo.training.generative import GenerativeTask
from credo.training.loop import train
from credo.training.optimizers import weight_decay_groups
from credo.training.options import FitKeywords, with_fit_options


class GenerativeModel(Model):
    """A model of data x without targets: ``model.fit(x)``.

    Data are tensors or arrays ``[N, ...]``, a Dataset or a DataLoader. Labels that come with them, as a tuple
    ``(x, labels)`` or from a loader, are not used; a third part, ``sample_weight``, weights the rows.

    Subclasses list the names of their networks in ``_parts``; each is an attribute.

    Attributes:
        latent: the dimension of a code, or of the noise.
    """

    latent: int
    _parts: ClassVar[tuple[str, ...]]
    _may_be_methods: ClassVar[tuple[str, ...]] = ()
    """The parts whose weights may have a posterior."""
    _last_terms: dict[str, Tensor]

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__()
        require_plain_networks(**{name: part for name, part in networks.items() if name not in self._may_be_methods})
        for name in self._parts:
            setattr(self, name, networks[name])
        self._last_terms = {}

    @with_fit_options
    def fit(
        self,
        data: Any,
        labels: Any = None,
        *,
        grids: str | Path | None = None,
        grid_every: int = 1,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Train on data without targets; a model that was fitted before continues from its weights.

        Args:
            data: ``[N, ...]`` tensors in the networks' floating-point type, arrays of numbers, a Dataset or a
                DataLoader; ``(x, labels, sample_weight)`` to weight rows.
            labels: not used.
            grids: a folder for grids of images during training, ``epoch-0010.png`` and so on: samples, or data beside
                their reconstructions.
            grid_every: epochs between two grids.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.
        """
        task = self._training_task()
        task.grids, task.grid_every = _grid_folder(grids), check_integer(grid_every, "grid_every", minimum=1)
        train(task, data if labels is None else (data, labels), options)
        return self

    @abstractmethod
    def _training_task(self) -> GenerativeTask[Any]:
        """How the training loop trains this model."""

    @abstractmethod
    def _example_images(self, x: Tensor) -> Tensor:
        """The images of a grid, given the first rows ``x [n, ...]`` of the data."""

    def _draw_grid(self, x: Tensor, path: Path | None) -> None:
        """Draw a grid of images, given the first rows of the data; ``None``: only check that rows are images."""
        from credo.plots.images import as_images, image_grid

        if path is None:
            as_images(x.cpu())
            return
        low, high = (float(end) for end in x.aminmax())  # the same gray scale as the data
        figure = image_grid(self._example_images(x).cpu(), value_range=(low, high) if low < high else None)
        figure.savefig(path)

    @abstractmethod
    def _check_values(self, x: Tensor) -> None:
        """Raise ``InputError`` for a batch whose values, such as their range, the model cannot learn from."""

    @abstractmethod
    def _check_shapes(self, x: Tensor) -> None:
        """Call the networks on a batch and raise ``InputError`` if shapes do not match."""

    def _make_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data as a data set or loader; of a tuple, labels are dropped and weights of rows are kept."""
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

    def _make_batch(self, raw: Any) -> data_.Batch:
        """The first part of what a loader yields, and the third, weights of rows, where there is one."""
        if isinstance(raw, data_.Batch):
            return raw
        x = data_.inputs_of(raw)
        weight = raw[2] if isinstance(raw, tuple | list) and len(raw) == 3 else None
        if not isinstance(x, Tensor):
            raise InputError(f"a loader must yield tensors, or tuples that begin with one, got {type(x).__name__}")
        x = x.to(self.dtype)
        self._check_values(x)  # here, on the CPU: on a GPU a wrong value can be the end of the process
        return data_.Batch(x, x.new_zeros(len(x)), None if weight is None else torch.as_tensor(weight).to(self.dtype))

    def _batches(self, data: Any, batch_size: int) -> Iterator[Tensor]:
        """The batches of ``data`` in order, checked, on the model's device, ``[b, ...]`` each."""
        for batch in self._weighted_batches(data, batch_size):
            yield batch.x

    def _check_codes(self, z: Any) -> Tensor:
        """``z`` as codes or noise of the model's size, ``[N, latent]``, where the model is."""
        try:
            codes = torch.as_tensor(z, dtype=self.dtype, device=self.device)
        except (TypeError, ValueError) as error:
            raise InputError(f"z must hold numbers, shape [N, {self.latent}], got {type(z).__name__}") from error
        if codes.ndim != 2 or codes.shape[1] != self.latent or len(codes) == 0:
            raise InputError(f"z must have shape [N, {self.latent}] with N of 1 or more, got {list(codes.shape)}")
        return codes

    def _weighted_batches(self, data: Any, batch_size: int) -> Iterator[data_.Batch]:
        """The batches of ``data`` in order with the weights of their rows."""
        dataset = self._make_dataset(data)
        if isinstance(dataset, data_.TensorRows):
            self._check_values(dataset.x)
        empty = True
        for batch in data_.batches(dataset, batch_size, self.device, self.dtype, self._make_batch):
            empty = False
            yield batch
        if empty:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer of your own.

        Args:
            weight_decay: for the networks' weights; what a likelihood learns and the scales of a posterior get none.

        Returns:
            Groups as ``torch.optim`` accepts them.
        """
        return weight_decay_groups(self, [network_of(getattr(self, name)) for name in self._parts], weight_decay)

    def _describe_networks(self) -> dict[str, object]:
        return {"parts": {name: io.describe_network(network_of(getattr(self, name))) for name in self._parts}}

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model; ``net`` maps the names of its parts to networks."""
        missing = [name for name in cls._parts if not isinstance(net, Mapping) or name not in net]
        if missing:
            raise LoadError(
                f"{cls.__name__} has the networks {', '.join(cls._parts)}; pass them as a mapping: "
                f"credo.load(path, net={{{', '.join(f'{name!r}: ...' for name in cls._parts)}}})"
            )
        arguments = {**config, **overrides}
        if isinstance(arguments.get("likelihood"), dict):
            arguments["likelihood"] = likelihood_from_config(arguments["likelihood"])
        return cls(**{name: net[name] for name in cls._parts}, **arguments)


class EncoderDecoderModel(GenerativeModel):
    """A generative model with an encoder and a decoder.

    Attributes:
        encoder: the network from data to codes.
        decoder: the network from codes to data.
    """

    _parts = ("encoder", "decoder")
    encoder: nn.Module
    decoder: nn.Module

    @abstractmethod
    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        """The loss per datum of ``x [B, ...]``, each datum times its ``weight [B]``; sets ``_last_terms``."""

    def forward(
        self, x: Tensor, y: Tensor | None = None, n_data: int | None = None, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss per datum, differentiable.

        Args:
            x: data ``[B, ...]``.
            y: not used.
            n_data: the number of training data; used if the decoder has a posterior over its weights.
            sample_weight: ``[B]``, multiplies the loss of each datum.
        """
        return self._loss(x, row_weights(x, sample_weight), n_data)

    def loss(self, x: Tensor, n_data: int | None = None, *, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a minibatch, for a training loop of your own; the same as ``model(x)``.

        Args:
            x: data ``[B, ...]``.
            n_data: the number of training data; used if the decoder has a posterior over its weights.
            sample_weight: ``[B]``, multiplies the loss of each datum.

        Returns:
            The loss per datum, differentiable.
        """
        return self.forward(x, n_data=n_data, sample_weight=sample_weight)

    @abstractmethod
    def reconstruct(self, x: Any) -> Tensor:
        """Data through their codes.

        Args:
            x: data ``[N, ...]``.

        Returns:
            Their reconstructions, ``[N, ...]``.
        """

    def _example_images(self, x: Tensor) -> Tensor:
        """Data, each beside its reconstruction."""
        return side_by_side(x, self.reconstruct)


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


def call_network(name: str, network: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What ``network`` outputs for ``x``; ``InputError`` if it cannot be called on it."""
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
            f"there are {count} data but {found} labels: labels, which are not used, must be one per datum"
        )


def _grid_folder(grids: object) -> Path | None:
    """The folder for grids, which need not exist yet."""
    if grids is None:
        return None
    if not isinstance(grids, str | Path) or (Path(grids).exists() and not Path(grids).is_dir()):
        raise InputError(f"grids must be a folder to draw into, such as 'grids', got {grids!r}")
    return Path(grids)
