"""``bbb-mnist``: one run is a record, and stored records give the table."""

from __future__ import annotations

import json

import pytest
import torch

from credo.errors import InputError
from credo.experiments.networks import _bbb_mnist_runs as runs
from credo.experiments.networks import bbb_mnist

SETTINGS = runs.Settings(epochs=1, draws=3)


@pytest.fixture(scope="module")
def digits():
    return runs.load(smoke=True)


@pytest.fixture(scope="module")
def record(digits):
    return runs.measure(runs.Variant("mixture", 8, 0.3), digits, SETTINGS, seed=0)


@pytest.mark.parametrize("plan", bbb_mnist.PLANS.values(), ids=list(bbb_mnist.PLANS))
def test_a_variant_is_found_by_its_name(plan):
    names = [variant.name for variant in plan.variants]
    assert len(set(names)) == len(names)
    assert [runs.Variant.parse(name) for name in names] == plan.variants


@pytest.mark.parametrize("name", ["mixture-1200", "sgd-400-T1", "mixture-x-T1", "laplace-400"])
def test_other_names_are_not_variants(name):
    with pytest.raises(InputError, match="a row must have a name such as"):
        runs.Variant.parse(name)


def test_held_out_images_are_the_last_of_the_training_part(digits):
    held_out = runs.load(smoke=True, hold_out=100)
    assert torch.equal(held_out.x_test, digits.x_train[-100:])
    assert torch.equal(held_out.y_train, digits.y_train[:-100])


def test_a_record_survives_json_and_holds_every_measurement(record, digits):
    assert json.loads(json.dumps(record)) == record
    assert len(record["wrong_by_epoch"]) == SETTINGS.epochs
    assert record["wrong_by_epoch"][-1] == record["wrong_mean_weights"]
    assert set(record["pruned"]) == {f"{fraction:g}" for fraction in runs.PRUNED}
    assert all(0 <= part["wrong"] <= len(digits.y_test) for part in [record, *record["pruned"].values()])


def test_densities_integrate_to_one(record):
    """Four digits per bin leave an error below 1e-3; initial weights of 8 units reach beyond the range, to ±0.35."""
    low, high = runs.SNR_RANGE
    assert sum(record["snr"]) * (high - low) / runs.SNR_BINS == pytest.approx(1.0, abs=1e-3)
    assert 0.9 < sum(record["weights"]) * 2 * runs.WEIGHT_RANGE / runs.WEIGHT_BINS < 1.001


def test_the_learning_rate_is_constant_and_then_falls_to_zero():
    factors = [runs.late_cosine(progress, decay_from=0.5) for progress in (0.0, 0.5, 0.75, 1.0)]
    assert factors == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_seeds_of_a_variant_are_one_row_of_the_table(record):
    other = {**record, "seed": 1, "wrong": record["wrong"] + 9}
    wide = {**record, "variant": "mixture-1200-T0.3"}
    rows = {row.quantity: row for row in bbb_mnist.assemble([other, wide, record]).rows}
    percent = 100 / record["test_images"]
    pooled = rows["Bayes by Backprop, scale mixture, T = 0.3, 2 × 8: test error, %"]
    assert pooled.values == pytest.approx((record["wrong"] * percent, (record["wrong"] + 9) * percent))
    assert pooled.published is None
    assert rows["Bayes by Backprop, scale mixture, T = 0.3, 2 × 1200: test error, %"].published == 1.32
    pruned = rows["Bayes by Backprop, scale mixture, T = 0.3, 2 × 1200, 98 % of the weights pruned: test error, %"]
    assert pruned.values == pytest.approx((record["pruned"]["0.98"]["wrong"] * percent,))
    assert pruned.published == 1.39
