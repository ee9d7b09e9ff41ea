"""The experiments on networks reproduce the claims in their descriptions."""

import pytest

from credo import datasets


@pytest.mark.slow
def test_epistemic_uncertainty_grows_in_the_gap_and_noise_is_estimated(run_values):
    values = run_values("sine-with-gap", "quick")
    for method in ("Bayes by Backprop", "MC dropout", "Deep ensemble"):
        assert values[f"{method}: aleatoric std"] == pytest.approx(0.1, rel=0.4)
        assert values[f"{method}: coverage of 95 % intervals, on the data"] > 0.85
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
