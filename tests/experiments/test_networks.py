"""The experiments on networks reproduce the claims in their descriptions."""

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo import datasets
from credo.experiments.networks import dropout_uci


@pytest.mark.slow
def test_epistemic_uncertainty_grows_in_the_gap_and_noise_is_estimated(run_values):
    values = run_values("sine-with-gap", "quick")
    for method in ("HMC", "Bayes by Backprop", "MC dropout", "Deep ensemble"):
        assert values[f"{method}: aleatoric std"] == pytest.approx(0.1, rel=0.4)
        assert values[f"{method}: coverage of 95 % intervals, on the data"] > 0.85
    for place in ("in the gap", "beyond the data"):
        assert values[f"HMC: curve in the 95 % band, {place}"] > 0.95
    in_gap = values["Bayes by Backprop: epistemic std in the gap"]
    assert in_gap > 2.5 * values["Bayes by Backprop: epistemic std on the data"]


@pytest.mark.slow
def test_entropy_is_higher_for_rotated_digits_and_letters(run_values):
    values = run_values("out-of-distribution-digits", "quick")
    for method in ("MAP", "Bayes by Backprop", "MC dropout", "Deep ensemble"):
        assert values[f"{method}: accuracy"] > 0.95
        assert values[f"{method}: mean entropy, nats"] < values[f"{method}: mean entropy, rotated"]
        assert values[f"{method}: AUROC of the entropy, letters against digits"] > 0.8


@pytest.mark.slow
def test_only_bayes_by_backprop_is_uncertain_outside_the_data(run_values):
    value = run_values("bbb-regression", "quick")
    assert value["Bayes by Backprop: ratio of the two, far / on the data"] > 2.0
    assert value["standard network: ratio of the two, far / on the data"] < 1.0


@pytest.mark.slow
def test_rotated_digit_is_less_certain_than_the_upright_one(run_values):
    value = run_values("dropout-rotated-digit", "quick")
    upright, worst = value["entropy of the upright 1, nats"], value["entropy of the least certain image, nats"]
    assert worst > 10.0 * upright
    assert value["range of its leading softmax output over 100 draws"] > 0.5


@pytest.mark.slow
def test_epistemic_uncertainty_falls_with_more_data_and_rises_on_other_data(run_values):
    value = run_values("aleatoric-and-epistemic", "quick")
    for problem in ("curve", "digits"):
        bayes = f"{problem}, Bayes by Backprop"
        assert value[f"{bayes}: epistemic, trained on ¼ / all"] > 1.5
        for method in ("MC dropout", "Bayes by Backprop"):
            assert value[f"{problem}, {method}: epistemic, other / same data"] > 1.5


def test_dropout_variance_of_a_linear_layer_depends_on_the_rate_and_not_on_the_number_of_data():
    """The equations of epistemic-by-data-size for f = wᵀx, whose minimum has a closed form.

    At the minimum w of mean [(y − wᵀx)² + v(x)] / 2σ², v = p/(1 − p)·Σ wⱼ²xⱼ², the gradient of the loss is that of the
    prior, w / (N(1 − p)), for any N: within 4 standard errors over 50 batches of 2,000 rows with masks of their own.
    The epistemic variance is v, which does not contain N.
    """
    p, noise = 0.2, 0.1
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + noise * torch.randn(20, 1, generator=generator)
    gram = x.mT @ x / 20
    w = torch.linalg.solve(gram + p / (1 - p) * gram.diagonal().diag(), x.mT @ y / 20).mT
    model = credo.MCDropout(nn.Linear(3, 1, bias=False), credo.Gaussian(noise=noise), p=p).train()
    with torch.no_grad():
        model.net.weight.copy_(w)
    torch.manual_seed(0)
    for n_data in (20, 320):
        gradients = []
        for _ in range(50):
            model.zero_grad()
            model.loss(x.repeat(100, 1), y.repeat(100, 1), n_data=n_data).backward()
            gradients.append(model.net.weight.grad.clone())
        found = torch.stack(gradients)
        error = found.std(0) / 50**0.5
        assert ((found.mean(0) - w / (n_data * (1 - p))).abs() < 4.0 * error).all()
    variance = p / (1 - p) * (x.square() @ w.square().mT)
    assert torch.allclose(model.predict(x, samples="moments").epistemic, variance, rtol=1e-4)


@pytest.mark.slow
def test_epistemic_variance_falls_with_data_except_for_a_fixed_drop_rate(run_values):
    value = run_values("epistemic-by-data-size", "quick")
    fixed = "MC dropout, p = 0.2"
    assert value[f"{fixed}: epistemic variance, N = 25 / 1600"] < 2.0
    for method in ("Bayes by Backprop", "HMC"):
        assert value[f"{method}: epistemic variance, N = 25 / 1600"] > 20.0
    assert value["concrete dropout: epistemic variance, N = 25 / 1600"] > 2.0
    for size in (25, 100, 400, 1600):
        assert value[f"chosen rate, N = {size}"] < 0.2


@pytest.mark.slow
def test_only_rectified_units_are_more_uncertain_further_from_the_data(run_values):
    if not datasets.available()["small/mauna_loa_co2"]:
        pytest.skip("the series is not in the data folder")
    value = run_values("dropout-co2", "quick")
    relu, tanh = "MC dropout, ReLU, p = 0.1", "MC dropout, tanh, p = 0.2"
    assert value[f"{relu}: std at x = 6"] > 1.5 * value[f"{relu}: std at x = 3"]
    assert value[f"{tanh}: std at x = 6"] == pytest.approx(value[f"{tanh}: std at x = 3"], rel=0.1)
    assert value["standard dropout, ReLU: std at x = 6"] == pytest.approx(0.1)


def test_scores_of_a_table_are_in_the_units_of_its_target():
    """A network of zeros predicts N(mean, (0.5·std)²) of the training targets, whatever the inputs."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 2)), random.normal(7.0, 3.0, size=30)
    x[:, 1] = 4.0  # a constant column
    data = dropout_uci._Standardized.of(x[:20], y[:20])
    net = nn.Linear(2, 1)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    method = credo.MCDropout(net, credo.Gaussian(noise=0.5), p=0.1)
    found = data.score(method, x[20:], y[20:], draws=2, seed=0)
    center, scale = torch.tensor(y[:20]).mean(), torch.tensor(y[:20]).std(correction=0)
    expected = torch.distributions.Normal(center, 0.5 * scale).log_prob(torch.tensor(y[20:])).mean()
    assert found.log_likelihood == pytest.approx(float(expected), rel=1e-5)
    assert found.rmse == pytest.approx(float((torch.tensor(y[20:]) - center).square().mean().sqrt()), rel=1e-5)


@pytest.mark.slow
def test_dropout_reaches_the_published_errors_of_small_tables(run_values):
    if not datasets.available()["uci/yacht"]:
        pytest.skip("the UCI tables are not in the data folder")
    value = run_values("dropout-uci", "quick")
    for name, published in dropout_uci.PUBLISHED.items():
        if name in dropout_uci.PLANS["quick"].tables:
            assert value[f"{name}: test RMSE"] < 1.5 * published.rmse
            assert value[f"{name}: test log likelihood, nats"] > published.log_likelihood - 0.5


@pytest.mark.slow
def test_uncertain_pixels_are_the_wrong_ones_and_draws_have_the_higher_likelihood(run_values):
    if not datasets.available()["camvid"]:
        pytest.skip("CamVid is not in the data folder")
    value = run_values("segnet-camvid", "quick")
    all_pixels = value["MC dropout: global accuracy, %"]
    for name in ("entropy", "mutual information", "aleatoric"):
        assert value[f"accuracy of the 90 % most certain pixels by {name}, %"] > all_pixels
    assert value["MC dropout: NLL per pixel, nats"] < value["single pass: NLL per pixel, nats"]


@pytest.mark.slow
def test_super_resolution_is_better_than_bicubic_and_its_uncertainty_ranks_the_errors(run_values):
    value = run_values("super-resolution", "quick")
    for method in ("Bayes by Backprop", "MC dropout"):
        assert value[f"{method}: PSNR of a crop, dB, above bicubic"] > 1.0
        assert value[f"{method}: coverage of 95 % intervals, %"] > 90.0
        for kind in ("total", "epistemic", "aleatoric"):
            assert value[f"{method}: AUSE of the {kind} std"] < 0.5 * value[f"{method}: AUSE of a random order"]


@pytest.mark.slow
def test_wrong_words_and_words_about_a_disturbed_digit_are_the_uncertain_ones(run_values):
    if not datasets.available()["mnist"]:
        pytest.skip("MNIST is not in the data folder")
    value = run_values("bayesian-captions", "quick")
    assert value["undisturbed: captions without an error, %"] > 80.0
    for kind in ("undisturbed", "one digit occluded", "one digit rotated"):
        assert value[f"{kind}: AUROC of entropy for wrong words"] > 0.85
    for kind in ("one digit occluded", "one digit rotated"):
        for part in ("entropy", "mutual information"):
            about, others = (
                value[f"{kind}: mean {part} of {words}, nats"] for words in ("words about it", "other words")
            )
            assert about > 1.5 * others


@pytest.mark.slow
def test_most_weights_can_be_pruned(run_values):
    if not datasets.available()["mnist"]:
        pytest.skip("MNIST is not in the data folder")
    value = run_values("bbb-mnist", "quick")
    for temperature in ("1", "0.1"):
        name = f"Bayes by Backprop, scale mixture, T = {temperature}, 2 × 100"
        error = {share: value[f"{name}, {share} % of the weights pruned: test error, %"] for share in (0, 75, 98)}
        assert error[0] == value[f"{name}: test error, %"] < 8.0
        assert error[75] == pytest.approx(error[0], abs=0.5)
        assert error[98] > 2.0 * error[0]


@pytest.mark.slow
def test_convolutional_networks_are_less_certain_of_letters_than_of_digits(run_values):
    value = run_values("bayesian-cnn", "quick")
    for network in ("LeNet", "all-convolutional"):
        for method in ("Bayes by Backprop", "MC dropout", "ensemble"):
            assert value[f"{network}, {method}: test error, %"] < 5.0
            assert value[f"{network}, {method}: AUROC of entropy, letters"] > 0.8


@pytest.mark.slow
def test_regularized_language_models_have_the_lower_perplexity(run_values):
    if not datasets.available()["ptb"]:
        pytest.skip("Penn Treebank is not in the data folder")
    value = run_values("bayesian-rnn", "quick")
    plain = value["LSTM, 1 × 128: test perplexity"]
    for name in ("variational LSTM", "Bayesian LSTM", "Bayesian LSTM, sharpened"):
        assert value[f"{name}, 1 × 128: test perplexity"] < 0.9 * plain
        assert (
            value[f"{name}, 1 × 128: test perplexity, dynamic evaluation"] < value[f"{name}, 1 × 128: test perplexity"]
        )
    sharpened = value["Bayesian LSTM, sharpened, 1 × 128: bound on the test perplexity"]
    assert sharpened == pytest.approx(value["Bayesian LSTM, sharpened, 1 × 128: test perplexity"], rel=0.05)
