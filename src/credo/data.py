"""Data as users have it, as batches a network can take: checked, on the right device, in a reproducible order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from credo.errors import InputError
from credo.functional import count_rows, map_tensors
from credo.seeding import derive


class Batch(NamedTuple):
    """One minibatch."""

    x: Any
    y: Tensor
    sample_weight: Tensor | None


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

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of rows ``indices``."""
        rows = torch.as_tensor(indices, device=self.y.device)
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return Batch(map_tensors(lambda t: t[rows], self.x), self.y[rows], weight)


class GlobalBatches(Sampler[list[int]]):
    """Index batches that are the same for any number of processes, each taking its share of every batch.

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
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.rank, self.world_size, self.shuffle = rank, world_size, shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch ``epoch``."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, 0, self.epoch))
            order = torch.randperm(self.n, generator=generator)
        else:
            order = torch.arange(self.n)
        for start in range(0, self.n, self.batch_size):
            rows = order[start : start + self.batch_size]
            share = -(-len(rows) // self.world_size)
            padded = rows.repeat(-(-share * self.world_size // len(rows)))[: share * self.world_size]
            yield padded[self.rank * share : (self.rank + 1) * share].tolist()


def as_dataset(data: Any, device: torch.device, dtype: torch.dtype) -> Dataset[Any] | DataLoader[Any]:
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
    y = _as_tensor(data[1], "y", dtype)
    weight = None if len(data) == 2 or data[2] is None else _as_tensor(data[2], "sample_weight", dtype)
    rows = count_rows(x)
    if rows == 0:
        raise InputError("the data are empty; give at least one row")
    for name, value in (("y", y), ("sample_weight", weight)):
        if value is None:
            continue
        if value.dim() == 0 or value.shape[0] != rows:
            raise InputError(f"X has {rows} rows but {name} has shape {list(value.shape)}: one entry a row is needed")
        _check_finite(value, name)
    if weight is not None and (weight < 0).any():
        raise InputError("sample_weight must not be negative")
    return TensorRows(x, y, weight)


def make_loader(
    data: Any, batch_size: int, seed: int, rank: int, world_size: int, device: torch.device, dtype: torch.dtype
) -> DataLoader[Any]:
    """A loader over ``data``; a DataLoader is used as it is."""
    dataset = as_dataset(data, device, dtype)
    if isinstance(dataset, DataLoader):
        return dataset
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=batch_size)
    sampler = GlobalBatches(len(dataset), batch_size, seed, rank, world_size)  # type: ignore[arg-type]
    collate = _identity if isinstance(dataset, TensorRows) else None
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)


def batches(data: Any, batch_size: int, device: torch.device, dtype: torch.dtype) -> Iterator[Batch]:
    """The batches of ``data`` in order, on ``device``, for evaluation."""
    dataset = as_dataset(data, device, dtype)
    if isinstance(dataset, TensorRows):
        for start in range(0, len(dataset), batch_size):
            batch = dataset.__getitems__(range(start, min(start + batch_size, len(dataset))))
            yield move(batch, device)
        return
    loader = dataset if isinstance(dataset, DataLoader) else DataLoader(dataset, batch_size=min(batch_size, 256))
    for raw in loader:
        yield move(as_batch(raw), device)


def as_batch(raw: Any) -> Batch:
    """What a loader yields, as a :class:`Batch`."""
    if isinstance(raw, Batch):
        return raw
    if isinstance(raw, tuple | list) and len(raw) in (2, 3):
        return Batch(raw[0], raw[1], raw[2] if len(raw) == 3 else None)
    raise InputError(f"a loader must yield (x, y) or (x, y, sample_weight), got {_describe(raw)}")


def inputs_of(raw: Any) -> Any:
    """The inputs of what a loader yields for prediction: the first part of a tuple or list, or the whole."""
    return raw[0] if isinstance(raw, tuple | list) else raw


def move(batch: Batch, device: torch.device) -> Batch:
    """``batch`` with every tensor on ``device``."""
    x, y, weight = map_tensors(lambda t: t.to(device), tuple(batch))
    return Batch(x, y, weight)


def prepare_input(x: Any, device: torch.device, dtype: torch.dtype, *, keep_device: bool = False) -> Any:
    """Inputs as tensors on ``device``; float arrays in the network's ``dtype``; finite, or a sentence."""

    def prepare(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) and not _is_array(leaf):
            return leaf
        tensor = _as_tensor(leaf, "x", dtype)
        _check_finite(tensor, "x")
        return tensor if keep_device else tensor.to(device)

    if _is_array(x):
        return prepare(x)
    prepared = pytree.tree_map(prepare, x)
    count_rows(prepared)
    return prepared


def count_data(loader: DataLoader[Any], n_data: int | None) -> int:
    """The number of data behind a loader, over all processes."""
    if n_data is not None:
        if n_data < 1:
            raise InputError(f"n_data must be 1 or more, got {n_data}")
        return n_data
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise InputError("the loader does not know how many data it holds; say so with fit(..., n_data=N)")
    if len(dataset) == 0:
        raise InputError("the loader's data set is empty; give at least one datum")
    return len(dataset)


def _identity(batch: Any) -> Any:
    return batch


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, Tensor))


def _as_tensor(value: Any, name: str, dtype: torch.dtype) -> Tensor:
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
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        bad = ~torch.isfinite(value).reshape(value.shape[0], -1).all(1)
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
