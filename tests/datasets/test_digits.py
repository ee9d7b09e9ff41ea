"""Digits and letters: the split, exact rotations, and the pixels of letters."""

import pytest
import torch

from credo import datasets
from credo.errors import InputError


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
def test_rotation_by_right_angles_is_exact_and_counterclockwise(quarter_turns):
    images = torch.rand(3, 2, 8, 8)
    turned = datasets.rotate(images, 90.0 * quarter_turns)
    torch.testing.assert_close(turned, torch.rot90(images, quarter_turns, (-2, -1)), rtol=0, atol=2e-6)


def test_rotation_with_one_angle_per_image():
    images = torch.rand(2, 1, 8, 8)
    turned = datasets.rotate(images, torch.tensor([0.0, 37.0]))
    torch.testing.assert_close(turned[1:], datasets.rotate(images[1:], 37.0))
    torch.testing.assert_close(turned[:1], images[:1], rtol=0, atol=2e-6)


def test_rotation_of_a_rectangular_image_keeps_shapes():
    """A disc stays a disc: the pixel grid is not stretched by the aspect ratio."""
    rows, columns = torch.meshgrid(torch.arange(24.0) - 11.5, torch.arange(48.0) - 23.5, indexing="ij")
    disc = torch.sigmoid(8.0 - (rows.square() + columns.square()).sqrt())[None, None]
    torch.testing.assert_close(datasets.rotate(disc, 30.0), disc, rtol=0, atol=0.02)


def test_rotation_of_wrong_shapes_raises():
    with pytest.raises(InputError, match=r"\[B, C, H, W\], got \[8, 8\]"):
        datasets.rotate(torch.rand(8, 8), 10.0)
    with pytest.raises(InputError, match="one for each of 2 images"):
        datasets.rotate(torch.rand(2, 1, 8, 8), torch.zeros(3))


def test_letters_have_the_resolution_and_contrast_of_digits():
    letters = datasets.letters(200, seed=0)
    digits = datasets.load_digits().x_train
    assert letters.shape == (200, 1, 8, 8)
    assert letters.min() == 0.0
    assert letters.max() == 1.0
    assert torch.equal(letters * 16, (letters * 16).round())  # the same 17 gray levels
    assert abs(letters.mean() - digits.mean()) < 0.1
    assert torch.equal(letters, datasets.letters(200, seed=0))
    assert not torch.equal(letters, datasets.letters(200, seed=1))


def test_hole_of_a_letter_is_empty():
    """The counter of a D is empty: even-odd filling."""
    d = datasets.letters(400, seed=0)[3::10, 0]
    assert d[:, 3:5, 3:5].mean() < 0.5 * d[:, 3:5, :3].mean()


def test_letters_of_another_size_are_the_same_letters():
    """Blocks of 2×2 pixels of a letter at 16×16 have the mean of the letter at 8×8, up to the edges of the bitmap."""
    large, small = datasets.letters(40, seed=0, size=16), datasets.letters(40, seed=0)
    assert torch.nn.functional.avg_pool2d(large, 2).sub(small).abs().mean() < 0.02


def test_letters_are_those_asked_for():
    one, both = (datasets.letters(20, seed=0, characters=characters) for characters in ("K", "Kz"))
    assert torch.equal(one[0], both[0])
    assert not torch.equal(one[1], both[1])


@pytest.mark.parametrize("characters", ["", "A B"])
def test_letters_that_cannot_be_drawn_raise(characters):
    with pytest.raises(InputError, match="without blanks"):
        datasets.letters(2, characters=characters)
