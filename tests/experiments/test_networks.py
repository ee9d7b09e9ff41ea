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
