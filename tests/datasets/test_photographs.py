"""Pairs of low and high resolution: parts that do not overlap, and a reduction with the right center and gain."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from credo.datasets import blur_and_sample, photographs
from credo.errors import InputError


def test_parts_are_crops_of_separate_columns(monkeypatch):
    """With photographs whose pixels hold their column, the columns of the parts are at least 20 apart."""
    from sklearn import datasets

    columns = np.broadcast_to(np.arange(640, dtype=np.float32)[:, None], (427, 640, 3))
    bunch = type("Bunch", (), {"images": [columns, columns]})
    monkeypatch.setattr(datasets, "load_sample_images", lambda: bunch)
    pairs = photographs()
    test, valid, train = (
        (255 * y).round().int().unique().tolist() for y in (pairs.y_test, pairs.y_valid, pairs.y_train)
    )
    assert (test, valid, train) == ([*range(180)], [*range(200, 260)], [*range(280, 640)])


def test_sizes_and_range():
    pairs = photographs(factor=3)
    for x, y, n in (
        (pairs.x_train, pairs.y_train, 84),
        (pairs.x_valid, pairs.y_valid, 14),
        (pairs.x_test, pairs.y_test, 42),
    ):
        assert (x.shape, y.shape) == ((n, 1, 20, 20), (n, 1, 60, 60))
        assert x.dtype == y.dtype == torch.float32
        assert x.min() >= 0.0
        assert y.max() <= 1.0
        torch.testing.assert_close(x, blur_and_sample(y, 3))
    assert pairs.factor == 3
    assert photographs(2, 20).x_valid.shape == (2 * 21 * 3, 1, 10, 10)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_reduction_keeps_constants_and_lines(factor):
    """A symmetric kernel of sum 1 at centers of blocks maps a + bi to its mean over the block, away from borders."""
    line = torch.arange(12.0 * factor, dtype=torch.float64).expand(1, 2, 12 * factor, -1)
    reduced = blur_and_sample(line, factor)
    assert reduced.shape == (1, 2, 12, 12)
    means = line.unfold(3, factor, factor).mean(-1)[:, :, ::factor]
    torch.testing.assert_close(reduced[..., 3:-3], means[..., 3:-3])
    torch.testing.assert_close(blur_and_sample(torch.full_like(line, 0.3), factor), torch.full_like(reduced, 0.3))


def test_blur_has_a_standard_deviation_of_half_the_factor():
    """The response to an impulse, sampled at all its positions, has the variance (r/2)² of the Gaussian.

    Cut off at 3 to 4 standard deviations, a Gaussian loses at most 3 % of its variance (σ = 1 at ±3: 2.7 %).
    """
    factor, size = 2, 24
    offsets = torch.arange(size, dtype=torch.float64)
    impulses = torch.eye(size, dtype=torch.float64).view(size, 1, size, 1).expand(-1, -1, -1, size)
    response = blur_and_sample(impulses.contiguous(), factor)[:, 0, size // (2 * factor), 0]
    center = (offsets * response).sum()
    assert center == pytest.approx(size / 2 + 0.5)
    assert response.sum() == pytest.approx(1.0)
    assert ((offsets - center).square() * response).sum().item() == pytest.approx((factor / 2) ** 2, rel=0.03)


def test_invalid_arguments_are_named():
    with pytest.raises(InputError, match="multiple of the factor 7 and at most 60, got 60"):
        photographs(7)
    with pytest.raises(InputError, match="at most 60, got 62"):
        photographs(2, 62)
    with pytest.raises(InputError, match=r"multiples of 3, got \[1, 1, 6, 7\]"):
        blur_and_sample(torch.zeros(1, 1, 6, 7), 3)


def test_missing_pillow_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="need Pillow: pip install pillow"):
        photographs()
