"""The base classes of generative models: networks by name, and data without targets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import Unpack

from credo import data as data_
from credo import io
from credo._arguments import check_integer
from credo.errors import InputError, LoadError
from credo.generative.networks import network_of, require_plain_networks
from credo.likelihoods import likelihood_from_config
from credo.model import Model
from credo.training.generative import GRID_SIZE, GenerativeTask
from credo.training.loop import train
from credo.training.optimizers import weight_decay_groups
from credo.training.options import FitKeywords, with_fit_options


class GenerativeModel(Model):
    """A model of data x without targets: ``model.fit(x)``.

    Data are tensors or arrays ``[N, ...]``, a Dataset or a DataLoader. Labels that come with them, as a tuple
    ``(x, labels)`` or from a loader, are not used; a third entry, ``sample_weight``, weights the rows.

    A subclass lists the names of its networks in ``_network_names``; each network is an attribute.

    Args:
        **networks: the networks by name.

    Attributes:
        latent: the dimension of a code, or of the noise.

    Example:
        >>> model = VAE("dense", latent=2, shape=(4,))  # a subclass
        >>> isinstance(model, GenerativeModel)
        True
        >>> model.fit(torch.rand(20, 4), epochs=1).sample(3).shape
        torch.Size([3, 4])
    """

    latent: int
    _network_names: ClassVar[tuple[str, ...]]
    _bayesian_networks: ClassVar[tuple[str, ...]] = ()
    """The networks that may be methods, with a posterior over their weights."""
    _last_terms: dict[str, Tensor]

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__()
        require_plain_networks(**{name: net for name, net in networks.items() if name not in self._bayesian_networks})
        for name in self._network_names:
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
            grids: a folder for grids of images during training, ``epoch-0010.png`` and so on: samples, or data next to
                their reconstructions.
            grid_every: epochs between two grids.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the model is as after its last good epoch.
        """
        task = self._training_task()
        task.grids, task.grid_every = _check_grid_folder(grids), check_integer(grid_every, "grid_every", minimum=1)
        train(task, data if labels is None else (data, labels), options)
        self._after_fit(data)
        return self

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer of your own.

        Args:
            weight_decay: weight decay of the networks' weights; the parameters of a likelihood and the scales of a
                posterior get none.

        Returns:
            Groups as ``torch.optim`` accepts them.
        """
        return weight_decay_groups(self, [network_of(net) for net in self._networks().values()], weight_decay)

    def _networks(self) -> dict[str, nn.Module]:
        return {name: getattr(self, name) for name in self._network_names}

    @abstractmethod
    def _training_task(self) -> GenerativeTask[Any]:
        """How the training loop trains this model."""

    def _after_fit(self, data: Any) -> None:
        """Called at the end of :meth:`fit` with the data it was given."""

    @abstractmethod
    def _check_values(self, x: Tensor) -> None:
        """Raise ``InputError`` for a batch with values, such as their range, that the model cannot learn from."""

    @abstractmethod
    def _check_shapes(self, x: Tensor) -> None:
        """Call the networks on a batch and raise ``InputError`` if shapes do not match."""

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

    def _make_dataset(self, data: Any) -> Dataset[Any] | DataLoader[Any]:
        """Data as a data set or loader; labels in a tuple are dropped, row weights are kept."""
        if isinstance(data, Dataset | DataLoader):
            return data
        if isinstance(data, list):
            raise InputError("data must be a tensor, an array, a Dataset or a DataLoader, got a list: stack it first")
        if isinstance(data, tuple) and len(data) not in (2, 3):
            raise InputError(f"a tuple must be (x, labels) or (x, labels, sample_weight), got {len(data)} entries")
        if isinstance(data, tuple) and isinstance(data[0], Dataset | DataLoader):
            raise InputError("a data set or loader has its own labels: pass it alone")
        x, labels, weight = (*data, None)[:3] if isinstance(data, tuple) else (data, None, None)
        x = data_.prepare_input(x, torch.device("cpu"), self.dtype, keep_device=True)
        if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
            found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"data must be rows of numbers or images, shape [N, ...] with N >= 1, got {found}")
        _check_labels(labels, len(x))
        x = x if x.is_floating_point() else x.to(self.dtype)
        return data_.as_dataset((x, x.new_zeros(len(x)), weight), self.dtype)

    def _make_batch(self, raw: Any) -> data_.Batch:
        """The first entry of what a loader yields, and the third, row weights, if there is one."""
        if isinstance(raw, data_.Batch):
            return raw
        x = data_.inputs_of(raw)
        weight = raw[2] if isinstance(raw, tuple | list) and len(raw) == 3 else None
        if not isinstance(x, Tensor):
            raise InputError(f"a loader must yield tensors, or tuples that begin with one, got {type(x).__name__}")
        x = x.to(self.dtype)
        self._check_values(x)  # on the CPU: on a GPU a wrong value can end the process
        return data_.Batch(x, x.new_zeros(len(x)), None if weight is None else torch.as_tensor(weight).to(self.dtype))

    def _weighted_batches(self, data: Any, batch_size: int) -> Iterator[data_.Batch]:
        """The batches of ``data`` in order, checked, on the model's device, with their row weights."""
        dataset = self._make_dataset(data)
        if isinstance(dataset, data_.TensorRows):
            self._check_values(dataset.x)
        empty = True
        for batch in data_.batches(dataset, batch_size, self.device, self.dtype, self._make_batch):
            empty = False
            yield batch
        if empty:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")

    def _batches(self, data: Any, batch_size: int) -> Iterator[Tensor]:
        """The batches of ``data`` in order, checked, on the model's device, ``[b, ...]`` each."""
        for batch in self._weighted_batches(data, batch_size):
            yield batch.x

    def _check_codes(self, z: Any) -> Tensor:
        """``z`` as codes or noise ``[N, latent]``, on the model's device."""
        try:
            codes = torch.as_tensor(z, dtype=self.dtype, device=self.device)
        except (TypeError, ValueError) as error:
            raise InputError(f"z must contain numbers, shape [N, {self.latent}], got {type(z).__name__}") from error
        if codes.ndim != 2 or codes.shape[1] != self.latent or len(codes) == 0:
            raise InputError(f"z must have shape [N, {self.latent}] with N >= 1, got {list(codes.shape)}")
        return codes

    def _describe_networks(self) -> dict[str, object]:
        return {"parts": {name: io.describe_network(network_of(net)) for name, net in self._networks().items()}}

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model; ``net`` maps the names of its networks to networks."""
        names = cls._network_names
        if not isinstance(net, Mapping) or any(name not in net for name in names):
            raise LoadError(
                f"{cls.__name__} has the networks {', '.join(names)}; pass them as a mapping: "
                f"credo.load(path, net={{{', '.join(f'{name!r}: ...' for name in names)}}})"
            )
        arguments = {**config, **overrides}
        if isinstance(arguments.get("likelihood"), dict):
            arguments["likelihood"] = likelihood_from_config(arguments["likelihood"])
        return cls(**{name: net[name] for name in names}, **arguments)


class EncoderDecoderModel(GenerativeModel):
    """A generative model with an encoder and a decoder.

    Attributes:
        encoder: the network from data to codes.
        decoder: the network from codes to data.
    """

    _network_names = ("encoder", "decoder")
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
            n_data: number of training data; used if the decoder has a posterior over its weights.
            sample_weight: ``[B]``, multiplies the loss of each datum; ``None``: 1.

        Returns:
            The loss, a scalar.

        Raises:
            InputError: ``x`` or ``sample_weight`` does not match the model.
        """
        if sample_weight is None:
            sample_weight = torch.ones(len(x), dtype=x.dtype, device=x.device)
        elif sample_weight.shape != (len(x),):
            raise InputError(f"sample_weight must have shape [{len(x)}], got {list(sample_weight.shape)}")
        return self._loss(x, sample_weight, n_data)

    def loss(self, x: Tensor, n_data: int | None = None, *, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a minibatch, for a training loop of your own; the same as ``model(x)``.

        Args:
            x: data ``[B, ...]``.
            n_data: number of training data; used if the decoder has a posterior over its weights.
            sample_weight: ``[B]``, multiplies the loss of each datum; ``None``: 1.

        Returns:
            The loss per datum, differentiable.

        Raises:
            InputError: ``x`` or ``sample_weight`` does not match the model.
        """
        return self.forward(x, n_data=n_data, sample_weight=sample_weight)

    @abstractmethod
    def reconstruct(self, x: Any) -> Tensor:
        """Encode data and decode their codes.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            The reconstructions, ``[N, ...]``.
        """

    def _example_images(self, x: Tensor) -> Tensor:
        """Each datum followed by its reconstruction."""
        shown = x[: GRID_SIZE // 2]
        return torch.stack([shown, self.reconstruct(shown)], 1).flatten(0, 1)


def check_finite(x: Tensor) -> None:
    """Raise ``InputError`` for data with NaN or infinite values."""
    if not math.isfinite(float(x.min())) or not math.isfinite(float(x.max())):
        raise InputError("data contain NaN or infinite values; remove or impute them")


def check_unit_interval(x: Tensor, what: str, alternative: str) -> None:
    """Raise ``InputError`` for data outside of [0, 1], which ``what`` needs; ``alternative`` does not need it."""
    low, high = float(x.min()), float(x.max())
    if not 0.0 <= low <= high <= 1.0:
        raise InputError(
            f"{what} needs data between 0 and 1, got values from {low:.4g} to {high:.4g}: divide 8-bit images by 255, "
            f"or choose {alternative}"
        )


def _check_labels(labels: Any, count: int) -> None:
    """Raise ``InputError`` if there is not one label per datum, though labels are not used."""
    if labels is None:
        return
    found = len(labels) if isinstance(labels, Sized) and getattr(labels, "ndim", 1) != 0 else 0
    if found != count:
        raise InputError(
            f"there must be one label per datum, got {count} data and {found} labels (labels are not used)"
        )


def _check_grid_folder(grids: object) -> Path | None:
    """The folder for grids, which is created later."""
    if grids is None:
        return None
    if not isinstance(grids, str | Path) or (Path(grids).exists() and not Path(grids).is_dir()):
        raise InputError(f"grids must be a folder for images, such as 'grids', got {grids!r}")
    return Path(grids)
