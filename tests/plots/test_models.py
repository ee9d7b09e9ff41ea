"""Figures of training and of weights: what is drawn is what the model holds."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo import plots
from credo.errors import InputError, UnsupportedError
from credo.generative import GAN, VAE, VQVAE

X = torch.linspace(-1, 1, 20)[:, None]
FIT = {"epochs": 3, "batch_size": 10, "seed": 0, "progress": False}


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 1))


@pytest.fixture(scope="module")
def bayesian():
    model = credo.BayesByBackprop(network(), likelihood=credo.Gaussian(noise=0.5))
    return model.fit((X, X.sin()), validation=(X, X.sin()), **FIT)


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_curves_are_the_history_per_datum(bayesian):
    drawn = lines(plots.training_curves(bayesian.history))
    assert list(drawn) == ["NLL", "NLL, validation", "complexity (KL)", "−ELBO"]
    column = {key: np.array([entry[key] for entry in bayesian.history]) for key in bayesian.history[0]}
    np.testing.assert_array_equal(drawn["NLL"].get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(drawn["NLL"].get_ydata(), column["nll"])
    np.testing.assert_allclose(drawn["NLL, validation"].get_ydata(), -column["validation_log_likelihood"])
    np.testing.assert_allclose(drawn["complexity (KL)"].get_ydata(), column["kl"] / 20)
    np.testing.assert_allclose(drawn["−ELBO"].get_ydata(), column["nll"] + column["kl"] / 20)
    assert drawn["NLL, validation"].get_linestyle() == "--"


def test_curves_of_generative_models():
    x = X.tanh().abs().repeat(1, 3)
    vae = VAE(torch.nn.Linear(3, 4), torch.nn.Linear(2, 3), latent=2).fit(x, validation=x, **FIT)
    drawn = lines(plots.training_curves(vae.history))
    assert list(drawn) == ["NLL", "complexity (KL)", "−ELBO", "−ELBO, validation"]
    np.testing.assert_allclose(drawn["−ELBO, validation"].get_ydata(), [-e["validation_elbo"] for e in vae.history])
    np.testing.assert_allclose(drawn["complexity (KL)"].get_ydata(), [e["kl"] for e in vae.history], rtol=1e-6)
    bayesian = credo.BayesByBackprop(torch.nn.Linear(2, 3), credo.Bernoulli())
    full = VAE(torch.nn.Linear(3, 4), bayesian, latent=2).fit(x, validation=x, **FIT)
    drawn = lines(plots.training_curves(full.history))
    np.testing.assert_allclose(drawn["−ELBO"].get_ydata(), [-e["elbo"] for e in full.history], rtol=1e-6)
    complexity = [e["kl"] + e["weight_kl"] for e in full.history]
    np.testing.assert_allclose(drawn["complexity (KL)"].get_ydata(), complexity, rtol=1e-6)
    discrete = VQVAE(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), latent=2, codes=4).fit(x, validation=x, **FIT)
    assert list(lines(plots.training_curves(discrete.history))) == ["NLL", "−ELBO", "−ELBO, validation"]
    gan = GAN(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), latent=2).fit(x, **FIT)
    drawn = lines(plots.training_curves(gan.history))
    assert list(drawn) == ["discriminator", "generator", "diversity"]
    np.testing.assert_allclose(drawn["generator"].get_ydata(), [e["generator"] for e in gan.history])


def test_every_method_has_curves():
    map_, dropout = credo.MAP(network()), credo.MCDropout(network(dropout=0.1))
    ensemble = credo.DeepEnsemble(network(), members=2)
    for model in (map_, dropout, ensemble):
        model.fit((X, X.sin()), **FIT)
    names = ["NLL", "complexity (KL)", "−ELBO"]
    assert list(lines(plots.training_curves(map_.history))) == names
    assert list(lines(plots.training_curves(dropout.history))) == names
    ax = plots.training_curves(ensemble.history)
    assert len(ax.lines) == 2 * len(names)
    assert ax.get_legend_handles_labels()[1] == names


def test_only_the_likelihood_is_drawn_without_complexity():
    without = [{"epoch": 1, "nll": 2.0}, {"epoch": 2, "nll": 1.0}]
    zero = [{**entry, "kl": 0.0, "elbo": -10 * entry["nll"]} for entry in without]
    for history in (without, zero):
        assert list(lines(plots.training_curves(history))) == ["NLL"]


@pytest.mark.parametrize(
    ("nll", "scale"),
    [
        ([2.0, 1.5, 1.0], "linear"),
        ([20.0, 1.5, 1.0], "log"),
        ([2.0, 0.5, -1.0], "linear"),
        ([90.0, 0.5, -1.0], "symlog"),
    ],
)
def test_axis_is_logarithmic_beyond_a_decade(nll, scale):
    ax = plots.training_curves([{"epoch": i, "nll": value} for i, value in enumerate(nll)])
    assert ax.get_yscale() == scale
    low, high = ax.get_ylim()
    assert low < min(nll) < max(nll) < high


def test_histogram_contains_all_weights_and_draws_are_wider(bayesian):
    ax = plots.weight_histogram(bayesian, samples=3, bins=20, seed=1)
    draws, filled, means = (patch.get_data() for patch in ax.patches)
    weights = torch.cat([w.flatten() for w in bayesian.posterior.sample(3, seed=1).values()])
    centers = torch.cat([w.flatten() for w in bayesian.posterior.mean().values()])
    np.testing.assert_allclose(draws.values, np.histogram(weights, draws.edges, density=True)[0])
    np.testing.assert_allclose(means.values, np.histogram(centers, draws.edges, density=True)[0])
    np.testing.assert_array_equal(filled.values, draws.values)
    assert ax.get_legend_handles_labels()[1] == ["posterior draws", "posterior means"]


def test_posteriors_are_compared_by_name(bayesian):
    ax = plots.weight_histogram({"MAP": credo.MAP(network()), "Bayes": bayesian.posterior}, samples=0)
    assert ax.get_legend_handles_labels()[1] == ["MAP", "Bayes"]
    for patch in ax.patches:
        drawn = patch.get_data()
        assert np.sum(drawn.values * np.diff(drawn.edges)) == pytest.approx(1.0)


def known_ratios():
    """A posterior of 4 weights with |μ|/σ of 0, 0.1, 1 and 10."""
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, -0.05, 0.5, 5.0]]))
    return credo.BayesByBackprop(layer, initial_scale=0.5)


def test_snr_is_in_decibels():
    ax = plots.snr(known_ratios(), kind="cdf", cut=0.5)
    steps, cut = ax.lines
    np.testing.assert_allclose(steps.get_xdata(), [-10, 0, 10], atol=1e-5)
    np.testing.assert_allclose(steps.get_ydata(), [0.5, 0.75, 1.0])
    # The median of 0, 0.1, 1 and 10 lies half way between 0.1 and 1.
    np.testing.assert_allclose(cut.get_xdata(), 10 * np.log10(0.55), atol=1e-5)
    assert ax.get_legend_handles_labels()[1] == ["50% of the weights are below"]


def test_density_hides_pruned_weights_but_counts_them():
    model = known_ratios()
    model.prune(0.5)
    ax = plots.snr(model.posterior, bins=5)
    drawn = ax.patches[0].get_data()
    assert np.sum(drawn.values * np.diff(drawn.edges)) == pytest.approx(0.5)
    assert (drawn.edges[0], drawn.edges[-1]) == pytest.approx((0.0, 10.0), abs=1e-5)


def test_cut_off_the_axis_is_not_marked():
    model = known_ratios()
    model.prune(0.75)
    assert not plots.snr(model, cut=0.5).lines
    assert not plots.snr(known_ratios(), cut=None).lines


def test_bad_arguments_raise_and_create_no_figure(bayesian):
    pruned = known_ratios()
    pruned.prune(1.0)
    broken = known_ratios()
    nn.init.constant_(broken.net.weight, float("nan"))
    for call, sentence in (
        (lambda: plots.training_curves([]), "fit the model first"),
        (lambda: plots.training_curves(bayesian), "history must be model.history.*got BayesByBackprop"),
        (lambda: plots.training_curves([{"loss": 1.0}]), "with an 'epoch'"),
        (lambda: plots.training_curves([{"iteration": 9, "log_density": -1.0}]), "of a sampler.*model.summary"),
        (lambda: plots.training_curves([{"epoch": 1, "seconds": 1.0}]), "no finite terms of a loss"),
        (lambda: plots.training_curves([{"epoch": 1, "nll": float("nan")}]), "no finite 'nll'"),
        (lambda: plots.weight_histogram(bayesian, samples=-1), "samples must be an integer of at least 0, got -1"),
        (lambda: plots.weight_histogram(bayesian, bins=0), "bins must be an integer of at least 1, got 0"),
        (lambda: plots.weight_histogram({}), "at least one model"),
        (lambda: plots.weight_histogram(network()), "a model with one, got Sequential"),
        (lambda: plots.weight_histogram(credo.DeepEnsemble(network(), members=2)), "pass one of its members"),
        (lambda: plots.weight_histogram(broken), "NaN or infinite"),
        (lambda: plots.snr(bayesian, kind="pdf"), "unknown kind 'pdf'"),
        (lambda: plots.snr(bayesian, cut=75), "cut must be a number between 0 and 1, got 75"),
        (lambda: plots.snr(credo.MAP(network())), "snr needs a mean-field posterior.*got PointMass"),
        (lambda: plots.snr(pruned), "nothing to plot"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
    with pytest.raises(UnsupportedError, match="masks, not a weight posterior"):
        plots.weight_histogram(credo.MCDropout(network(dropout=0.1)))
    assert not plt.get_fignums()
