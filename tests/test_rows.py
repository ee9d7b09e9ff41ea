"""Every kind of table gives the same blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator
from torch.utils.data import DataLoader, TensorDataset

from credo import _rows
from credo._rows import Rows, is_chunked, rows_of
from credo.errors import InputError

CPU = torch.device("cpu")
TABLE = np.random.default_rng(0).normal(size=(1000, 3))


class Anything(BaseEstimator):
    """An estimator that learns only its columns."""


def rows(X: Any, y: Any = None, **options: Any) -> Rows:
    return rows_of(Anything(), X, y, reset=True, device=CPU, **options)


def joined(source: Rows, part: int = 0, **options: Any) -> np.ndarray:
    return torch.cat([block[part] for block in source.blocks(**options)]).numpy()


def mapped_read_only(tmp_path) -> np.ndarray:
    np.save(tmp_path / "table.npy", TABLE)
    return np.load(tmp_path / "table.npy", mmap_mode="r")


KINDS: dict[str, Callable[[Any], Any]] = {
    "float64": lambda _: TABLE,
    "float32": lambda _: TABLE.astype(np.float32),
    "float16": lambda _: TABLE.astype(np.float16),
    "int": lambda _: (100 * TABLE).astype(np.int32),
    "bool": lambda _: TABLE > 0,
    "big endian": lambda _: TABLE.astype(">f8"),
    "Fortran": lambda _: np.asfortranarray(TABLE),
    "reversed": lambda _: TABLE[::-1, ::-1],
    "every other": lambda _: TABLE[::2, ::2],
    "transposed": lambda _: TABLE[:3].T,
    "read only": lambda _: np.broadcast_to(TABLE[:1], (50, 3)),
    "mapped": mapped_read_only,
    "frame": lambda _: pd.DataFrame(TABLE, columns=list("abc")).astype({"a": np.float32}),
    "objects": lambda _: TABLE[:20].astype(object),
    "lists": lambda _: TABLE[:20].tolist(),
    "tensor": lambda _: torch.from_numpy(TABLE),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [7, 600, 10**6])
@pytest.mark.filterwarnings("error")  # torch warns of arrays that it may not write to
def test_tables_of_every_kind(kind, block, tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", block)
    monkeypatch.setattr(_rows, "_MIN_ROWS", 2)
    table = KINDS[kind](tmp_path)
    source = rows(table)
    expected = np.asarray(table, np.float64)
    np.testing.assert_array_equal(joined(source), expected)
    assert all(block[0].dtype == torch.float64 for block in source.blocks())
    assert source.count == len(expected)
    assert source.is_table
    assert source.repeatable
    np.testing.assert_array_equal(source.map(lambda x: x.sum(1)), torch.from_numpy(expected.copy()).sum(1))
    (total,) = source.total(lambda x: (x.sum(0),))
    np.testing.assert_allclose(total, expected.sum(0), atol=1e-9)


def test_blocks_share_memory_if_possible():
    (block,) = next(rows(TABLE).blocks())
    assert block.data_ptr() == TABLE.ctypes.data


def test_block_size(monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", 1200)
    source = rows(TABLE)
    assert [len(x) for (x,) in source.blocks()] == [400, 400, 200]
    assert [len(x) for (x,) in source.blocks(2)] == [600, 400]
    assert [len(x) for (x,) in source.blocks(10**9)] == [256, 256, 256, 232]


@pytest.mark.parametrize("threads", [1, 3])
def test_results_do_not_depend_on_the_number_of_threads(threads, monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", 30)
    monkeypatch.setattr(_rows, "_MIN_ROWS", 2)
    before, used = torch.get_num_threads(), set()

    def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        used.add(threading.get_ident())
        return x.sum(0), x.mT @ x

    torch.set_num_threads(threads)
    try:
        sums, products = rows(TABLE).total(statistics)
        kept = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    expected = [np.zeros(3), np.zeros((3, 3))]
    for (x,) in rows(TABLE).blocks():
        expected = [expected[0] + x.sum(0).numpy(), expected[1] + (x.mT @ x).numpy()]
    np.testing.assert_array_equal(sums, expected[0])
    np.testing.assert_allclose(products, expected[1], rtol=1e-14, atol=1e-13)
    assert kept == threads
    assert (threading.get_ident() in used) == (threads == 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_exception_propagates_and_thread_count_is_restored(threads, monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", 300)

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(ZeroDivisionError):
            rows(TABLE).map(fail, 1)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def chunks(table: np.ndarray = TABLE) -> Callable[[], list[np.ndarray]]:
    return lambda: np.array_split(table, [1, 1, 300, 301, 999])


SOURCES: dict[str, Callable[[], Any]] = {
    "function": chunks,
    "generator function": lambda: lambda: iter(chunks()()),
    "frames": lambda: lambda: (pd.DataFrame(part, columns=list("abc")) for part in chunks()()),
    "tensors": lambda: lambda: (torch.from_numpy(part) for part in chunks()()),
    "loader of a tensor": lambda: DataLoader(torch.from_numpy(TABLE), batch_size=64),
    "loader of a set": lambda: DataLoader(TensorDataset(torch.from_numpy(TABLE)), batch_size=64),
    "loader with targets nobody wants": lambda: DataLoader(
        TensorDataset(torch.from_numpy(TABLE), torch.zeros(1000)), batch_size=64
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_chunks_of_every_kind(kind):
    source = rows(SOURCES[kind]())
    assert not source.is_table
    assert source.repeatable
    for _ in range(2):
        np.testing.assert_array_equal(joined(source), TABLE)
    assert source.count == 1000
    np.testing.assert_array_equal(source.map(lambda x: x + 1), TABLE + 1)


def test_iterator_can_be_read_only_once():
    source = rows(iter(chunks()()))
    assert not source.repeatable
    np.testing.assert_array_equal(joined(source), TABLE)
    assert source.count == 1000  # known from that pass
    with pytest.raises(InputError, match=r"only once, .* pass a function that returns a new iterator"):
        joined(source)


def test_counting_consumes_an_iterator():
    source = rows(part for part in chunks()())
    assert source.count == 1000
    with pytest.raises(InputError, match="only once"):
        source.sample(3, seed=0)


def test_chunks_in_a_reused_buffer(monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", 900)

    def read():
        buffer = np.empty((100, 3))
        for start in range(0, 1000, 100):
            buffer[:] = TABLE[start : start + 100]
            yield buffer

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(rows(read).map(lambda x: 1 * x), TABLE)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 10, 999, 1000, 5000])
def test_sample_does_not_depend_on_the_kind_of_table(n):
    of_array, of_chunks = (rows(X).sample(n, seed=4).numpy() for X in (TABLE, chunks()))
    np.testing.assert_array_equal(of_array, of_chunks)
    assert of_array.shape == (min(n, 1000), 3)
    assert len(np.unique(of_array, axis=0)) == len(of_array)
    position = {tuple(row): i for i, row in enumerate(TABLE)}
    order = [position[tuple(row)] for row in of_array]
    assert order == sorted(order)


def test_samples_are_uniform():
    counts = np.zeros(20)
    small = np.arange(20.0)[:, None]
    for seed in range(2000):
        counts[rows(small).sample(5, seed=seed)[:, 0].numpy().astype(int)] += 1
    # each row is in with probability 1/4, so that its count has the standard deviation √(2000·3/16)
    assert np.abs(counts - 500).max() < 4 * np.sqrt(2000 * 3 / 16)


def test_added_columns_are_writable(monkeypatch):
    monkeypatch.setattr(_rows, "CPU_BLOCK", 900)
    column = torch.zeros(1000, dtype=torch.long)
    source = rows(TABLE)
    for x, part in source.with_columns(column).blocks():
        assert part.dtype == torch.long
        part.copy_((x[:, 0] > 0).long())
    np.testing.assert_array_equal(column, TABLE[:, 0] > 0)
    assert len(next(source.blocks())) == 1


def as_floats(y: Any) -> np.ndarray:
    return np.asarray(y, np.float64)


def test_targets_match_their_rows():
    y = TABLE[:, 0] * 2
    pairs = [(part, 2 * part[:, 0]) for part in chunks()()]
    for source in (rows(TABLE, y, targets=as_floats), rows(lambda: pairs, targets=as_floats)):
        np.testing.assert_array_equal(joined(source), TABLE)
        np.testing.assert_array_equal(joined(source, part=1), y)
        (total,) = source.total(lambda x, y: (y @ x,))
        np.testing.assert_allclose(total, y @ TABLE, atol=1e-9)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (chunks(), None, r"a chunk must be a pair \(X, y\), got 1 part"),
        (lambda: [(TABLE, TABLE, TABLE)], None, r"a chunk must be a pair \(X, y\), got 3 part"),
        (chunks(), TABLE[:, 0], "y must be None if X comes in chunks"),
        (TABLE, TABLE[:5, 0], "inconsistent numbers of samples"),
        (lambda: [(TABLE, TABLE[:5, 0])], None, "inconsistent numbers of samples"),
    ],
)
def test_targets_that_do_not_match_raise(X, y, message):
    with pytest.raises(ValueError, match=message):
        joined(rows(X, y, targets=as_floats))


def test_empty_chunks_are_skipped():
    nothing = np.empty((0, 3))
    np.testing.assert_array_equal(joined(rows(lambda: [nothing, TABLE, nothing])), TABLE)
    pairs = [(nothing, nothing[:, 0]), (TABLE, TABLE[:, 0])]
    np.testing.assert_array_equal(joined(rows(lambda: pairs, targets=as_floats), part=1), TABLE[:, 0])


@pytest.mark.parametrize("source", [list, lambda: [np.empty((0, 3))], lambda: iter(())])
def test_only_empty_chunks_raise(source):
    with pytest.raises(InputError, match="the chunks contain no rows"):
        joined(rows(source))


def test_chunks_must_agree_on_their_columns():
    with pytest.raises(ValueError, match="2 features, but Anything is expecting 3 features"):
        joined(rows(lambda: [TABLE, TABLE[:, :2]]))
    frames = [pd.DataFrame(TABLE, columns=list("abc")), pd.DataFrame(TABLE, columns=list("abd"))]
    with pytest.raises(ValueError, match="feature names"):
        joined(rows(lambda: frames))


def test_columns_must_match_those_of_the_fit():
    estimator = Anything()
    joined(rows_of(estimator, chunks(), reset=True, device=CPU))
    assert estimator.n_features_in_ == 3
    with pytest.raises(ValueError, match="2 features"):
        joined(rows_of(estimator, TABLE[:, :2], reset=False, device=CPU))
    with pytest.raises(ValueError, match="2 features"):
        joined(rows_of(estimator, lambda: [TABLE[:, :2]], reset=False, device=CPU))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_raise_unless_missing_values_are_allowed(bad):
    holed = TABLE.copy()
    holed[3, 1] = bad
    for X in (holed, lambda: [TABLE, holed]):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            joined(rows(X))
        if np.isnan(bad):
            assert np.isnan(joined(rows(X, allow_nan=True))).sum() == 1
        else:
            with pytest.raises(ValueError, match="infinity"):
                joined(rows(X, allow_nan=True))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (TABLE[:, 0], "Expected 2D array"),
        (TABLE[None], "dim 3|Expected <= 2|expected <= 2"),
        (np.array([["a", "b"]]), "could not convert|dtype"),
        (TABLE[:0], "0 sample"),
        (lambda: [TABLE[:, 0]], "Expected 2D array"),
    ],
)
def test_bad_tables_raise(X, message):
    with pytest.raises(ValueError, match=message):
        joined(rows(X))


@pytest.mark.parametrize("chunked", [False, True])
def test_values_whose_squares_overflow_raise(chunked):
    table = TABLE.copy()
    table[7, 1] = -3e160
    table[8, 2] = np.nan
    source = (lambda: iter([table[:5], table[5:]])) if chunked else table
    with pytest.raises(InputError, match=r"X contains values up to 3e\+160, too large to be squared: rescale it"):
        joined(rows(source, allow_nan=True))
    with pytest.raises(InputError, match="X contains values up to"):
        rows_of(Anything(), table[7:8], reset=False, device=CPU)
    with pytest.raises(InputError, match=r"y contains values up to 1e\+200"):
        rows(TABLE, np.full(len(TABLE), -1e200), targets=np.asarray)


def test_training_columns_whose_squares_underflow_raise():
    table = TABLE * [1.0, 1e-170, 0.0]
    with pytest.raises(InputError, match=r"column 1 of X contains no value above \d.*e-170, too small to be squared"):
        rows(table)
    rows_of(Anything(), table, reset=False, device=CPU)
    table[3, 1] = 1.0  # beside larger ones, small numbers are as good as 0
    rows(table)


def test_too_few_rows_raise():
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        rows(TABLE[:1], minimum=2)


def test_is_chunked():
    assert is_chunked(chunks())
    assert is_chunked(iter([]))
    assert is_chunked(DataLoader(torch.zeros(3)))
    for table in (TABLE, pd.DataFrame(TABLE), torch.zeros(3), [[1.0]]):
        assert not is_chunked(table)


def test_function_must_return_the_same_rows_every_time():
    spent = iter([np.ones((3, 2)), np.ones((2, 2))])
    rows = rows_of(BaseEstimator(), lambda: spent, reset=True, device=torch.device("cpu"))
    assert rows.count == 5
    with pytest.raises(InputError, match="contained 5 rows at first and 0 when read again"):
        list(rows.blocks())
