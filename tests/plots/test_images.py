"""Images side by side, without gaps."""

from __future__ import annotations

import io

import pytest
import torch
from matplotlib.image import imread

from credo.errors import InputError
from credo.plots import image_grid
from credo.plots.images import as_images, tile


def test_tiles_are_in_rows_and_blanks_are_white():
    images = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 2, 3) / 4
    mosaic = tile(images, 2)
    assert mosaic.shape == (4, 6)
    assert (mosaic[:2, :3] == 0.0).all()
    assert (mosaic[:2, 3:] == 0.25).all()
    assert (mosaic[2:, :3] == 0.5).all()
    assert (mosaic[2:, 3:] == 1.0).all()


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 1, 8, 8), (5, 3, 8, 8), (5, 64)])
def test_every_layout_of_images_is_drawn(shape):
    stream = io.BytesIO()
    image_grid(torch.rand(shape, generator=torch.Generator().manual_seed(0))).savefig(stream, format="png")
    stream.seek(0)
    assert imread(stream).std() > 0.05


def test_bad_images_raise():
    with pytest.raises(InputError, match="rows of 7 numbers are not square images"):
        image_grid(torch.rand(2, 7))
    with pytest.raises(InputError, match="with 1 or 3 channels"):
        as_images(torch.rand(2, 4, 8, 8))
    with pytest.raises(InputError, match="columns must be an integer of at least 1"):
        tile(torch.rand(2, 1, 8, 8), -1)


def test_integers_are_eight_bit_and_means_can_be_slightly_negative():
    bytes_ = image_grid((255 * torch.eye(4)[None]).to(torch.uint8)).axes[0].images[0].get_array()
    assert bytes_.mean() == pytest.approx(0.25)
    gray = image_grid(torch.eye(4)[None] - 0.01).axes[0].images[0].get_array()
    assert gray.min() == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"columns": 2.5}, "columns must be an integer"), ({"value_range": (1.0, 1.0)}, "black < white")],
)
def test_bad_options_raise(options, message):
    with pytest.raises(InputError, match=message):
        image_grid(torch.rand(4, 3, 3), **options)


def test_images_that_are_not_finite_raise():
    with pytest.raises(InputError, match="NaN or infinite"):
        image_grid(torch.full((1, 2, 2), torch.nan))
