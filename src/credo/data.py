"""Data as users have it, as batches a network can take: checked, on the right device, in a reproducible order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, SubsetRandomSampler

from credo._loaders import with_all_rows
from credo.errors import InputError
from credo.nests import count_rows, input_bytes, leaves, map_tensors, plain, tensors
from credo.seeding import derive, resumed

_BLOCK_BYTES = 4 * 2**20
"""What is gathered at once: enough for many small minibatches, and little memory."""


class Batch(NamedTuple):
    """One minibatch."""

    x: Any
    y: Tensor
    sample_weight: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """``function`` of every tensor; of one for x, the usual case, without a look for others inside it."""
        x = function(self.x) if isinstance(self.x, Tensor) else map_tensors(function, self.x)
        return Batch(x, function(self.y), None if self.sample_weight is None else function(self.sample_weight))


class TensorRows(Dataset[Any]):
    """Tensors in memory, fetched a whole batch at a time.

    Args:
        x: a tensor, or a tuple or mapping of tensors.
        y: targets.
        sample_weight: ``[N]`` or ``None``.
    """

    def __init__(self, x: Any, y: Tensor, sample_weight: Tensor | None) -> None:
        self.x, self.y, self.sample_weight = x, y, sample_weight

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The batch of rows ``indices``."""
        rows = torch.as_tensor(indices)
        return Batch(self.x, self.y, self.sample_weight).map(lambda t: t[rows.to(t.device)])


class GlobalBatches(Sampler[list[int]]):
    """Index batches that are the same for any number of processes, each taking its share of every batch.

    Shares are equally large, so that processes keep in step: where a batch does not divide evenly, some rows come
    twice, and :meth:`row_weights` has their weights.

    Args:
        n: number of data.
        batch_size: rows in a batch over all processes.
        seed: with the epoch, fixes the order.
        rank: this process.
        world_size: number of processes.
        shuffle: a new order every epoch.
    """

    def __init__(
        self, n: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1, shuffle: bool = True
    ) -> None:
        self.n, self.batch_size, self.seed = n, int(batch_size), seed
        self.rank, self.world_size, self.shuffle = rank, world_size, shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch ``epoch``."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for share in self.shares():
            yield share.tolist()

    def shares(self) -> Iterator[Tensor]:
        """This process's rows of every batch, as tensors of indices."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, 0, self.epoch))
            order = torch.randperm(self.n, generator=generator)
        else:
            order = torch.arange(self.n)
        for rows in order.split(self.batch_size):
            if self.world_size == 1:
                yield rows
                continue
            share = -(-len(rows) // self.world_size)
            padded = rows.repeat(-(-share * self.world_size // len(rows)))[: share * self.world_size]
            yield padded[self.rank * share : (self.rank + 1) * share]

    def global_rows(self, i: int) -> int:
        """The number of rows in batch ``i``, counted from 0, over all processes."""
        return min(self.batch_size, self.n - i * self.batch_size)

    def row_weights(self, i: int) -> Tensor | None:
        """Factors on this process's rows of batch ``i``, or ``None`` where all are 1.

        With them, the mean over processes of (1/share)·Σ_rows is the mean over the rows of the global batch.
        """
        rows = self.global_rows(i)
        share = -(-rows // self.world_size)
        if share * self.world_size == rows:
            return None
        own = torch.arange(self.rank * share, (self.rank + 1) * share)
        return (own < rows) * (share * self.world_size / rows)


class RowLoader(DataLoader[Batch]):
    """A loader over tensors in memory, without the cost of one.

    Rows are gathered for many minibatches at once, of which each minibatch is a view. Noise does not depend on the
    form of the data: as every loader does, it draws one number from torch's default generator per epoch.

    Args:
        dataset: the tensors.
        sampler: the order of the rows.
        device: where the minibatches are; data that take up at most a quarter of the free memory of a GPU are kept
            there.
    """

    dataset: TensorRows

    def __init__(self, dataset: TensorRows, sampler: GlobalBatches, device: torch.device) -> None:
        super().__init__(dataset, batch_sampler=sampler, collate_fn=_identity)
        self._shares, self._device = sampler.shares, device
        size = input_bytes((dataset.x, dataset.y))
        self._rows_at_once = max(1, _BLOCK_BYTES * len(dataset) // max(size, 1))
        self._source = dataset
        if device.type == "cuda" and 4 * size <= torch.cuda.mem_get_info(device)[0]:
            self._source = TensorRows(*move(Batch(dataset.x, dataset.y, dataset.sample_weight), device))

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        torch.empty((), dtype=torch.int64).random_()
        shares = list(self._shares())
        together = max(1, self._rows_at_once // len(shares[0]))
        for first in range(0, len(shares), together):
            sizes = [len(share) for share in shares[first : first + together]]
            block = move(self._source.__getitems__(torch.cat(shares[first : first + together])), self._device)
            for start, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
                yield block.map(partial(torch.narrow, dim=0, start=start, length=size))


def as_dataset(data: Any, dtype: torch.dtype) -> Dataset[Any] | DataLoader[Any]:
    """``data`` as a dataset or loader; tensors and arrays are checked here, once."""
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Dataset):
        if isinstance(data, Sized) and len(data) == 0:
            raise InputError("the data set is empty; give at least one datum")
        return data
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise InputError(
            "data must be a DataLoader, a Dataset, or a pair (X, y), or a triple (X, y, sample_weight), of tensors "
            f"or arrays; got {_describe(data)}"
        )
    x = prepare_input(data[0], torch.device("cpu"), dtype, keep_device=True)
    rows = count_rows(x)
    if rows == 0:
        raise InputError("the data are empty; give at least one row")
    for leaf in tensors(x):
        if leaf.dim() == 0 or leaf.shape[0] != rows:
            raise InputError(
                f"the parts of X disagree: one has {rows} rows, another has shape {list(leaf.shape)}; give a batch "
                "that cannot be cut into rows, such as a graph, as DataLoader([(x, y)], batch_size=None)"
            )
    y = _as_tensor(data[1], "y", dtype)
    weight = None if len(data) == 2 or data[2] is None else _as_tensor(data[2], "sample_weight", dtype).to(dtype)
    for name, value in (("y", y), ("sample_weight", weight)):
        if value is None:
            continue
        if value.dim() == 0 or value.shape[0] != rows:
            raise InputError(f"X has {rows} rows but {name} has shape {list(value.shape)}: one entry per row is needed")
        _check_finite(value, name)
    if weight is not None and (weight.dim() != 1 or bool((weight < 0).any())):
        found = f"shape {list(weight.shape)}" if weight.dim() != 1 else f"{float(weight.min()):g}"
        raise InputError(f"sample_weight must hold one number of 0 or more per row, got {found}")
    return TensorRows(x, y, weight)


def make_loader(
    data: Any, batch_size: int, seed: int, rank: int, world_size: int, dtype: torch.dtype, device: torch.device
) -> DataLoader[Any]:
    """A loader over ``data``; a DataLoader is used as it is. Tensors in memory come in minibatches on ``device``."""
    dataset = as_dataset(data, dtype)
    if isinstance(dataset, DataLoader):
        return dataset
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=batch_size)
    rows = len(dataset) if isinstance(dataset, Sized) else None
    if rows is None:
        raise InputError(f"{type(dataset).__name__} has no length; give it a __len__, or make it an IterableDataset")
    sampler = GlobalBatches(rows, batch_size, seed, rank, world_size)
    if isinstance(dataset, TensorRows):
        return RowLoader(dataset, sampler, device)
    return DataLoader(dataset, batch_sampler=sampler)


def batches(
    data: Any,
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    read: Callable[[Any], Batch] | None = None,
) -> Iterator[Batch]:
    """The batches of ``data`` in order, on ``device``, for evaluation; ``read`` turns what a loader yields into one."""
    dataset = as_dataset(data, dtype)
    if isinstance(dataset, TensorRows):
        for start in range(0, len(dataset), batch_size):
            batch = dataset.__getitems__(range(start, min(start + batch_size, len(dataset))))
            yield move(batch, device)
        return
    if not isinstance(dataset, DataLoader):
        dataset = DataLoader(dataset, batch_size=min(batch_size, 256))
    for raw in without_rng_side_effects(with_all_rows(dataset)):
        yield move((read or as_batch)(raw), device)


def without_rng_side_effects(loader: Iterable[Any]) -> Iterator[Any]:
    """What ``loader`` yields, while its shuffling and augmentation leave torch's default generator as it was."""
    loader_state = torch.get_rng_state()
    iterator, done = None, object()
    while True:
        with resumed(loader_state):
            iterator = iter(loader) if iterator is None else iterator
            item = next(iterator, done)
            loader_state = torch.get_rng_state()
        if item is done:
            return
        yield item


def as_batch(raw: Any) -> Batch:
    """What a loader yields, as a :class:`Batch`."""
    if isinstance(raw, Batch):
        return raw
    if not isinstance(raw, tuple | list) or len(raw) not in (2, 3):
        fix = "; x itself may be a mapping: ({...}, y)" if isinstance(raw, Mapping) else ""
        raise InputError(f"a loader must yield (x, y) or (x, y, sample_weight), got {_describe(raw)}{fix}")
    x, y, weight = raw if len(raw) == 3 else (*raw, None)
    for name, value in (("y", y), ("sample_weight", weight)):
        if not isinstance(value, Tensor) and (name == "y" or value is not None):
            raise InputError(
                f"a loader must yield {name} as one tensor, got {_describe(value)}; convert it, or choose one of "
                "several by a collate_fn"
            )
    return Batch(x, y, weight)


def inputs_of(raw: Any) -> Any:
    """The inputs of what a loader yields for prediction: the first part of a tuple or list, or the whole."""
    return raw[0] if isinstance(raw, tuple | list) else raw


def move(batch: Batch, device: torch.device) -> Batch:
    """``batch`` with every tensor on ``device``."""
    return batch.map(lambda t: t.to(device))


def prepare_input(x: Any, device: torch.device, dtype: torch.dtype, *, keep_device: bool = False) -> Any:
    """Inputs as tensors on ``device``; float arrays in the network's ``dtype``; finite, or a sentence."""

    def prepare(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) and not _is_array(leaf):
            return leaf
        tensor = _as_tensor(leaf, "x", dtype)
        if tensor.layout != torch.strided:
            if leaf is rows:
                raise InputError("x is a sparse tensor, whose rows cannot be cut apart; give x.to_dense()")
        elif leaf is rows or bool(tensor.isnan().any()):  # a mask beside the rows may hold −∞
            _check_finite(tensor, "x")
        tensor = tensor if keep_device else tensor.to(device)
        return tensor.clone() if tensor.is_inference() else tensor  # nothing can be differentiated through the former

    rows = next((leaf for leaf in leaves(x) if isinstance(leaf, Tensor) or _is_array(leaf)), None)
    if _is_array(x):
        return prepare(x)
    prepared = pytree.tree_map(prepare, plain(x))
    count_rows(prepared)
    return prepared


def count_data(loader: DataLoader[Any], n_data: int | None) -> int:
    """The number of data behind a loader, over all processes."""
    if n_data is not None:
        return int(n_data)
    dataset = loader.dataset
    if isinstance(own := getattr(dataset, "n_data", None), int):  # a data set of whole minibatches
        return own
    if not isinstance(dataset, Sized):
        raise InputError("the loader does not know how many data it holds; say so with fit(..., n_data=N)")
    count = len(loader.sampler.indices) if isinstance(loader.sampler, SubsetRandomSampler) else len(dataset)
    if count == 0:
        raise InputError("the loader's data set is empty; give at least one datum")
    return count


class EpochOrder:
    """Makes the order in which a loader goes through its data a function of a seed and the epoch.

    Generators that the user gave a loader are seeded anew every epoch, from their own seed among others, and put
    back by :meth:`restore`. What draws from torch's default generator is left to the training loop.

    Args:
        loader: as :func:`make_loader` returns it, or as Fabric wraps it.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        owners = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None), loader.batch_sampler)
        found = {id(g): g for o in owners if isinstance(g := getattr(o, "generator", None), torch.Generator)}
        self._generators = [(g, g.initial_seed(), g.get_state()) for g in found.values()]

    def set(self, seed: int, epoch: int) -> None:
        """Choose the order of epoch ``epoch``."""
        for generator, own_seed, _ in self._generators:
            generator.manual_seed(derive(seed, 0, epoch, own_seed % 2**64))
        if isinstance(self._loader.batch_sampler, GlobalBatches):
            self._loader.batch_sampler.seed = seed
        for sampler in (self._loader.sampler, self._loader.batch_sampler):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        if hasattr(self._loader, "_num_iter_calls"):  # Fabric's wrapper counts epochs of its own
            self._loader._num_iter_calls = epoch

    def restore(self) -> None:
        """Leave the user's generators as they were found."""
        for generator, _, state in self._generators:
            generator.set_state(state)


def _identity(batch: Any) -> Any:
    return batch


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, Tensor))


def _as_tensor(value: Any, name: str, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Mapping):
        raise InputError(
            f"{name} must be one tensor or array, got a mapping of {', '.join(map(repr, value))}: choose one"
        )
    if isinstance(value, Tensor):
        if name == "x" and value.is_floating_point() and value.dtype != dtype:
            raise InputError(
                f"{name} is {_dtype(value)} but the network computes in {str(dtype).removeprefix('torch.')}: "
                f"convert it with x.to({dtype})"
            )
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold numbers, got an array of dtype {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_finite(value: Tensor, name: str) -> None:
    if not value.is_floating_point() or value.numel() == 0:
        return
    extremes = torch.stack(torch.aminmax(value))  # NaN if any is; no copies of the size of the data
    if not bool(extremes.isfinite().all()):
        rows = value.shape[0] if value.dim() else 1
        bad = ~torch.isfinite(value).reshape(rows, -1).all(1)
        first = int(bad.nonzero()[0])
        raise InputError(
            f"{name} holds NaN or infinite values in {int(bad.sum())} rows (the first is row {first}); "
            "remove or impute them"
        )


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _describe(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{length}"
