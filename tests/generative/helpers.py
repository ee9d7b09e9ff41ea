"""Shared by the tests of several models: data, equality of states, and an interrupted and resumed run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.architectures import DenseDecoder
from credo.generative import VAE, GenerativeModel
from credo.seeding import seeded
from credo.training.generative import GenerativeTask

CPU = torch.device("cpu")


def bars(n: int = 40, seed: int = 0) -> Tensor:
    """Gray images ``[n, 1, 8, 8]`` of a bright bar somewhere."""
    with seeded(seed, CPU):
        place = torch.randint(8, (n,))
        return 0.1 + 0.8 * F.one_hot(place, 8).float()[:, None, :, None].expand(-1, 1, 8, 8)


def halves(n: int = 40, seed: int = 0) -> Tensor:
    """Gray images ``[n, 1, 6, 6]`` of a bright half, left or right."""
    with seeded(seed, CPU):
        left = (torch.rand(n, 1, 1, 1) < 0.5).float()
        half = torch.cat([left.expand(-1, 1, 6, 3), (1 - left).expand(-1, 1, 6, 3)], -1)
        return 0.1 + 0.8 * half


def small_vae(seed: int = 0, **options: object) -> VAE:
    with seeded(seed, CPU):
        return VAE(**{"latent": 2, "shape": (1, 6, 6), "hidden": (16,), **options})


def bayesian_vae(seed: int = 0, **options: object) -> VAE:
    """With a posterior over the decoder's weights as well."""
    with seeded(seed, CPU):
        method = credo.BayesByBackprop(DenseDecoder(2, (1, 6, 6), (16,)), credo.Bernoulli(), **options)
        return VAE("dense", method, latent=2, shape=(1, 6, 6), hidden=(16,))


def equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether the states of two modules are equal bit by bit."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def check_resumed_run(make: Callable[[], GenerativeModel], x: Tensor, folder: Path, **options: Any) -> None:
    """Assert that a run interrupted in its third epoch of four and resumed equals an uninterrupted one."""
    options = {"epochs": 4, "batch_size": 16, "seed": 3, **options}
    whole = make().fit(x, **options)

    def stop(entry: dict[str, float]) -> None:
        if entry["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerativeTask, "on_epoch_end", lambda _, metrics: stop(metrics))
        with pytest.raises(KeyboardInterrupt):
            make().fit(x, checkpoint=folder, **options)
    resumed = make().fit(x, checkpoint=folder, resume=True, **options)
    assert equal(whole, resumed)
    assert _untimed(whole) == _untimed(resumed)


def _untimed(model: GenerativeModel) -> list[dict[str, float]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in model.history]
