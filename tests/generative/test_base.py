"""Data, grids and saving of all generative models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import credo
from credo.errors import InputError, LoadError
from credo.generative import VAE
from credo.seeding import seeded
from credo.training.generative import evaluation_mode

CPU = torch.device("cpu")


def build(**options: object) -> VAE:
    with seeded(0, CPU):
        return VAE(**{"latent": 2, "shape": (1, 4, 4), "hidden": (8,), **options})


def images(n: int = 24) -> Tensor:
    with seeded(0, CPU):
        return torch.rand(n, 1, 4, 4).round()


class Rows(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Tensor:
        return images()[i]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(images())


DATA = {
    "tensor": lambda: images(),
    "array": lambda: images().numpy(),
    "float64 array": lambda: images().double().numpy(),
    "8-bit array": lambda: images().numpy().astype(np.uint8),
    "booleans": lambda: images().bool(),
    "with labels": lambda: (images(), torch.arange(24)),
    "with labels and weights": lambda: (images().numpy(), np.arange(24), np.ones(24)),
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_all_forms_of_data_in_memory_give_the_same_model(make):
    expected = build().fit(images(), epochs=2, seed=0)
    found = build().fit(make(), epochs=2, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), found.parameters(), strict=True))
    assert torch.equal(found.elbo(make(), seed=0), expected.elbo(images(), seed=0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDataset(images(), torch.arange(24)),
        lambda: TensorDataset(images().to(torch.uint8)),
        Rows,
        lambda: DataLoader(Rows(), batch_size=5, shuffle=True),
        lambda: DataLoader(Stream(), batch_size=5),
    ],
    ids=["labeled set", "8-bit set", "rows", "loader", "stream"],
)
def test_datasets_and_loaders_are_accepted(make):
    model = build().fit(make(), epochs=1, n_data=24, seed=0)
    assert model.n_data == 24
    assert len(model.encode(make()).mean) == len(model.elbo(make())) == 24


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([images()], "got a list: stack it first"),
        (torch.rand(24), r"shape \[N, ...\] with N >= 1, got \[24\]"),
        (images()[:0], r"got \[0, 1, 4, 4\]"),
        (images() + torch.inf, "x holds NaN or infinite values in 24 rows"),
        (255 * images(), "data between 0 and 1, got values from 0 to 255"),
        (images()[:, :, :3], r"data must have shape \[N, 1, 4, 4\], got \[N, 1, 3, 4\]"),
        (np.array(["a", "b"]), "x must hold numbers"),
        (DataLoader([{"x": i} for i in range(4)]), "a loader must yield tensors, or tuples that begin with one"),
    ],
)
def test_bad_data_raise_before_training(data, message):
    model = build()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match=message):
        model.fit(data, epochs=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert model.n_data is None


def test_grids_are_drawn_during_training(tmp_path):
    model = build().fit(images(), epochs=5, seed=0, grids=tmp_path / "grids", grid_every=2)
    drawn = sorted((tmp_path / "grids").iterdir())
    assert [path.name for path in drawn] == ["epoch-0002.png", "epoch-0004.png"]
    first, second = (imread(path) for path in drawn)
    assert first.shape == second.shape
    assert (first != second).any()
    plain = build().fit(images(), epochs=5, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    model.fit(images(), epochs=6, seed=0)
    assert sorted((tmp_path / "grids").iterdir()) == drawn


def test_bad_grid_options_raise_before_training(tmp_path):
    with pytest.raises(InputError, match="rows of 3 numbers are not square images"):
        build(shape=(3,)).fit(torch.rand(24, 3), grids=tmp_path / "grids")
    with pytest.raises(InputError, match="grid_every must be an integer of at least 1, got 0"):
        build().fit(images(), grids=tmp_path / "grids", grid_every=0)
    assert not list(tmp_path.iterdir())


def test_load_error_names_missing_networks(tmp_path):
    build().fit(images(), epochs=1, seed=0).save(tmp_path / "run")
    with pytest.raises(LoadError, match=r"net=\{'encoder': \.\.\., 'decoder': \.\.\.\}"):
        credo.load(tmp_path / "run", net=nn.Linear(1, 1))
    with pytest.raises(LoadError, match="does not match the network: it lacks encoder"):
        credo.load(tmp_path / "run", net={"encoder": nn.Linear(1, 1)})
    other = build(hidden=(9,))
    with pytest.raises(LoadError, match="does not match the network"):
        credo.load(tmp_path / "run", net={"encoder": other.encoder, "decoder": other.decoder})


def test_evaluation_mode_restores_training_flags():
    model = build()
    model.decoder.eval()
    with suppress(RuntimeError), evaluation_mode(model):
        assert not any(part.training for part in model.modules())
        raise RuntimeError
    assert model.encoder.training
    assert not model.decoder.training
