"""Data as users have it, as batches: every row counted once, in an order that only the seed and the epoch decide."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SubsetRandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from credo import data
from credo.errors import InputError

CPU = torch.device("cpu")
X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


class Stream(IterableDataset):
    """Ten data without a length."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 10


def collect(source: object, batch_size: int = 4) -> tuple[Tensor, Tensor]:
    parts = list(data.batches(source, batch_size, CPU, torch.float32))
    return torch.cat([batch.x for batch in parts]), torch.cat([batch.y for batch in parts])


sizes = st.tuples(st.integers(1, 40), st.integers(1, 50), st.integers(1, 4))


@given(sizes)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_processes_share_the_batches_of_a_single_one(size):
    n, batch_size, world = size
    alone = list(data.GlobalBatches(n, batch_size, seed=3))
    shares = [list(data.GlobalBatches(n, batch_size, 3, rank, world)) for rank in range(world)]
    assert sorted(chain.from_iterable(alone)) == list(range(n))
    for whole, *parts in zip(alone, *shares, strict=True):
        assert set(whole) == set().union(*parts)
        assert len({len(part) for part in parts}) == 1


@given(sizes)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_weights_of_shared_rows_make_the_mean_over_processes_the_mean_over_the_batch(size):
    n, batch_size, world = size
    values = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
    alone = data.GlobalBatches(n, batch_size, seed=3)
    samplers = [data.GlobalBatches(n, batch_size, 3, rank, world) for rank in range(world)]
    for i, (whole, *parts) in enumerate(zip(alone, *samplers, strict=True)):
        weights = [sampler.row_weights(i) for sampler in samplers]
        means = [
            (values[part] * (1.0 if weight is None else weight.double())).mean()
            for part, weight in zip(parts, weights, strict=True)
        ]
        assert alone.row_weights(i) is None
        assert alone.global_rows(i) == len(whole)
        torch.testing.assert_close(torch.stack(means).mean(), values[whole].mean(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("world", [1, 2])
def test_rows_in_memory_come_in_the_batches_of_their_sampler(world, monkeypatch):
    """Gathered all at once, a few minibatches at once, and one by one."""
    rows = data.TensorRows({"a": X, "b": Y.float()}, Y, torch.rand(10))
    for block in (2**20, 100, 1):
        monkeypatch.setattr(data, "_BLOCK_BYTES", block)
        sampler = data.GlobalBatches(10, 4, seed=3, rank=world - 1, world_size=world)
        loader = data.RowLoader(rows, sampler, CPU)
        assert len(loader) == 3
        for batch, indices in zip(loader, sampler, strict=True):
            assert torch.equal(batch.x["a"], X[indices])
            assert torch.equal(batch.y, Y[indices])
            assert torch.equal(batch.sample_weight, rows.sample_weight[indices])


def test_order_changes_with_the_epoch_and_the_seed_and_with_nothing_else():
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = data.GlobalBatches(30, 7, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_without_shuffling_rows_come_in_order():
    assert list(data.GlobalBatches(5, 2, seed=0, shuffle=False)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.tolist()),
        (pd.DataFrame(X.numpy()), pd.Series(Y.numpy())),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3),
        Stream(),
    ],
    ids=["tensors", "list", "arrays", "float64 arrays", "pandas", "dataset", "loader", "stream"],
)
def test_every_form_of_data_gives_the_same_rows(source):
    x, y = collect(source)
    assert x.dtype == torch.float32
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_inputs_may_be_a_mapping_or_a_tuple_of_tensors():
    for x in ({"a": X, "b": Y}, (X, Y)):
        first = next(iter(data.batches((x, Y), 4, CPU, torch.float32)))
        parts = first.x.values() if isinstance(x, dict) else first.x
        assert [part.shape[0] for part in parts] == [4, 4]


def test_sample_weights_travel_with_their_rows():
    weight = torch.rand(10, dtype=torch.float64)
    dataset = data.as_dataset((X, Y, weight), torch.float32)
    batch = dataset.__getitems__([7, 2])
    assert torch.equal(batch.sample_weight, weight[[7, 2]].float())
    assert torch.equal(dataset[3].y, Y[3:4])


def test_unsigned_arrays_become_what_torch_can_index_with():
    _, y = collect((X.numpy(), Y.numpy().astype(np.uint16)))
    assert y.dtype == torch.int64


class Augmented(Dataset):
    """Adds noise to every datum."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + torch.rand(2), Y[index]


@pytest.mark.parametrize(
    "source",
    [(X, Y), TensorDataset(X, Y), Stream(), DataLoader(TensorDataset(X, Y), shuffle=True), Augmented()],
    ids=["tensors", "dataset", "stream", "shuffled loader", "augmented"],
)
def test_trap_15_reading_data_leaves_the_random_state(source):
    state = torch.get_rng_state()
    collect(source)
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_differs_from_batch_to_batch():
    noise = collect(DataLoader(Augmented()))[0] - X
    assert len(noise.unique()) == noise.numel()


@pytest.mark.parametrize(
    ("loader", "count"),
    [
        (DataLoader(TensorDataset(X, Y)), 10),
        (DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler([1, 2, 3])), 3),
        (DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True), 10),
        (DataLoader(SizedStream()), 10),
    ],
    ids=["plain", "subset", "drop_last", "sized stream"],
)
def test_number_of_data_behind_a_loader(loader, count):
    assert data.count_data(loader, None) == count
    assert data.count_data(loader, 77) == 77


def _own_generator() -> DataLoader:
    return DataLoader(TensorDataset(X, Y), shuffle=True, generator=torch.Generator().manual_seed(5))


def _sampler_generator() -> DataLoader:
    dataset = TensorDataset(X, Y)
    return DataLoader(dataset, sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(5)))


def _distributed() -> DataLoader:
    dataset = TensorDataset(X, Y)
    return DataLoader(dataset, sampler=DistributedSampler(dataset, num_replicas=1, rank=0))


@pytest.mark.parametrize("make", [_own_generator, _sampler_generator, _distributed])
def test_order_of_a_users_loader_is_a_function_of_the_epoch(make):
    def labels(loader: DataLoader, order: data.EpochOrder, epoch: int) -> list[int]:
        order.set(1, epoch)
        return [int(y) for _, y in loader]

    first = make()
    order = data.EpochOrder(first)
    in_turn = [labels(first, order, epoch) for epoch in range(3)]
    second = make()
    assert labels(second, data.EpochOrder(second), 2) == in_turn[2]
    assert in_turn[0] != in_turn[1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_evaluation_sees_the_rows_that_a_loader_drops_in_training(shuffle):
    """Otherwise a curvature, a bound or a posterior of N rows would be that of fewer."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=shuffle, drop_last=True)
    x, y = collect(loader)
    order = y.argsort()
    assert torch.equal(x[order], X)
    assert torch.equal(y[order], Y)
    assert loader.drop_last
    assert (
        len(collect(DataLoader(SizedStream(), batch_size=4, drop_last=True))[1]) == 8
    )  # as an iterable decides itself


def test_generator_of_a_users_loader_is_put_back():
    loader = _own_generator()
    state = loader.generator.get_state()
    order = data.EpochOrder(loader)
    order.set(1, 0)
    list(loader)
    order.restore()
    assert torch.equal(loader.generator.get_state(), state)


class Unsized(Dataset):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (X, "data must be a DataLoader, a Dataset, or a pair"),
        ((X,), "got tuple of length 1"),
        ("x", "got str"),
        ((X[:0], Y[:0]), "the data are empty"),
        (TensorDataset(X[:0], Y[:0]), "the data set is empty"),
        ((X, Y[:9]), r"X has 10 rows but y has shape \[9\]"),
        ((X, torch.tensor(1.0)), r"X has 10 rows but y has shape \[\]"),
        ((X, Y, torch.ones(3)), r"sample_weight has shape \[3\]"),
        ((X, Y, torch.ones(10, 1)), r"sample_weight must hold one number of 0 or more per row, got shape \[10, 1\]"),
        ((X, Y, -torch.ones(10)), "sample_weight must hold one number of 0 or more per row"),
        (({"a": X, "b": X[:3]}, Y), r"the parts of X disagree: one has 10 rows, another has shape \[3, 2\]"),
        ((X.double(), Y), r"x is float64 but the network computes in float32: convert it with x.to\(torch.float32\)"),
        ((np.array([["a", "b"]] * 10), Y), "x must hold numbers"),
        ((X, np.array(["a"] * 10)), "y must hold numbers"),
        ((torch.tensor(1.0), Y), "x must have rows along dim 0"),
        (("a", Y), "x must be a tensor"),
        ((X.clone().index_fill_(0, torch.tensor([3, 5]), torch.nan), Y), r"NaN .* in 2 rows \(the first is row 3\)"),
        ((X, Y.float().index_fill_(0, torch.tensor(4), torch.inf)), r"y holds NaN or infinite values in 1 rows"),
        ((X, Y.float().index_fill_(0, torch.tensor(9), -torch.inf)), "infinite values in 1 rows"),
    ],
)
def test_data_that_cannot_be_used_are_named(source, message):
    with pytest.raises(InputError, match=message):
        list(data.batches(source, 4, CPU, torch.float32))


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


def test_data_are_checked_without_a_copy_of_them():
    x, nothing, y = torch.zeros(100, 8), torch.zeros(100, 0), torch.zeros(100)
    with Largest() as largest:
        data.as_dataset((x, y), torch.float32)
        data.as_dataset((nothing, y), torch.float32)
    assert largest.numbers <= 2  # the smallest and the largest number


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (X, r"must yield \(x, y\) or \(x, y, sample_weight\), got Tensor"),
        ({"x": X}, "got dict"),
        ([X], "got list of length 1"),
        ((X, ["a", "b"]), "must yield y as one tensor, got list of length 2"),
        ((X, Y, "w"), "must yield sample_weight as one tensor, got str"),
    ],
)
def test_loader_that_yields_something_else_is_named(raw, message):
    with pytest.raises(InputError, match=message):
        data.as_batch(raw)


def test_dataset_without_a_length_is_named():
    with pytest.raises(InputError, match="Unsized has no length"):
        data.make_loader(Unsized(), 4, 0, 0, 1, torch.float32, CPU)
    with pytest.raises(InputError, match="n_data=N"):
        data.count_data(DataLoader(Stream()), None)
