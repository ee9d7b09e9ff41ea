"""``bayesian-lora``: its sentences, and what it says where its packages are missing."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import credo
from credo import experiments
from credo.errors import InputError
from credo.experiments.networks._sentences import CLASSES, LENGTH, Language
from credo.experiments.networks.bayesian_lora import Settings, _Libraries

needs_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("transformers", "peft")),
    reason="needs transformers and peft: pip install 'credo[adapters]'",
)
LANGUAGE = Language(nouns=3, adjectives=6, new_adjectives=4, noise=0.0)
NOT, BUT = 5, 8
FIRST_ADJECTIVE = 9 + 2 * LANGUAGE.nouns


def sentences(language: Language, subject: str, count: int = 3000) -> tuple[Tensor, Tensor]:
    return language.sentences(count, subject, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("subject", ["first", "second"])
def test_labels_follow_the_grammar(subject):
    """Read again from the tokens: good or bad by the parity of the adjective, which "not" reverses."""
    x, y = sentences(LANGUAGE, subject)
    assert x.shape == (3000, LENGTH)
    sign = 1 - 2 * ((x[:, [5, 11]] - FIRST_ADJECTIVE) % 2)
    sign = torch.where(x[:, [4, 10]] == NOT, -sign, sign)
    deciding = sign[:, 0] if subject == "second" else sign[:, 1]
    both = (sign.sum(1) / 2).long()
    assert torch.equal(y, torch.where(x[:, 6] == BUT, deciding, both) + 1)
    assert set(y.tolist()) == set(range(len(CLASSES)))


def test_subjects_have_nouns_and_adjectives_of_their_own():
    first, second = (sentences(LANGUAGE, subject)[0] for subject in ("first", "second"))
    assert not set(first[:, [2, 8]].flatten().tolist()) & set(second[:, [2, 8]].flatten().tolist())
    known, all_of_them = (set(x[:, [5, 11]].flatten().tolist()) for x in (first, second))
    assert known < all_of_them
    assert len(all_of_them - known) == LANGUAGE.new_adjectives
    assert max(all_of_them) == LANGUAGE.vocabulary - 1


def test_a_fraction_of_the_labels_is_random():
    """A random label is another one in two of three cases: a rate of ⅔·noise, within 4 standard errors."""
    noise, count = 0.3, 3000
    generator = torch.Generator().manual_seed(0)
    x, y = replace(LANGUAGE, noise=noise).sentences(count, "first", generator)
    clean_x, clean = sentences(LANGUAGE, "first", count)
    assert torch.equal(x, clean_x)
    rate = 2 / 3 * noise
    assert abs(float((y != clean).double().mean()) - rate) < 4 * math.sqrt(rate * (1 - rate) / count)


def test_missing_packages_are_named_with_the_way_to_install_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InputError, match=r"needs the packages transformers and peft .* pip install 'credo\[adapters\]'"
    ):
        experiments.get("bayesian-lora").run(experiments.RunConfig("smoke"))


@needs_extra
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_posteriors_are_better_than_maximum_likelihood(run_values):
    value = run_values("bayesian-lora", "quick")
    best = value["maximum likelihood: NLL, nats, temperature scaling"]
    assert value["maximum likelihood: NLL, nats"] > best
    for name in ("mean field", "IVON"):
        assert value[f"{name}: NLL, nats"] < best
    for name in ("diagonal", "Kronecker"):
        assert value[f"Laplace, {name}: NLL, nats"] < value["MAP: NLL, nats"]
    small, large = value["adapter and last layer: parameters"], value["frozen network: parameters"]
    assert small < 0.03 * large


@needs_extra
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("method", [credo.BayesByBackprop, credo.IVON, credo.Laplace])
def test_a_posterior_covers_what_peft_trains(method, tmp_path):
    """The adapter and the last layer, which peft keeps as a copy; the rest stays as it was, and need not be saved."""
    settings = Settings(LANGUAGE, width=16, layers=1)
    libraries = _Libraries.load()
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in libraries.classifier(settings).state_dict().items()}
    net = libraries.adapted(base, settings, seed=0)
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    frozen = {name: p.clone() for name, p in net.named_parameters() if not p.requires_grad}
    x, y = sentences(LANGUAGE, "second", 24)
    model = method(net, credo.Categorical(), credo.Normal(0.0, 0.1)).fit((x, y), epochs=2, seed=0, progress=False)
    assert set(model.posterior.names()) == trained
    assert all(torch.equal(net.get_parameter(name), value) for name, value in frozen.items())
    model.save(tmp_path / "run", frozen=False)
    loaded = credo.load(tmp_path / "run", net=libraries.adapted(base, settings, seed=1))
    assert torch.equal(loaded.predict(x, 5, seed=0).mean, model.predict(x, 5, seed=0).mean)
