"""Figures: what all of them promise, and those of functions and of rotated digits."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import credo
from credo import plots
from credo.errors import InputError
from credo.likelihoods import Categorical, Gaussian
from credo.plots.style import CYCLE

N = 30
ANGLES = torch.arange(5.0)
IMAGES = torch.linspace(0, 1, 5 * 64).view(5, 1, 8, 8)


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


def classes(rows=5, draws=3):
    generator = torch.Generator().manual_seed(0)
    return Categorical().predictive(2 * torch.randn(draws, rows, 10, generator=generator))


def numbers(rows=5, draws=3):
    generator = torch.Generator().manual_seed(0)
    return Gaussian(noise=0.2).predictive(torch.randn(draws, rows, 1, generator=generator))


def mixture(make):
    """An ensemble of members with unequal numbers of draws, so that draws have weights."""
    return credo.Predictive.mixture([make(draws=1), make(draws=4)])


def model():
    return credo.BayesByBackprop(nn.Linear(3, 2))


HISTORY = [{"epoch": e, "nll": 2.0 / e, "kl": 10.0, "elbo": -200.0 / e - 10.0} for e in (1, 2, 3)]

FIGURES = {
    "importance": lambda ax: plots.importance(["a", "b"], [2.0, 1.0], ax, error=[0.1, 0.1], band=([1, 0], [3, 2])),
    "uncertainty_shares": lambda ax: plots.uncertainty_shares(["a", "b"], [0.5, 0.1], [0.2, 0.3], ax),
    "column_effect": lambda ax: plots.column_effect([1.0, 2.0], [3.0, 4.0], ax, band=([2.0, 3.0], [4.0, 5.0])),
    "effect_map": lambda ax: plots.effect_map([1.0, 2.0], [1.0, 2.0, 3.0], [[1, 2, 3], [4, 5, 6]], ax),
    "predictive_bands": lambda ax: plots.predictive_bands(torch.arange(5.0), numbers(), ax),
    "draws": lambda ax: plots.draws(torch.arange(5.0), numbers(), ax),
    "uncertainty_histogram": lambda ax: plots.uncertainty_histogram({"a": [1.0, 2.0]}, ax),
    "uncertainty_parts, numbers": lambda ax: plots.uncertainty_parts(numbers(), ax),
    "uncertainty_parts, classes": lambda ax: plots.uncertainty_parts(classes(), ax),
    "uncertainty_parts, weights": lambda ax: plots.uncertainty_parts(mixture(numbers), ax),
    "uncertainty_parts, one row and draw": lambda ax: plots.uncertainty_parts(numbers(1, 1), ax),
    "risk_coverage": lambda ax: plots.risk_coverage([1.0, 0.0], {"a": [1.0, 2.0], "b": [2.0, 1.0]}, ax),
    "risk_coverage, one row": lambda ax: plots.risk_coverage([1.0], [1.0], ax),
    "reliability": lambda ax: plots.reliability(classes(), torch.arange(5), ax),
    "reliability, weights": lambda ax: plots.reliability(mixture(classes), torch.arange(5), ax),
    "reliability, one row": lambda ax: plots.reliability(classes(1, 1), torch.zeros(1).long(), ax),
    "interval_calibration": lambda ax: plots.interval_calibration(numbers(), torch.zeros(5, 1), ax),
    "interval_calibration, weights": lambda ax: plots.interval_calibration(mixture(numbers), torch.zeros(5, 1), ax),
    "interval_calibration, one row": lambda ax: plots.interval_calibration(numbers(1, 1), torch.zeros(1, 1), ax),
    "pit_histogram": lambda ax: plots.pit_histogram(numbers(), torch.zeros(5, 1), ax),
    "pit_histogram, one row": lambda ax: plots.pit_histogram(numbers(1, 1), torch.zeros(1, 1), ax),
    "predicted_vs_observed": lambda ax: plots.predicted_vs_observed(mixture(numbers), torch.zeros(5, 1), ax),
    "predicted_vs_observed, one row": lambda ax: plots.predicted_vs_observed(numbers(1, 1), torch.zeros(1, 1), ax),
    "confusion": lambda ax: plots.confusion(classes(), torch.arange(5), ax),
    "confusion, one row": lambda ax: plots.confusion(classes(1, 1), torch.zeros(1).long(), ax),
    "rotated_digit": lambda ax: plots.rotated_digit(IMAGES, ANGLES, classes(), ax),
    "rotated_digit, one image": lambda ax: plots.rotated_digit(IMAGES[:1], ANGLES[:1], classes(1, 1), ax),
    "softmax_scatter": lambda ax: plots.softmax_scatter(ANGLES, mixture(classes), ax, images=IMAGES),
    "softmax_scatter, one image": lambda ax: plots.softmax_scatter(ANGLES[:1], classes(1, 1), ax, images=IMAGES[:1]),
    "training_curves": lambda ax: plots.training_curves(HISTORY, ax),
    "training_curves, one epoch": lambda ax: plots.training_curves(HISTORY[:1], ax),
    "weight_histogram": lambda ax: plots.weight_histogram(model(), ax),
    "snr, density": lambda ax: plots.snr(model(), ax),
    "snr, cdf": lambda ax: plots.snr(model().posterior, ax, kind="cdf"),
    "plate": lambda ax: plots.plate(model(), ax),
}
UNLABELED = (
    *("predictive_bands", "draws", "plate"),  # what their inputs and outputs are, only the caller knows
    *("importance", "uncertainty_shares"),  # the names of columns are the labels
)


def test_every_figure_is_tested():
    functions = {
        name for name in plots.__all__ if callable(made := getattr(plots, name)) and not isinstance(made, type)
    }
    makers = functions - {
        "paper",
        "leading_classes",
        "image_grid",
        "plate_graph",
        "restoration_maps",
        "segmentation_maps",
    }
    assert {name.partition(",")[0] for name in FIGURES} == makers


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_on_the_given_axes_without_pyplot(name):
    settings = dict(mpl.rcParams)
    ax = Figure(figsize=(3.2, 2.4), layout="constrained").subplots()
    assert FIGURES[name](ax) is ax
    ax.figure.draw_without_rendering()
    assert not plt.get_fignums()
    assert dict(mpl.rcParams) == settings
    if name not in UNLABELED:
        assert ax.get_xlabel()
        assert ax.get_ylabel()


@pytest.mark.parametrize("name", [name for name in FIGURES if "," not in name])
def test_a_figure_is_created_without_axes(name):
    ax = FIGURES[name](None)
    assert plt.get_fignums() == [ax.figure.number]


def test_a_second_call_on_the_same_axes_fits_its_data():
    ax = plots.uncertainty_parts(numbers())
    first = ax.get_ylim()[1]
    wide = Gaussian(noise=3.0).predictive(torch.zeros(2, 5, 1))
    assert plots.uncertainty_parts(wide, ax).get_ylim()[1] > 9.0 > first


@pytest.fixture
def predictive():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.linspace(-1, 1, N)[None, :, None] + 0.3 * torch.randn(200, 1, 1, generator=generator)
    return Gaussian(noise=0.2).predictive(outputs)


@pytest.fixture
def x():
    return torch.linspace(0, 1, N)[:, None]


def vertices(ax, label):
    (band,) = [c for c in ax.collections if c.get_label() == label]
    return band.get_paths()[0].vertices


def test_inner_band_is_the_draws_and_outer_edge_the_interval(x, predictive):
    ax = plots.predictive_bands(x, predictive, level=0.9)
    inner = vertices(ax, "epistemic, 90%")[:, 1]
    outer = vertices(ax, "with aleatoric, 90%")[:, 1]
    low, high = torch.quantile(predictive.draws, torch.tensor([0.05, 0.95]), dim=0)
    assert inner.min() == pytest.approx(low.min().item(), abs=1e-5)
    assert inner.max() == pytest.approx(high.max().item(), abs=1e-5)
    assert outer.max() == pytest.approx(predictive.interval(0.9).upper.max().item(), abs=1e-5)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), predictive.mean.squeeze(-1), rtol=1e-6)


def test_row_order_does_not_change_the_figure(x, predictive):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    ordered = plots.predictive_bands(x, predictive)
    shuffled = plots.predictive_bands(x[order], predictive[order])
    np.testing.assert_allclose(
        vertices(ordered, "epistemic, 95%"), vertices(shuffled, "epistemic, 95%"), rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(ordered.lines[0].get_ydata(), shuffled.lines[0].get_ydata(), rtol=0, atol=1e-6)


def test_one_deterministic_draw_has_no_epistemic_band(x):
    single = Gaussian(noise=0.2).predictive(torch.zeros(1, N, 1))
    ax = plots.predictive_bands(x, single, data=(x, torch.zeros(N, 1)))
    assert np.ptp(vertices(ax, "epistemic, 95%")[:, 1]) == 0.0
    assert vertices(ax, "with aleatoric, 95%")[:, 1].max() == pytest.approx(1.96 * 0.2, abs=1e-3)


def test_draws_are_functions(x, predictive):
    ax = plots.draws(x, predictive, n=7)
    assert len(ax.lines) == 7
    np.testing.assert_allclose(ax.lines[0].get_ydata(), predictive.draws[0].squeeze(-1), rtol=1e-6)
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), predictive.draws[-1].squeeze(-1), rtol=1e-6)


def test_unequal_weights_move_the_band(x, predictive):
    """All weight on the first two draws: the band is what they span."""
    weights = torch.zeros(200)
    weights[:2] = 0.5
    weighted = replace(predictive, weights=weights)
    inner = vertices(plots.predictive_bands(x, weighted), "epistemic, 95%")[:, 1]
    assert inner.min() == pytest.approx(predictive.draws[:2].min().item(), abs=1e-6)
    assert inner.max() == pytest.approx(predictive.draws[:2].max().item(), abs=1e-6)


def test_rotated_digit_shows_the_leading_classes():
    logits = torch.zeros(50, 5, 10)
    logits[:, :3, 4] = 6.0
    logits[:, 3:, 7] = 6.0
    ax = plots.rotated_digit(
        torch.rand(5, 1, 8, 8), torch.arange(5.0), Categorical().predictive(logits), classes=2, thumbnails=3
    )
    assert ax.get_legend_handles_labels()[1] == ["4", "7"]
    assert len(ax.child_axes) == 3
    ax.figure.draw_without_rendering()


def test_thumbnails_are_above_their_angles():
    ax = plots.rotated_digit(IMAGES, ANGLES, classes(), thumbnails=3)
    ax.figure.draw_without_rendering()
    centers = [frame.get_window_extent().x0 + frame.get_window_extent().width / 2 for frame in ax.child_axes]
    np.testing.assert_allclose(centers, ax.transData.transform([(a, 0.0) for a in ANGLES[::2]])[:, 0], rtol=1e-6)


def test_softmax_scatter_has_a_dot_for_each_draw_and_image():
    logits = torch.arange(4 * 5 * 3.0).view(4, 5, 3)
    ax = plots.softmax_scatter(ANGLES, logits, classes=[2, 0], names=["a", "b", "c"], label="softmax input")
    assert ax.get_legend_handles_labels()[1] == ["c", "a"]
    assert ax.get_ylabel() == "softmax input"
    for dots, c in zip(ax.collections, (2, 0), strict=True):
        x, y = dots.get_offsets().T
        np.testing.assert_array_equal(y, logits[:, :, c].flatten())
        assert np.abs(x - ANGLES.repeat(4).numpy()).max() < 0.25  # of a step of 1: never nearer to another image
    assert ax.get_legend().legend_handles[0].get_alpha() == 1.0


def test_softmax_outputs_are_the_draws_of_a_prediction():
    p = classes()
    ax = plots.softmax_scatter(ANGLES, p)
    shown = plots.leading_classes(p, 3)
    np.testing.assert_allclose(ax.collections[0].get_offsets()[:, 1], p.draws[:, :, shown[0]].flatten(), rtol=1e-6)
    assert ax.get_yticks().tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_paper_style_is_restored():
    before = mpl.rcParams["axes.spines.top"], mpl.rcParams["font.size"]
    with plots.paper():
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == list(CYCLE)
        assert not mpl.rcParams["axes.spines.top"]
    assert (mpl.rcParams["axes.spines.top"], mpl.rcParams["font.size"]) == before


def test_bad_arguments_raise(x, predictive):
    with pytest.raises(InputError, match="level must be a number between 0 and 1, got 95"):
        plots.predictive_bands(x, predictive, level=95)
    with pytest.raises(InputError, match=r"\[N\] or \[N, 1\], got shape \[30, 2\]"):
        plots.predictive_bands(x.expand(-1, 2), predictive)
    with pytest.raises(InputError, match="one output per input is needed, 29 in all"):
        plots.predictive_bands(x[1:], predictive)
    with pytest.raises(InputError, match="n must be an integer of at least 1"):
        plots.draws(x, predictive, n=0)
    with pytest.raises(InputError, match="must have the same R"):
        plots.rotated_digit(torch.rand(4, 1, 8, 8), ANGLES, classes())
    with pytest.raises(InputError, match=r"got \[5\] and \[3, 4, 10\]"):
        plots.softmax_scatter(ANGLES, classes(4))
    with pytest.raises(InputError, match=r"images must have shape \[5, 1, H, W\]"):
        plots.softmax_scatter(ANGLES, classes(), images=IMAGES[1:])
    with pytest.raises(InputError, match="classes must be integers from 0 to 9"):
        plots.softmax_scatter(ANGLES, classes(), classes=[3, 10])
    with pytest.raises(InputError, match="names must hold one name per class, 10 in all, got 2"):
        plots.softmax_scatter(ANGLES, classes(), names=["a", "b"])
    with pytest.raises(InputError, match="thumbnails must be an integer of at least 1, got 0"):
        plots.rotated_digit(IMAGES, ANGLES, classes(), thumbnails=0)
    assert not plt.get_fignums()


def test_a_new_figure_explains_its_colors_and_given_axes_are_left_to_the_caller() -> None:
    x, images, angles = torch.linspace(-1, 1, 8), torch.rand(8, 1, 4, 4), torch.linspace(0, 90, 8)
    curve = credo.Gaussian(0.2).predictive(torch.randn(5, 8, 1))
    classes = credo.Categorical().predictive(torch.randn(5, 8, 3))
    for draw in (
        lambda ax: plots.predictive_bands(x, curve, ax),
        lambda ax: plots.uncertainty_histogram({"a": x, "b": x}, ax),
        lambda ax: plots.rotated_digit(images, angles, classes, ax),
    ):
        assert draw(None).get_legend() is not None
        assert draw(plt.subplots()[1]).get_legend() is None
    assert plots.draws(x, curve).get_xlabel() == "x"
