"""Data sets: known moments, fixed seeds, exact rotations, and sentences where files are missing."""

import hashlib

import numpy as np
import pytest
import torch

from credo import datasets
from credo.datasets import files
from credo.errors import InputError

CURVES = [datasets.sine_with_gap, datasets.heteroscedastic_sine, datasets.blundell_curve]


@pytest.mark.parametrize("make", CURVES)
def test_curve_is_reproducible_and_leaves_global_randomness_alone(make):
    before = torch.get_rng_state()
    first, second, other = make(n=50, seed=3), make(n=50, seed=3), make(n=50, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.y, second.y)
    assert not torch.equal(first.y, other.y)
    assert first.x.shape == first.y.shape == (50, 1)
    assert first.x.dtype == first.y.dtype == torch.float32
    assert first.x_grid.min() < first.x.min()
    assert first.x_grid.max() > first.x.max()


@pytest.mark.parametrize("make", [datasets.sine_with_gap, datasets.heteroscedastic_sine])
def test_curve_scatters_about_its_function_with_its_noise(make):
    """Standardized residuals are N(0, 1): their mean and mean square within 5 standard errors."""
    n = 20_000
    curve = make(n=n, seed=1)
    z = (curve.y - curve.function(curve.x)) / curve.noise(curve.x)
    assert abs(z.mean()) < 5 / n**0.5
    assert abs(z.square().mean() - 1) < 5 * (2 / n) ** 0.5


def test_gap_is_empty_and_between_the_data():
    curve = datasets.sine_with_gap(n=500)
    low, high = curve.gap
    assert not ((curve.x > low) & (curve.x < high)).any()
    assert (curve.x <= low).any()
    assert (curve.x >= high).any()


def test_blundell_curve_is_the_published_formula():
    curve = datasets.blundell_curve(n=100, seed=5)
    generator = torch.Generator().manual_seed(5)
    torch.rand(100, 1, generator=generator)
    e, x, pi = 0.02 * torch.randn(100, 1, generator=generator), curve.x, torch.pi
    y = x + 0.3 * torch.sin(2 * pi * (x + e)) + 0.3 * torch.sin(4 * pi * (x + e)) + e
    torch.testing.assert_close(curve.y, y)
    assert curve.x.min() >= 0.0
    assert curve.x.max() <= 0.5


def test_blundell_noise_is_the_slope_of_the_function():
    x = torch.linspace(0.0, 0.5, 20)[:, None].requires_grad_()
    curve = datasets.blundell_curve()
    (slope,) = torch.autograd.grad(curve.function(x).sum(), x)
    torch.testing.assert_close(curve.noise(x), 0.02 * slope.abs())


@pytest.mark.parametrize("make", CURVES)
def test_curve_needs_a_point(make):
    with pytest.raises(InputError, match="n must be at least 1, got 0"):
        make(n=0)


def test_digits_split_is_stratified_disjoint_and_scaled():
    data = datasets.load_digits(seed=0)
    assert data.x_train.shape == (1347, 1, 8, 8)
    assert data.x_test.shape == (450, 1, 8, 8)
    assert data.y_train.dtype == torch.int64
    assert data.x_train.min() == 0.0
    assert data.x_train.max() == 1.0
    assert len(data.classes) == 10
    counts = torch.bincount(data.y_test)
    assert counts.min() >= 43
    assert counts.max() <= 46
    assert torch.equal(data.y_test, datasets.load_digits(seed=0).y_test)
    assert not torch.equal(data.y_test, datasets.load_digits(seed=1).y_test)


@pytest.mark.parametrize("quarter_turns", [-1, 0, 1, 2])
def test_rotation_by_right_angles_is_exact_and_anticlockwise(quarter_turns):
    images = torch.rand(3, 2, 8, 8)
    turned = datasets.rotate(images, 90.0 * quarter_turns)
    torch.testing.assert_close(turned, torch.rot90(images, quarter_turns, (-2, -1)), rtol=0, atol=2e-6)


def test_rotation_takes_one_angle_for_each_image():
    images = torch.rand(2, 1, 8, 8)
    turned = datasets.rotate(images, torch.tensor([0.0, 37.0]))
    torch.testing.assert_close(turned[1:], datasets.rotate(images[1:], 37.0))
    torch.testing.assert_close(turned[:1], images[:1], rtol=0, atol=2e-6)


def test_rotation_of_an_oblong_image_keeps_shapes():
    """A disc stays a disc: the pixel grid is not stretched by the aspect ratio."""
    rows, columns = torch.meshgrid(torch.arange(24.0) - 11.5, torch.arange(48.0) - 23.5, indexing="ij")
    disc = torch.sigmoid(8.0 - (rows.square() + columns.square()).sqrt())[None, None]
    torch.testing.assert_close(datasets.rotate(disc, 30.0), disc, rtol=0, atol=0.02)


def test_rotation_names_a_wrong_shape():
    with pytest.raises(InputError, match=r"\[B, C, H, W\], got \[8, 8\]"):
        datasets.rotate(torch.rand(8, 8), 10.0)
    with pytest.raises(InputError, match="one for each of 2 images"):
        datasets.rotate(torch.rand(2, 1, 8, 8), torch.zeros(3))


def test_letters_look_like_digits_in_all_but_shape():
    letters = datasets.letters(200, seed=0)
    digits = datasets.load_digits().x_train
    assert letters.shape == (200, 1, 8, 8)
    assert letters.min() == 0.0
    assert letters.max() == 1.0
    assert torch.equal(letters * 16, (letters * 16).round())  # the same 17 gray levels
    assert abs(letters.mean() - digits.mean()) < 0.1
    assert torch.equal(letters, datasets.letters(200, seed=0))
    assert not torch.equal(letters, datasets.letters(200, seed=1))


def test_the_hole_of_a_letter_is_open():
    """The counter of a D is empty: even-odd filling."""
    d = datasets.letters(400, seed=0)[3::10, 0]
    assert d[:, 3:5, 3:5].mean() < 0.5 * d[:, 3:5, :3].mean()


def test_missing_file_is_one_sentence_that_says_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        datasets.load("uci/yacht")
    assert str(caught.value) == (
        f"yacht.npz is missing: put it at {tmp_path / 'uci' / 'yacht.npz'}, "
        "or set CREDO_DATA to the folder that holds uci/."
    )
    assert not any(datasets.available().values())


def test_changed_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "yacht.npz").write_bytes(b"something else")
    with pytest.raises(InputError, match="is not the published file"):
        datasets.load("uci/yacht")


def test_unknown_set_suggests_its_neighbors():
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


def test_catalog_and_names_agree():
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
