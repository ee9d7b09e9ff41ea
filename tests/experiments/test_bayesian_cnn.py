"""``bayesian-cnn``: one run is a record, and stored records give the table."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from credo.errors import InputError
from credo.experiments.networks import _bayesian_cnn_runs as runs
from credo.experiments.networks import _images as images
from credo.experiments.networks import bayesian_cnn

SETTINGS = runs.Settings(epochs=1, widths=(2, 4), members=2, draws=2, ones=2)


@pytest.fixture(scope="module")
def digits():
    return images.load(smoke=True)


@pytest.fixture(scope="module")
def record(digits):
    return runs.measure(runs.Variant("allconv", "ensemble"), digits, SETTINGS, seed=0)


def test_a_variant_is_found_by_its_name():
    variants = bayesian_cnn.PLANS["full"].variants
    assert [runs.Variant.parse(variant.name) for variant in variants] == variants
    with pytest.raises(InputError, match="a row must have a name such as"):
        runs.Variant.parse("lenet-laplace")


def test_a_record_survives_json_and_holds_every_measurement(record, digits):
    assert json.loads(json.dumps(record)) == record
    assert len(record["aleatoric"]) == len(record["epistemic"]) == len(digits.digits.classes)
    assert set(record["others"]) == set(digits.others)
    width = math.log(10) / images.ENTROPY_BINS
    assert sum(record["entropy"]) * width == pytest.approx(1.0, abs=1e-3)
    assert all(len(record["rotated"][key]) == len(runs.ANGLES) for key in ("entropy", "class", "misread"))


def test_settings_are_chosen_by_images_that_are_in_no_test():
    held_out, tested = images.load(smoke=True, hold_out=100), images.load(smoke=True)
    assert len(held_out.digits.y_test) == 100
    assert not set(held_out.others) & {*tested.others, "Fashion-MNIST", "notMNIST"}
    assert not set(images.GLYPHS) & set("ABCDEFGHIJ0123456789")
    assert all(other.shape[1:] == held_out.digits.x_test.shape[1:] for other in held_out.others.values())


def test_prior_of_he_has_the_variance_of_the_initial_weights():
    variant, settings = runs.Variant("lenet", "flipout"), runs.Settings(relu=True, prior="he", prior_scale=0.5)
    model = runs._build(variant, images.load(smoke=True).digits, settings)
    assert model.prior["classifier.1.weight"].stddev == pytest.approx(0.5 * math.sqrt(2.0 / 200))
    assert model.prior["*"].stddev == 0.5


def test_the_image_of_a_record_is_the_first_one_of_the_test_set(record, digits):
    """Stored with 8 bits per pixel; rotated by 0° it is the image itself."""
    one = digits.digits.x_test[digits.digits.y_test == 1][0]
    np.testing.assert_allclose(bayesian_cnn._rotated_images(record["rotated"]["image"])[0], one, atol=0.5 / 255 + 1e-5)


def test_rank_correlation_is_of_the_angles_at_which_a_one_falls_over():
    rising = np.concatenate([np.linspace(0, 1, 19), np.zeros(18)])
    assert bayesian_cnn._rank_correlation(rising) == pytest.approx(1.0)
    assert bayesian_cnn._rank_correlation(-rising) == pytest.approx(-1.0)
    assert bayesian_cnn._rank_correlation(np.zeros(37)) == 0.0


def test_seeds_of_a_variant_are_one_row_of_the_table(record):
    rows = {row.quantity: row for row in bayesian_cnn.assemble([{**record, "seed": 1, "nll": 2.5}, record]).rows}
    assert rows["all-convolutional, ensemble: test NLL, nats"].values == (record["nll"], 2.5)
    assert "all-convolutional, ensemble: test error of one network, %" in rows
    assert (
        rows["all-convolutional, ensemble: aleatoric uncertainty of class 3, nats"].values[0] == record["aleatoric"][3]
    )
