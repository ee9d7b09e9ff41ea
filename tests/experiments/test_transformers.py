"""``bayesian-transformers``: every token of a text is scored once, and a record survives JSON."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import credo
from credo.experiments.networks import _texts as texts
from credo.experiments.networks import _transformer_runs as runs
from credo.experiments.networks.transformers import PLANS


@pytest.mark.parametrize("length", [4, 6, 7])
def test_overlapping_windows_score_every_token_once_and_in_order(length):
    text = torch.arange(40)
    windows = runs.overlapping_windows(text, length)
    scored = windows.y != runs.IGNORED
    found = windows.y[scored]
    assert torch.equal(found, torch.arange(1, 1 + len(found)))
    assert 40 - len(found) <= length // 2 + 1  # what does not fill a window
    assert torch.equal(windows.x[scored] + 1, found)
    assert bool(scored[0].all())
    assert int(scored[1:].sum(1).unique()) == length // 2
    train = runs.training_windows(text, length)
    assert torch.equal(train.y.flatten(), torch.arange(1, 1 + train.y.numel()))


class Unigram(nn.Module):
    """The same distribution of the next token at every step."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities).log())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*tokens.shape, -1)


def test_perplexity_is_that_of_the_mean_probability_of_each_token():
    """With two networks that give the token 0 the probabilities ¾ and ¼, the mean is ½ for both tokens."""
    networks = iter([Unigram([0.75, 0.25]), Unigram([0.25, 0.75])])
    model = credo.DeepEnsemble(lambda: next(networks), members=2, likelihood=credo.Categorical(ignore_index=-100))
    windows = runs.overlapping_windows(torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1]), 4)
    assert runs.perplexity(model, windows, 2, seed=0) == pytest.approx(2.0)
    one = credo.MAP(Unigram([0.75, 0.25]), credo.Categorical(ignore_index=-100))
    targets = windows.y[windows.y != runs.IGNORED]
    nll = -torch.tensor([0.75, 0.25]).log()[targets].mean().item()
    assert runs.perplexity(one, windows, 0, seed=0) == pytest.approx(math.exp(nll))


def test_records_survive_json():
    language = PLANS["smoke"].language
    words = texts.synthetic_text(0, tokens=400)
    messages: list[str] = []
    record = runs.measure_language("bbb", words, language, 0, None, messages.append)
    assert json.loads(json.dumps(record)) == record
    assert 1.0 < record["test"] < 2 * len(words.vocabulary)
    assert len(record["tokens"]) == len(record["aleatoric"]) == min(runs.SHOWN_TOKENS, language.length)
    assert [message.split(",")[0] for message in messages] == ["bbb: epoch 1 of 2", "bbb: epoch 2 of 2"]


def test_networks_of_all_methods_are_the_same_except_for_dropout():
    def network(dropout: float | None = None) -> nn.Module:
        layers = [] if dropout is None else [nn.Dropout(dropout)]
        return nn.Sequential(*layers, nn.Linear(2, 2))

    settings = PLANS["full"].vision
    models = {method: runs.build(method, network, credo.Categorical(), settings) for method in runs.METHODS}
    kinds = [type(model) for model in models.values()]
    assert kinds == [credo.MAP, credo.MCDropout, credo.BayesByBackprop, credo.IVON, credo.DeepEnsemble]
    assert models["dropout"].net[0].p == settings.dropout
    assert len(models["ensemble"].members) == settings.members
