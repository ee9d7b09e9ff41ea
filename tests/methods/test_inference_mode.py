"""``fit`` and ``predict`` inside torch's inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import credo

METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "MAP": lambda net: credo.MAP(net, credo.Gaussian(0.3)),
    "BayesByBackprop": lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.3)),
    "MCDropout": lambda net: credo.MCDropout(net, credo.Gaussian(0.3), p=0.1),
    "Laplace": lambda net: credo.Laplace(net, credo.Gaussian(0.3)),
    "SNGP": lambda net: credo.SNGP(net, credo.Gaussian(0.3)),
    "SWAG": lambda net: credo.SWAG(net, credo.Gaussian(0.3), rank=2),
    "DeepEnsemble": lambda net: credo.DeepEnsemble(net, members=2, likelihood=credo.Gaussian(0.3)),
    "HMC": lambda net: credo.HMC(net, credo.Gaussian(0.3), chains=2, warmup=3, draws=3, leapfrog_steps=3),
}


@pytest.mark.parametrize("name", METHODS)
def test_inference_mode_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    options = {} if name == "HMC" else {"epochs": 3}
    results = []
    for inside in (False, True):
        torch.manual_seed(0)
        model = METHODS[name](nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
        with torch.inference_mode(inside):
            model.fit((x, y), seed=0, **options)
            p = model.predict(x.clone(), samples=4, seed=0)
            (q,) = model.stream([x], samples=4, seed=0)
        assert torch.equal(p.mean, q.mean)
        model.fit((x, y), seed=0, **options)  # nothing was left behind that cannot be differentiated
        results.append(p.mean.detach())
    assert torch.equal(*results)


def test_the_mode_is_the_users_afterwards() -> None:
    model = credo.MAP(nn.Linear(3, 1), credo.Gaussian(0.3))
    with torch.inference_mode():
        for _ in model.stream([torch.randn(2, 3)] * 2):
            assert torch.is_inference_mode_enabled()
    with torch.no_grad():
        model.predict(torch.randn(2, 3))
        assert not torch.is_grad_enabled()
