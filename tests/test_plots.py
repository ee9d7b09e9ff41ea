"""Figures: what is drawn is what was computed."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from credo import plots
from credo.errors import InputError
from credo.likelihoods import Categorical, Gaussian
from credo.plots.style import CYCLE

N = 30


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


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


def test_rows_in_any_order_give_the_same_picture(x, predictive):
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


def test_histograms_have_area_one_over_shared_bins():
    generator = np.random.default_rng(0)
    ax = plots.uncertainty_histogram(
        {"in": generator.uniform(0, 1, 50), "out": torch.linspace(1, 2, 500)}, bins=10, label="entropy"
    )
    assert ax.get_xlabel() == "entropy"
    assert ax.get_legend_handles_labels()[1] == ["in", "out"]
    for polygon in ax.patches[::2]:
        corners = polygon.get_xy()
        area = 0.5 * np.sum(corners[:-1, 0] * corners[1:, 1] - corners[1:, 0] * corners[:-1, 1])
        assert abs(area) == pytest.approx(1.0, abs=1e-6)


def test_histogram_of_a_constant_is_drawn():
    assert plots.uncertainty_histogram({"sure": np.zeros(5)}).patches


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


def test_paper_style_is_left_behind():
    before = mpl.rcParams["axes.spines.top"], mpl.rcParams["font.size"]
    with plots.paper():
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == list(CYCLE)
        assert not mpl.rcParams["axes.spines.top"]
    assert (mpl.rcParams["axes.spines.top"], mpl.rcParams["font.size"]) == before


def test_wrong_arguments_are_named(x, predictive):
    with pytest.raises(InputError, match="level must lie between 0 and 1, got 95"):
        plots.predictive_bands(x, predictive, level=95)
    with pytest.raises(InputError, match=r"\[N\] or \[N, 1\], got \[30, 2\]"):
        plots.predictive_bands(x.expand(-1, 2), predictive)
    with pytest.raises(InputError, match="one output for each of 29 inputs"):
        plots.predictive_bands(x[1:], predictive)
    with pytest.raises(InputError, match="n must be 1 or more"):
        plots.draws(x, predictive, n=0)
    with pytest.raises(InputError, match="at least one group"):
        plots.uncertainty_histogram({})
    with pytest.raises(InputError, match="must go together"):
        plots.rotated_digit(torch.rand(4, 1, 8, 8), torch.arange(5.0), Categorical().predictive(torch.zeros(2, 5, 10)))
