"""The experiments on generative models reproduce the claims in their descriptions."""

from __future__ import annotations

import pytest
import torch

from credo.experiments.generative import infogan_codes
from credo.experiments.generative.gan_mnist import nearest
from credo.experiments.generative.infogan_codes import EXTENDED, PUBLISHED, change_slightly, match_codes
from credo.seeding import seeded


def test_codes_are_matched_to_labels_one_to_one():
    with seeded(0, torch.device("cpu")):
        label_of, codes = torch.randperm(10), torch.randint(10, (500,))
    labels = label_of[codes]
    assert torch.equal(match_codes(codes, labels), label_of)
    # One to one even if two codes have the same most frequent label: the rarer pair is matched to another label.
    codes, labels = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([7, 7, 7, 7, 3])
    assert match_codes(codes, labels)[:2].tolist() == [7, 3]


def test_small_changes_leave_most_of_an_image_and_are_none_for_amounts_of_zero(monkeypatch):
    """A disk of radius 5 in 16×16 pixels: no change moves the pixels within its half by more than its radius."""
    place = torch.arange(16.0) - 7.5
    disk = (place[:, None].square() + place.square() < 25.0).float().expand(50, 1, 16, 16)
    with seeded(0, torch.device("cpu")):
        changed = change_slightly(disk)
    assert not torch.equal(changed[0], changed[1])
    assert bool((changed[:, :, 7:9, 7:9] > 1.0 - 1e-5).all())
    assert bool((changed >= 0.0).all() and (changed <= 1.0 + 1e-6).all())
    monkeypatch.setattr(infogan_codes, "LARGEST_CHANGE", ((0.0,) * 3, (0.0,) * 3))
    torch.testing.assert_close(change_slightly(disk), disk, rtol=0, atol=1e-5)


def test_nearest_returns_the_closest_training_image():
    train = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 1, 2, 2)
    assert nearest(torch.full((1, 1, 2, 2), 3.2), train).flatten().tolist() == [3.0] * 4


@pytest.mark.slow
def test_dcgan_has_a_lower_frechet_distance_than_gan_and_both_generate_all_digits(run_values):
    value = run_values("gan-mnist", "quick")
    distance = "Fréchet distance to test digits, LeNet features"
    assert value[f"training digits: {distance}"] < value[f"DCGAN: {distance}"] < value[f"GAN: {distance}"]
    assert value["GAN: digits present, of 10"] == value["DCGAN: digits present, of 10"] == 10.0


@pytest.mark.slow
def test_categorical_code_classifies_digits_without_labels(run_values):
    value = run_values("infogan-codes", "quick")
    names = (PUBLISHED, EXTENDED)
    published, extended = (f"{n}: accuracy of the categorical code as a classifier of test digits, %" for n in names)
    assert value[extended] > value[published] > 50.0  # chance is 10
    for name in names:
        assert value[f"{name}: bound on the information about the categorical code, nats"] > 2.0


@pytest.mark.slow
def test_elbo_increases_with_latent_variables_by_less_and_less(run_values):
    values = run_values("vae-samples", "quick")
    bound = {n: values[f"{n} latent variables: ELBO of a test image, nats"] for n in (2, 5, 10, 20)}
    assert bound[5] - bound[2] > 1.0
    assert abs(bound[20] - bound[10]) < 0.5 * (bound[5] - bound[2])
    for n, elbo in bound.items():
        assert values[f"{n} latent variables: its log likelihood, nats"] > elbo


@pytest.mark.slow
def test_log_likelihood_exceeds_the_elbo_for_both_decoders(run_values):
    values = run_values("vae-manifold", "quick")
    for decoder in ("Bernoulli", "Gaussian"):
        name = f"8×8 digits, {decoder} decoder"
        assert values[f"{name}: its log likelihood, nats"] > values[f"{name}: ELBO of a held-out image, nats"]


@pytest.mark.slow
def test_both_presets_generate_all_digits_and_truncation_lowers_diversity(run_values):
    value = run_values("style-gan", "quick")
    for name in ("progressive WGAN", "style GAN"):
        assert value[f"{name}: digits present, of 10"] == 10.0
    diversity = "diversity beside test digits"
    assert value[f"style GAN, ψ = 0.7: {diversity}"] < value[f"style GAN: {diversity}"]
