"""``lenet-by-method``: one run is a record, and stored records give the table."""

from __future__ import annotations

import json
import math

import pytest

import credo
from credo.errors import InputError
from credo.experiments.networks import _images as images
from credo.experiments.networks import _lenet_runs as runs
from credo.experiments.networks import lenet_by_method

SETTINGS = lenet_by_method.PLANS["smoke"].settings


@pytest.fixture(scope="module")
def digits():
    return images.load(smoke=True)


@pytest.fixture(scope="module")
def record(digits):
    return runs.measure(runs.Variant("swag"), digits, SETTINGS, seed=0)


def test_a_row_is_found_by_its_name():
    variants = lenet_by_method.PLANS["full"].variants
    assert [runs.Variant.parse(variant.name) for variant in variants] == variants
    assert [variant.name for variant in variants] == list(lenet_by_method.LABELS)
    with pytest.raises(InputError, match="unknown method 'bayes'"):
        runs.Variant.parse("bayes")


def test_a_record_survives_json_and_holds_every_measurement(record, digits):
    assert json.loads(json.dumps(record)) == record
    assert set(record["others"]) == set(digits.others)
    width = math.log(10) / images.ENTROPY_BINS
    assert sum(record["entropy"]) * width == pytest.approx(1.0, abs=1e-3)
    assert record["train_seconds"] > 0.0


def test_all_methods_have_the_same_prior_by_their_own_means(digits):
    """N(0, s²) as a prior, as the length scale 1/s of dropout, and as the weight decay 1/(N·s²) of other layers."""
    settings = runs.Settings(prior_scale=0.2)
    for method in ("map", "bbb", "ivon", "swag", "laplace", "variational-last-layer"):
        prior = runs._BUILDERS[method](digits, settings).prior
        assert isinstance(prior, credo.Normal)
        assert float(prior.scale) == pytest.approx(0.2)
    for method in ("mc-dropout", "concrete-dropout"):
        assert runs._BUILDERS[method](digits, settings)._own_config()["length_scale"] == pytest.approx(5.0)
    for method in runs.PRIOR_ON_LAST_LAYER:
        assert runs._fit_options(method, settings, 1000)["weight_decay"] == pytest.approx(0.025)


def test_a_sampler_takes_the_steps_of_its_epochs(digits):
    settings = runs.Settings(sampler_epochs=30, batch_size=64, cycles=3, draws=30)
    plan = runs._BUILDERS["sghmc"](digits, settings)._plan
    steps = 30 * (len(digits.digits.y_train) // 64)
    assert plan.cycles * plan.draws == 30
    assert 0.9 * steps <= plan.steps <= steps
    assert plan.warmup * plan.cycles == pytest.approx(runs.EXPLORED * steps, abs=plan.cycles)


def test_seeds_of_a_method_are_one_row_of_the_table(record):
    rows = {row.quantity: row for row in lenet_by_method.assemble([{**record, "seed": 1, "nll": 2.5}, record]).rows}
    assert rows["SWAG: test NLL, nats"].values == (record["nll"], 2.5)
    assert rows["SWAG: AUROC of entropy, letters"].values[0] == record["others"]["letters"]["auroc_entropy"]
    assert rows["SWAG: training, s"].values[0] == record["train_seconds"]
