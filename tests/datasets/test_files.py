"""Data files: checksums, splits, published sizes, and errors for missing files."""

import hashlib

import numpy as np
import pytest
import torch

from credo import datasets
from credo.datasets import files
from credo.errors import InputError


def test_missing_file_error_names_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        datasets.load("uci/yacht")
    assert str(caught.value) == (
        f"yacht.npz is missing: put it at {tmp_path / 'uci' / 'yacht.npz'}, "
        "or set CREDO_DATA to the folder that holds uci/."
    )
    assert not any(datasets.available().values())


def test_file_with_wrong_checksum_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "yacht.npz").write_bytes(b"something else")
    with pytest.raises(InputError, match="is not the published file"):
        datasets.load("uci/yacht")


def test_unknown_set_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'uci/yacht'"):
        datasets.load("uci/yatch")


def test_table_split_covers_every_row_once(tmp_path, monkeypatch):
    rows = np.arange(10.0)
    file = tmp_path / "uci" / "yacht.npz"
    file.parent.mkdir()
    np.savez(file, X=rows[:, None], y=rows, test_idx=np.array([[1, 3], [2, 9]], dtype=np.int32))
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    monkeypatch.setitem(files.SHA256, "uci/yacht.npz", hashlib.sha256(file.read_bytes()).hexdigest())
    table = datasets.load("uci/yacht")
    split = table.split(1)
    assert split.y_test.tolist() == [2.0, 9.0]
    assert sorted([*split.y_train, *split.y_test]) == rows.tolist()
    with pytest.raises(InputError, match="between 0 and 1, got 2"):
        table.split(2)


def test_available_lists_all_sets():
    assert set(datasets.available()) == {
        "mnist", "fashion-mnist", "notmnist", "ptb", "mushroom", "camvid",
        *(f"uci/{name}" for name in ("bostonHousing", "concrete", "energy", "kin8nm", "naval-propulsion-plant",
                                     "power-plant", "protein-tertiary-structure", "wine-quality-red", "yacht")),
        *(f"small/{name}" for name in ("old_faithful", "oil_flow", "frey_faces", "mauna_loa_co2")),
    }  # fmt: skip


def test_real_mnist_has_its_published_moments():
    if not datasets.available()["mnist"]:
        pytest.skip("MNIST is not in the data folder")
    data = datasets.load("mnist")
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert data.x_train.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert data.x_train.std().item() == pytest.approx(0.3081, abs=5e-5)


def test_real_small_sets_have_their_published_sizes():
    if not all(datasets.available()[name] for name in ("ptb", "mushroom", "uci/yacht")):
        pytest.skip("Penn Treebank, Mushroom and Yacht are not in the data folder")
    words, mushrooms = datasets.load("ptb"), datasets.load("mushroom")
    assert (len(words.train), len(words.valid), len(words.test)) == (929_589, 73_760, 82_430)
    assert len(words.vocabulary) == 10_000
    assert mushrooms.x.shape == (8124, 117)
    assert mushrooms.poisonous.sum() == 3916
    assert torch.equal(mushrooms.x.sum(1), torch.full((8124,), 22.0))
    assert datasets.load("uci/yacht").split(19).y_test.shape == (31,)
