"""Figures of predicted images: panels, scales and errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from credo.errors import InputError
from credo.likelihoods import Categorical, Gaussian
from credo.plots import restoration_maps


def restored(n: int = 2, channels: int = 1, draws: int = 3):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(n, channels, 4, 5, generator=generator), torch.rand(n, channels, 8, 10, generator=generator)
    outputs = torch.randn(draws, n, 2 * channels, 8, 10, generator=generator)
    return x, y, Gaussian("heteroscedastic", output_dim=1).predictive(outputs)


@pytest.mark.parametrize("channels", [1, 3])
def test_columns_show_images_error_and_both_deviations(channels):
    x, y, p = restored(channels=channels)
    figure = restoration_maps({"low": x, "other": y}, y, p)
    titles = [ax.get_title() for ax in figure.axes[:7]]
    assert titles == ["low", "other", "prediction", "truth", "error", "epistemic std", "aleatoric std"]
    for i in range(2):
        shown = [np.asarray(ax.images[0].get_array()) for ax in figure.axes[7 * i : 7 * i + 7]]
        np.testing.assert_allclose(shown[0], x[i].permute(1, 2, 0).squeeze(-1), atol=1e-6)
        np.testing.assert_allclose(shown[2], p.mean[i].clamp(0, 1).permute(1, 2, 0).squeeze(-1), atol=1e-6)
        np.testing.assert_allclose(shown[3], y[i].permute(1, 2, 0).squeeze(-1), atol=1e-6)
        for image, square in zip(shown[4:], ((p.mean - y).square(), p.epistemic, p.aleatoric), strict=True):
            np.testing.assert_allclose(image, square[i].mean(0).sqrt(), rtol=1e-5)


def test_rows_share_the_scale_of_a_map():
    x, y, p = restored()
    figure = restoration_maps({"low": x}, y, p)
    for j in (3, 4, 5):
        assert len({figure.axes[6 * i + j].images[0].get_clim() for i in range(2)}) == 1


@pytest.mark.parametrize("size", [3e-5, 6e-4, 2e-3, 2e-2, 0.4, 3.0, 300.0])
def test_numbers_of_a_scale_do_not_overlap(size):
    x, y, _ = restored()
    p = Gaussian(noise=size).predictive(size * torch.randn(3, 2, 1, 8, 10, generator=torch.Generator().manual_seed(0)))
    figure = restoration_maps({"low": x}, y, p)
    figure.canvas.draw()
    for scale in figure.axes[-3:]:
        boxes = [label.get_window_extent() for label in scale.get_xticklabels() if label.get_text()]
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_bytes_are_images_too():
    x, y, p = restored()
    shown = restoration_maps({"low": (255 * x).round().byte()}, y, p).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, x[0, 0], atol=0.5 / 255 + 1e-6)


def test_one_draw_has_an_epistemic_map_of_zeros():
    _, y, p = restored(n=1, draws=1)
    figure = restoration_maps({}, y, p)
    assert figure.axes[3].images[0].get_clim() == (0.0, 1.0)
    figure.canvas.draw()


def test_mismatches_are_named():
    x, y, p = restored()
    with pytest.raises(InputError, match=r"y must have the shape of the predicted images, \[2, 1, 8, 10\]"):
        restoration_maps({}, x, p)
    with pytest.raises(InputError, match=r"given\['low'\] must hold 2 images, as y does, got 1"):
        restoration_maps({"low": x[:1]}, y, p)
    with pytest.raises(InputError, match=r"p must be a prediction, as model.predict returns it, got Tensor"):
        restoration_maps({"low": x}, p, y)
    with pytest.raises(InputError, match="given must be images by title"):
        restoration_maps(x, y, p)
    with pytest.raises(InputError, match="y must be floating-point images in the unit of the predicted ones"):
        restoration_maps({"low": x}, (255 * y).byte(), p)
    with pytest.raises(InputError, match="given has the title 'prediction', which is that of another column"):
        restoration_maps({"prediction": x}, y, p)
    with pytest.raises(InputError, match="must be a prediction of images"):
        restoration_maps({}, y, Categorical(class_dim=1).predictive(torch.randn(2, 2, 3, 8, 10)))
