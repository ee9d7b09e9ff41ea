"""Captured training of language models: the carried state is read and written where the captured step has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import credo
from credo.architectures import LanguageModel
from credo.sequence import CarriedState, TokenStream, perplexity, perplexity_bound
from training.test_capture import FakeGraph, assert_same, install

VOCABULARY, CUTS, EPOCHS = 7, 6, 3
"""Five cuts of full length and a shorter one per epoch."""


def make_stream() -> TokenStream:
    tokens = torch.randint(0, VOCABULARY, (4 * 28 + 1,), generator=torch.Generator().manual_seed(0))
    return TokenStream(tokens, batch_size=4, length=5)


def make_net(**options: Any) -> CarriedState:
    torch.manual_seed(0)
    return CarriedState(LanguageModel(VOCABULARY, width=6, layers=2, **options))


def make_model(name: str) -> Any:
    likelihood = credo.Categorical()
    if name == "dropout":
        return credo.MCDropout(make_net(dropout=0.2, recurrent_dropout=0.2, word_dropout=0.1), likelihood)
    if name == "sharpened":
        return credo.BayesByBackprop(make_net(), likelihood, credo.ScaleMixture(), sharpening=0.05)
    if name == "partly":
        return credo.BayesByBackprop(make_net(), likelihood, estimator="weight", bayesian="*.weight_hh_l0")
    if name == "bayes":
        return credo.BayesByBackprop(make_net(), likelihood, credo.ScaleMixture(), estimator="weight")
    return credo.MAP(make_net(cell=name), likelihood)


METHODS = ["lstm", "gru", "dropout", "bayes", "sharpened"]


def fit(name: str, **options: Any) -> Any:
    defaults = {"epochs": EPOCHS, "lr": 1e-2, "gradient_clip": 1.0, "seed": 5}
    return make_model(name).fit(make_stream(), **{**defaults, **options})


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    return install(monkeypatch, FakeGraph)


@pytest.mark.parametrize("name", METHODS)
def test_captured_training_equals_eager_training(name: str, graphs: list[FakeGraph]) -> None:
    captured = fit(name, capture=True)
    assert_same(captured, fit(name, capture=False))
    (graph,) = graphs
    assert graph.replays == EPOCHS * (CUTS - 1) - graph.warm_ups


@pytest.mark.parametrize("name", METHODS)
def test_state_stays_in_the_same_memory(name: str) -> None:
    """A replay reads and writes the addresses of the capture, whatever was evaluated between the epochs."""
    addresses: set[tuple[int, ...]] = set()
    other = TokenStream(torch.arange(60) % VOCABULARY, batch_size=2, length=9)

    def evaluate(model: Any, entry: dict[str, float]) -> None:
        perplexity(model, other)
        perplexity_bound(model, other, seed=0)
        model.net.reset_state()
        addresses.add(tuple(buffer.data_ptr() for buffer in model.net.buffers(recurse=False)))

    model = fit(name, on_epoch_end=evaluate)
    assert len(addresses) == 1
    assert_same(model, fit(name))  # and the evaluation does not change the training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*METHODS, "partly"])
def test_captured_training_equals_eager_training_on_a_gpu(name: str) -> None:
    """In float64, so that rounding does not grow; learning rates are kept in float32, which gives the tolerance."""

    def train(capture: bool) -> Any:
        defaults = {"epochs": EPOCHS, "lr": 1e-2, "gradient_clip": 1.0, "seed": 5, "device": "cuda"}
        return make_model(name).double().fit(make_stream(), capture=capture, **defaults)

    captured, eager = train(True), train(False)
    assert captured._training_path == "captured steps"
    for (key, left), right in zip(captured.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["bayes", "dropout", "gru"])
def test_a_prediction_without_starts_reads_every_row_from_its_beginning(name: str) -> None:
    """Also after the network has read something else, of which it then keeps the state."""
    model, x = make_model(name), torch.randint(0, VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(1))
    model.fit(make_stream(), epochs=1, progress=False, seed=0)
    state = model.net.state_0.clone()
    alone, told = (model.predict(given, samples=3, seed=0) for given in (x, (x, torch.ones(4, dtype=torch.bool))))
    assert torch.equal(alone.mean, told.mean)
    assert torch.equal(state, model.net.state_0)
