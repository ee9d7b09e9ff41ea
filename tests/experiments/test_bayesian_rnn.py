"""``bayesian-rnn``: one run is a record, a run can stop and go on, and stored records give the table."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest
import torch

from credo.datasets.files import Words
from credo.errors import InputError
from credo.experiments.networks import _bayesian_rnn_runs as runs
from credo.experiments.networks import _texts as texts
from credo.experiments.networks import bayesian_rnn

SETTINGS = replace(bayesian_rnn.PLANS["smoke"].settings, epochs=3, sigma1=0.3, initial_scale=None)


@pytest.fixture(scope="module")
def text():
    return texts.synthetic_text(0, tokens=400)


@pytest.fixture(scope="module")
def record(text):
    return runs.measure(runs.Variant("sharpened", "gru"), text, SETTINGS, seed=0)


def test_a_variant_is_found_by_its_name():
    variants = [runs.Variant(method, cell) for method in runs.METHODS for cell in runs.CELLS]
    assert [runs.Variant.parse(variant.name) for variant in variants] == variants
    for name in ("bayes", "bayes-rnn", "sgd-lstm"):
        with pytest.raises(InputError, match="a row must have a name such as plain-lstm"):
            runs.Variant.parse(name)


def test_a_short_text_keeps_the_most_frequent_words():
    words = Words(
        torch.tensor([0, 1, 2, 2, 3, 2, 3, 1, 4, 4]), torch.tensor([4, 2]), torch.tensor([3, 0]), tuple("abcd")
    )
    words = replace(words, vocabulary=("a", "<unk>", "c", "d", "e"))
    short = texts.shorten(words, tokens=10, vocabulary=3)
    assert short.vocabulary == ("<unk>", "c", "d")
    assert short.train.tolist() == [0, 0, 1, 1, 2, 1, 2, 0, 0, 0]
    assert short.valid.tolist() == [0]
    assert short.test.tolist() == [2]


def test_the_next_word_of_the_synthetic_text_is_one_of_three():
    text = texts.synthetic_text(1)
    followers = [set(text.train[1:][text.train[:-1] == word].tolist()) for word in range(len(text.vocabulary))]
    assert max(map(len, followers)) <= 3


def test_the_learning_rate_decays_after_the_constant_epochs():
    schedule = runs.Schedule(epochs=6, constant_epochs=2, decay=0.5)
    factors = [runs.learning_rate((epoch + 0.3) / 6, schedule) for epoch in range(6)]
    assert factors == [1.0, 1.0, 0.5, 0.25, 0.125, 0.0625]


def test_scales_start_between_fractions_of_the_scale_of_the_prior():
    """√(π σ₁² + (1 − π) σ₂²) = 0.15 with σ₁ = 0.3 and π = ¼."""
    model = runs.build(runs.Variant("bayes"), 20, SETTINGS)
    scales = model.posterior.scale()
    assert set(scales) == {name for name, _ in model.net.named_parameters() if "weight" in name}
    for name, scale in ((name, scale.detach()) for name, scale in scales.items()):
        high = 0.075 if ".layers." in name else 0.15
        assert high / 2 * 0.999 < float(scale.min()) < float(scale.max()) < high * 1.001


@pytest.mark.parametrize("method", runs.METHODS)
def test_networks_are_dropped_as_in_the_papers_and_have_an_output_layer_of_their_own(method):
    model = runs.build(runs.Variant(method), 20, runs.Settings(width=4))
    net = model.net.net
    assert net.decoder.weight is not net.embedding.weight
    assert (net.dropout, net.recurrent_dropout, net.word_dropout) == (
        (0.35, 0.2, 0.2) if method == "dropout" else (0, 0, 0)
    )


def test_a_record_survives_json_and_holds_every_measurement(record, text):
    assert json.loads(json.dumps(record)) == record
    assert len(record["valid_by_epoch"]) == SETTINGS.epochs
    assert record["settings"]["constant_epochs"] == 1
    assert list(record["pruned"]) == [f"{fraction:g}" for fraction in runs.PRUNED]
    numbers = [record["test"], record["test_draws"], *record["bound"].values(), *record["pruned"].values()]
    assert all(1.0 < value < 2 * len(text.vocabulary) for value in numbers)
    assert all(0.0 < e < math.log(len(text.vocabulary)) for found in record["entropy"].values() for e in found.values())
    assert record["dynamic"]["rate"] in runs.DYNAMIC_RATES


def test_a_run_that_stops_and_goes_on_ends_as_if_it_had_not(text, tmp_path):
    variant = runs.Variant("bayes")
    late = runs.Interruption(tmp_path / "run", deadline=time.monotonic() - 1.0, every=1)
    with pytest.raises(runs.OutOfTimeError, match="1 of 3 epochs are done"):
        runs.measure(variant, text, SETTINGS, 0, interruption=late)
    again = runs.measure(variant, text, SETTINGS, 0, interruption=runs.Interruption(tmp_path / "run"))
    at_once = runs.measure(variant, text, SETTINGS, 0)
    assert {**again, "train_seconds": 0} == {**at_once, "train_seconds": 0}


def test_validation_text_takes_the_place_of_the_test_text(monkeypatch, text):
    monkeypatch.setattr(texts, "penn_treebank", lambda: text)
    assert texts.load(hold_out=True).test is text.valid
    assert texts.load().test is text.test


def test_seeds_of_a_variant_are_one_row_of_the_table(record):
    medium = {**record, "variant": "sharpened-lstm", "settings": {**record["settings"], "width": 650, "layers": 2}}
    other = {**record, "seed": 1, "test": record["test"] + 1.0}
    rows = {row.quantity: row for row in bayesian_rnn.assemble([other, medium, record]).rows}
    pooled = rows["Bayesian GRU, sharpened, 1 × 8: test perplexity"]
    assert pooled.values == (record["test"], record["test"] + 1.0)
    assert pooled.published is None
    bound = rows["Bayesian LSTM, sharpened, 2 × 650: bound on the test perplexity"]
    assert (bound.values, bound.published) == ((record["bound"]["test"],), 74.8)
    assert rows["Bayesian LSTM, sharpened, 2 × 650: test perplexity"].published is None
