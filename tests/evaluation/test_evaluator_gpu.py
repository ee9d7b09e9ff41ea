"""Draws evaluated on a GPU; skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

import credo
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
