"""Figures of pixel classes: panels, colors, scales and errors."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from credo.errors import InputError
from credo.likelihoods import Categorical
from credo.plots import segmentation_maps

VOID = 5
NAMES = ("sky", "road", "car")
COLORS = ((0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (1.0, 0.0, 0.0))


def scene(n=2, classes=3, draws=4):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(n, 3, 6, 8, generator=generator)
    y = torch.randint(classes, (n, 6, 8), generator=generator)
    y[:, 0, 0] = VOID
    outputs = torch.randn(draws, n, classes, 6, 8, generator=generator)
    return images, y, Categorical(class_dim=1, ignore_index=VOID).predictive(outputs)


def test_columns_show_image_truth_prediction_and_both_uncertainties():
    images, y, p = scene()
    figure = segmentation_maps(images, y, p, names=NAMES, colors=COLORS)
    palette = np.array(COLORS)
    for i in range(2):
        image, truth, predicted, epistemic, aleatoric = (
            np.asarray(ax.images[0].get_array()) for ax in figure.axes[5 * i : 5 * i + 5]
        )
        np.testing.assert_allclose(image, images[i].permute(1, 2, 0), atol=1e-6)
        assert (truth[0, 0] == 0).all()  # void
        np.testing.assert_allclose(truth[1:], palette[y[i, 1:].numpy()])
        np.testing.assert_allclose(predicted, palette[p.mode[i].numpy()])
        np.testing.assert_allclose(epistemic, p.epistemic[i], atol=1e-6)
        np.testing.assert_allclose(aleatoric, p.aleatoric[i], atol=1e-6)
    titles = [ax.get_title() for ax in figure.axes[:5]]
    assert titles == ["image", "truth", "prediction", "epistemic", "aleatoric"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*NAMES, "void"]


def test_bytes_are_images_too():
    images, y, p = scene()
    shown = segmentation_maps((255 * images).round().byte(), y, p).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, images[0].permute(1, 2, 0), atol=0.5 / 255 + 1e-6)


def test_rows_share_the_scale_of_a_column():
    images, y, p = scene()
    figure = segmentation_maps(images, y, p)
    for j in (3, 4):
        limits = {figure.axes[i * 5 + j].images[0].get_clim() for i in range(2)}
        assert len(limits) == 1


@pytest.mark.parametrize(("n", "classes", "draws"), [(1, 2, 1), (3, 30, 2)])
def test_legend_and_bars_are_inside_the_figure(n, classes, draws):
    """Also for one draw, whose epistemic map is 0 everywhere, and for more classes than a color map has."""
    images, y, p = scene(n, classes, draws)
    figure = segmentation_maps(images[:, :1], y, p)
    figure.savefig(io.BytesIO(), format="png")
    box, frame = figure.legends[0].get_window_extent(), figure.bbox
    assert frame.y0 <= box.y0
    panels = [ax.get_window_extent() for ax in figure.axes[: 5 * n]]
    assert box.y1 <= min(panel.y0 for panel in panels) + 1
    assert all(abs(panel.width / panel.height - 8 / 6) < 0.01 for panel in panels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, p: segmentation_maps(x, y[:1], p), r"y must have one class per pixel of the images, \[2, 6, 8\]"),
        (lambda x, y, p: segmentation_maps(x, y, p[:1]), "p must have one class per pixel"),
        (lambda x, y, p: segmentation_maps(x, y, p, names=["a"]), "one name per class, 3 in all, got 1"),
        (lambda x, y, p: segmentation_maps(x, y, p, colors=COLORS[:2]), "red, green and blue of each of 3 classes"),
        (lambda x, y, p: segmentation_maps(x, y, p, colors=[(255, 0, 0)] * 3), "between 0 and 1, .* from 0 to 255"),
        (lambda x, y, p: segmentation_maps(x, y.float(), p), "y must hold classes as integers, got torch.float32"),
        (
            lambda x, y, p: segmentation_maps(x, p, y),
            r"p must be a prediction, .* call segmentation_maps\(images, y, p\)",
        ),
        (
            lambda x, y, p: segmentation_maps(x, y, Categorical().predictive(torch.randn(2, 2, 3))),
            "a prediction of a class for every pixel",
        ),
    ],
)
def test_what_does_not_match_raises(change, message):
    with pytest.raises(InputError, match=message):
        change(*scene())
