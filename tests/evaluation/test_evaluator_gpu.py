"""Draws evaluated on a GPU; skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

import credo
from credo.evaluation import evaluator
from credo.evaluation.captured import CapturedDraws, CapturedPredictions
from evaluation.test_evaluator import MODELS, SAMPLES, build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", MODELS)
def test_the_measured_way_gives_the_draws_of_the_loop(name: str) -> None:
    """Tolerance: 1e-4, of float32 matrix products in another order."""
    model, x = build(name)
    model, x = model.to("cuda"), x.cuda()
    state = torch.cuda.get_rng_state()
    looped = model.predict(x, SAMPLES, 0, vectorize="loop").draws
    torch.testing.assert_close(model.predict(x, SAMPLES, 0).draws, looped, rtol=1e-4, atol=1e-4)
    assert len(model._findings.ways) == 1
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_masks_are_those_of_the_cpu() -> None:
    model, x = build("dropout")
    twin = copy.deepcopy(model).to("cuda")
    ours, theirs = model.predict(x, SAMPLES, 0).draws, twin.predict(x.cuda(), SAMPLES, 0).draws.cpu()
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    assert isinstance(model, credo.MCDropout)


def test_a_draw_does_not_depend_on_those_around_it() -> None:
    """Draw s is a function of the seed and s; the moments of 400 draws within 5 standard errors."""
    model, _ = build("weights")
    posterior = model.to("cuda").posterior
    together = posterior.sampler(3)(range(400))
    for name, mean in posterior.mean().items():
        values = torch.stack([draw[name] for draw in together])
        scale = posterior.scale()[name]
        assert bool(((values.mean(0) - mean).abs() <= 5.0 * scale / 20.0).all())
        assert bool((values.std(0) / scale - 1.0).abs().max() <= 5.0 / 800.0**0.5)
    kept = {name: value.clone() for name, value in together[7].items()}
    for name, value in posterior.sampler(3)([7])[0].items():
        assert torch.equal(value, kept[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_replayed_prediction_gives_the_draws_of_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured at the second prediction, replayed from the third on, for other inputs, seeds and weights."""
    monkeypatch.setattr(CapturedPredictions, "add", lambda self, key, make, replay: self._seen.update({key: make()}))
    model, x = build(name)
    model, x = model.to("cuda"), x.cuda()
    together = "fold" if name == "dropout" else "vmap"
    for _ in range(2):
        model.predict(x, SAMPLES, 0, vectorize=together)
    assert list(map(type, model._findings.captured._seen.values())) == [CapturedDraws]
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.mul_(1.1)
    state = torch.cuda.get_rng_state()
    for seed in (1, 2):
        other = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)).cuda()
        found = model.predict(other, SAMPLES, seed, vectorize=together).draws
        looped = model.predict(other, SAMPLES, seed, vectorize="loop").draws
        torch.testing.assert_close(found, looped, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_replayed_prediction_follows_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph draws itself: with scales, antithetic pairs and groups of draws as the loop has them."""
    monkeypatch.setattr(CapturedPredictions, "add", lambda self, key, make, replay: self._seen.update({key: make()}))
    monkeypatch.setattr(evaluator, "draws_at_once", lambda *args: 9)
    model, x = build("weights")
    model, x = model.to("cuda"), x.cuda()
    for antithetic in (False, True):
        model.posterior.antithetic = antithetic
        for _ in range(2):
            model.predict(x, SAMPLES, 0, vectorize="vmap")
        with torch.no_grad():
            for parameter in model.posterior.parameters():
                parameter.add_(0.5)
        found = model.predict(x, SAMPLES, 1, vectorize="vmap").draws
        torch.testing.assert_close(found, model.predict(x, SAMPLES, 1, vectorize="loop").draws, rtol=1e-4, atol=1e-4)
    assert list(map(type, model._findings.captured._seen.values())) == [CapturedDraws, CapturedDraws]
