"""Figures of predictions against what was observed: what is drawn is what was computed."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy.stats import binom

from credo import metrics, plots
from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, StudentT
from credo.predictive import ConformalPredictive


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def classes(generator):
    """A classifier of 400 rows that is right as often as it says."""
    p = Categorical().predictive(torch.randn(1, 400, 3, generator=generator) + torch.zeros(6, 1, 1))
    return p, torch.multinomial(p.mean, 1, generator=generator).squeeze(1)


@pytest.fixture
def numbers(generator):
    """A calibrated prediction of 500 rows from draws that disagree."""
    p = Gaussian(noise=0.5).predictive(torch.randn(8, 500, 1, generator=generator))
    return p, p.sample(1, seed=0)[0]


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label().startswith(label)]
    return found.get_xdata(), found.get_ydata()


def stairs(ax, label):
    (found,) = [patch for patch in ax.patches if str(patch.get_label()).startswith(label)]
    return found.get_data()


def test_reliability_matches_the_metric(classes):
    p, y = classes
    ax = plots.reliability(p, y, bins=10)
    binned = metrics.reliability(p, y, 10)
    held = binned.count > 0
    confidence, accuracy = line(ax, "accuracy")
    np.testing.assert_allclose(confidence, binned.confidence[held])
    np.testing.assert_allclose(accuracy, binned.accuracy[held])
    np.testing.assert_allclose(stairs(ax, "fraction of predictions").values, binned.count / 400)
    assert f"(ECE {metrics.ece(p, y, 10):.3f})" in ax.get_legend().get_texts()[1].get_text()


def test_reliability_bars_contain_the_accuracy_and_narrow_with_counts(classes):
    p, y = classes
    (bars,) = plots.reliability(p[:100], y[:100], bins=6).collections
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    binned = metrics.reliability(p[:100], y[:100], 6)
    held = binned.count > 0
    accuracy, count = binned.accuracy[held].numpy(), binned.count[held].numpy()
    assert np.all((ends[:, 0] <= accuracy + 1e-12) & (accuracy - 1e-12 <= ends[:, 1]))
    # Wilson: half the width is at most z/(2√(n + z²)), reached at an accuracy of ½.
    assert np.all(np.diff(ends)[:, 0] <= 1.96 / np.sqrt(count + 1.96**2) + 1e-3)
    assert np.diff(ends)[count.argmin(), 0] > np.diff(ends)[count.argmax(), 0]


def test_bins_of_equal_mass_keep_a_histogram_of_equal_width(classes):
    p, y = classes
    ax = plots.reliability(p, y, bins=8, binning="mass")
    np.testing.assert_allclose(line(ax, "accuracy")[0], metrics.reliability(p, y, 8, "mass").confidence)
    np.testing.assert_allclose(stairs(ax, "fraction").values, metrics.reliability(p, y, 8).count / 400)


def test_interval_calibration_is_the_coverage_of_intervals(numbers):
    p, y = numbers
    levels, observed = line(plots.interval_calibration(p, y), "observed")
    expected = [metrics.coverage(p, y, level) for level in levels]
    np.testing.assert_allclose(observed, expected, atol=1e-12)


def test_conformal_coverage_uses_intervals(numbers):
    p, y = numbers[0][:100], numbers[1][:100]
    conformal = ConformalPredictive(p.components, scores=tuple(k / 10 for k in range(1, 40)))
    levels, observed = line(plots.interval_calibration(conformal, y), "observed")
    np.testing.assert_allclose(observed, [metrics.coverage(conformal, y, level) for level in levels])
    assert abs(observed - line(plots.interval_calibration(p, y), "observed")[1]).max() > 0.1


def test_band_is_binomial_and_contains_calibrated_predictions(numbers):
    p, y = numbers
    ax = plots.interval_calibration(p, y)
    levels, observed = line(ax, "observed")
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    at_half = corners[np.isclose(corners[:, 0], 0.5), 1]
    np.testing.assert_allclose([at_half.min(), at_half.max()], np.array(binom.interval(0.95, 500, 0.5)) / 500)
    # Four standard errors at every level.
    assert np.all(np.abs(observed - levels) < 4 * np.sqrt(levels * (1 - levels) / 500))


def test_each_prediction_has_a_curve(numbers):
    p, y = numbers
    narrow = Gaussian(noise=0.01).predictive(p.draws)
    ax = plots.interval_calibration({"wide": p, "narrow": narrow}, y)
    assert ax.get_legend_handles_labels()[1] == ["by chance (n = 500)", "wide", "narrow"]
    assert line(ax, "narrow")[1][-1] == pytest.approx(metrics.coverage(narrow, y, 0.95))


def test_pit_histogram_counts_the_transform(numbers):
    p, y = numbers
    ax = plots.pit_histogram(p, y, bins=5)
    drawn = stairs(ax, "observed")
    counts = np.histogram(metrics.pit(p, y), 5, (0, 1))[0]
    np.testing.assert_allclose(drawn.values, counts * 5 / 500)
    (band,) = [patch for patch in ax.patches if str(patch.get_label()).startswith("by chance")]
    ends = np.array(binom.interval(0.95, 500, 0.2)) * 5 / 500
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx(tuple(ends))


def test_calibration_figures_of_counts(generator):
    p = Poisson().predictive(torch.full((1, 300), 0.5))
    y = torch.poisson(torch.full((300,), 0.5).exp(), generator=generator)
    levels, observed = line(plots.interval_calibration(p, y), "observed")
    assert np.all(np.abs(observed - levels) < 4 * np.sqrt(levels * (1 - levels) / 300))
    assert plots.pit_histogram(p, y).patches


def test_risk_coverage_lies_between_random_and_best_order():
    loss, uncertainty = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    ax = plots.risk_coverage(loss, uncertainty, label="error rate")
    coverage, risk = line(ax, "uncertainty (AURC")
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(risk, [0.0, 0.5, 1 / 3, 0.5])
    np.testing.assert_allclose(line(ax, "best order")[1], [0.0, 0.0, 1 / 3, 0.5])
    assert set(line(ax, "random order")[1]) == {0.5}
    assert f"{metrics.aurc(loss, uncertainty):.3g}" in ax.get_legend_handles_labels()[1][-1]
    assert ax.get_ylabel() == "error rate"


def test_each_model_has_its_own_losses():
    ax = plots.risk_coverage({"a": [0.0, 1.0], "b": [2.0, 0.0]}, {"a": [0.0, 1.0], "b": [0.0, 1.0]})
    np.testing.assert_allclose(line(ax, "a ")[1], [0.0, 0.5])
    np.testing.assert_allclose(line(ax, "b ")[1], [2.0, 1.0])
    assert [label.split()[0] for label in ax.get_legend_handles_labels()[1]] == ["random", "best", "a", "b"]


def test_long_curves_are_thinned_but_keep_their_ends(generator):
    loss = torch.rand(5000, generator=generator)
    coverage, risk = line(plots.risk_coverage(loss, loss), "uncertainty")
    assert len(risk) <= 1000
    assert coverage[0] == 1 / 5000
    assert risk[-1] == pytest.approx(loss.mean().item(), rel=1e-6)


def test_predictions_are_plotted_over_observations(numbers):
    p, y = numbers[0][:50], numbers[1][:50].clone()
    y[:2] = 30.0
    ax = plots.predicted_vs_observed(p, y, level=0.8)
    dots = np.concatenate([scatter.get_offsets() for scatter in ax.collections[1::2]])
    by_observation = dots[np.argsort(dots[:, 0], kind="stable")]
    np.testing.assert_allclose(by_observation[:48, 1], p.mean[y.argsort(0)[:48, 0], 0], rtol=1e-6)
    missed = ax.collections[2].get_segments()
    lower, upper = p.interval(0.8)
    outside = ((y < lower) | (y > upper)).squeeze(1)
    assert len(missed) == int(outside.sum())
    assert f"missed ({outside.float().mean():.1%} of 50)" in ax.get_legend_handles_labels()[1]
    np.testing.assert_allclose(missed[-1][:, 1], [lower[1, 0], upper[1, 0]], rtol=1e-6)


def test_many_rows_are_thinned_deterministically(numbers):
    p, y = numbers
    first, second = (
        np.vstack([c.get_offsets() for c in plots.predicted_vs_observed(p, y).collections[1::2]]) for _ in "ab"
    )
    assert len(first) == 300
    np.testing.assert_array_equal(first, second)
    assert first[:, 0].max() == y.max()


def test_parts_stack_to_the_total_uncertainty(numbers):
    p = numbers[0][:100]
    ax = plots.uncertainty_parts(p)
    top, below = stairs(ax, "epistemic"), stairs(ax, "aleatoric")
    order = p.variance.flatten().argsort(stable=True)
    np.testing.assert_allclose(top.values, p.variance.flatten()[order], rtol=1e-6)
    np.testing.assert_allclose(below.values, p.aleatoric.flatten()[order], rtol=1e-6)
    np.testing.assert_array_equal(top.baseline, below.values)
    share = (p.epistemic.sum() / p.variance.sum()).item()
    assert ax.get_legend_handles_labels()[1] == [f"epistemic ({share:.0%})", f"aleatoric ({1 - share:.0%})"]
    assert ax.get_ylabel() == "predictive variance"


def test_parts_of_many_rows_are_averaged_and_keep_their_area(generator):
    p = Categorical().predictive(torch.randn(4, 1001, 3, generator=generator))
    ax = plots.uncertainty_parts(p)
    top = stairs(ax, "epistemic")
    assert len(top.values) == 200
    assert np.sum(top.values * np.diff(top.edges)) == pytest.approx(p.entropy.mean().item(), rel=1e-5)
    assert ax.get_ylabel() == "predictive entropy (nats)"


def test_confusion_counts_predictions():
    p = Categorical(ignore_index=-1).predictive(torch.eye(3)[[0, 0, 1, 2, 2]][None] * 5)
    ax = plots.confusion(p, np.array([0, 1, 1, 2, -1]), names=["a", "b", "c"])
    np.testing.assert_allclose(ax.images[0].get_array(), [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])
    numbers = {tuple(map(int, text.get_position()[::-1])): text.get_text() for text in ax.texts}
    assert numbers == {(0, 0): "1", (1, 0): "1", (1, 1): "1", (2, 2): "1"}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]


def test_confusion_of_two_and_of_many_classes(generator):
    two = plots.confusion(Bernoulli().predictive(torch.tensor([[-1.0, 2.0, 3.0]])), torch.tensor([0, 0, 1]))
    np.testing.assert_allclose(two.images[0].get_array(), [[0.5, 0.5], [0, 1]])
    many = plots.confusion(
        Categorical().predictive(torch.randn(1, 50, 45, generator=generator)), torch.arange(45).repeat(2)[:50]
    )
    assert not many.texts
    assert np.unique(np.diff(many.get_xticks())).tolist() == [3]


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


def test_histogram_of_a_constant():
    assert plots.uncertainty_histogram({"sure": np.zeros(5)}).patches


def test_bad_arguments_raise_and_create_no_figure(classes, numbers):
    (c, label), (p, y) = classes, numbers
    without_variance = StudentT(df=2.0).predictive(torch.zeros(2, 4))
    for call, sentence in (
        (lambda: plots.reliability(p, y), "reliability is for class-valued targets"),
        (lambda: plots.reliability(c, label, bins=0), "bins must be an integer of at least 1, got 0"),
        (lambda: plots.reliability(c, label, binning="with"), "did you mean 'width'"),
        (lambda: plots.reliability(c, label[1:]), "400 and 399"),
        (lambda: plots.interval_calibration(c, label), "calibration_curve is for real or count-valued targets"),
        (lambda: plots.interval_calibration({}, y), "at least one prediction"),
        (lambda: plots.pit_histogram(p, y, bins=0), "bins must be an integer of at least 1, got 0"),
        (lambda: plots.pit_histogram(p, y[:, 0]), "reshape y"),
        (lambda: plots.risk_coverage([0.0, 1.0], [1.0]), "got 2 and 1"),
        (lambda: plots.risk_coverage({"a": [1.0]}, {"b": [1.0]}), r"got \['a'\] and \['b'\]"),
        (lambda: plots.risk_coverage([1.0], {}), "same names"),
        (lambda: plots.predicted_vs_observed(p, y, level=95), "level must be a number between 0 and 1, got 95"),
        (lambda: plots.predicted_vs_observed(c, label), "predicted_vs_observed is for real"),
        (
            lambda: plots.predicted_vs_observed(Gaussian().predictive(torch.zeros(2, 4, 3)), torch.zeros(4, 3)),
            r"one output per row, got shape \[4, 3\]",
        ),
        (lambda: plots.uncertainty_parts(p[:0]), "at least one row"),
        (lambda: plots.uncertainty_parts(without_variance), "infinite variance"),
        (lambda: plots.confusion(p, y), "confusion is for class-valued targets"),
        (lambda: plots.confusion(c, label, names=["a"]), "names must hold one name per class, 3 in all, got 1"),
        (lambda: plots.uncertainty_histogram({}), "at least one group"),
        (lambda: plots.uncertainty_histogram({"a": c}), "got a prediction: pass one of its quantities"),
        (lambda: plots.uncertainty_histogram({"a": []}), "finite values, but 'a' is empty"),
        (lambda: plots.uncertainty_histogram({"a": [1.0]}, bins=0), "bins must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
    assert not plt.get_fignums()
