"""What the experiments on adversarial models count and draw."""

from __future__ import annotations

import pytest
import torch

from credo import experiments
from credo.experiments.gan_mnist import nearest
from credo.experiments.infogan_codes import match
from credo.seeding import seeded


def test_codes_are_matched_to_the_labels_they_stand_for():
    with seeded(0, torch.device("cpu")):
        label_of, codes = torch.randperm(10), torch.randint(10, (500,))
    labels = label_of[codes]
    assert torch.equal(match(codes, labels), label_of)
    # One to one, even where two codes stand for the same label: the lesser one takes what is left.
    codes, labels = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([7, 7, 7, 7, 3])
    assert match(codes, labels)[:2].tolist() == [7, 3]


def test_nearest_training_image_is_found():
    train = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 1, 2, 2)
    assert nearest(torch.full((1, 1, 2, 2), 3.2), train).flatten().tolist() == [3.0] * 4


@pytest.mark.slow
def test_dcgan_is_nearer_to_the_digits_than_a_gan_and_both_draw_all_ten(tmp_path):
    value = {row.quantity: row.mean for row in experiments.run("gan-mnist", "quick", out=tmp_path).result.rows}
    distance = "Fréchet distance to test digits, LeNet features"
    assert value[f"training digits: {distance}"] < value[f"DCGAN: {distance}"] < value[f"GAN: {distance}"]
    assert value["GAN: digits present, of 10"] == value["DCGAN: digits present, of 10"] == 10.0


@pytest.mark.slow
def test_categorical_code_tells_digits_it_was_never_told(tmp_path):
    value = {row.quantity: row.mean for row in experiments.run("infogan-codes", "quick", out=tmp_path).result.rows}
    assert value["accuracy of the categorical code as a classifier of test digits, %"] > 50.0  # chance is 10
    assert value["bound on the information about the categorical code, nats"] > 2.0
