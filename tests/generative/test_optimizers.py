"""Optimizers, learning rates and schedules of generator and discriminator."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from credo.architectures import MLP
from credo.errors import InputError
from credo.generative import GAN
from credo.seeding import seeded

CPU = torch.device("cpu")


def small(**options: object) -> GAN:
    with seeded(0, CPU):
        return GAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3, **options)


def points(n: int = 40) -> Tensor:
    with seeded(0, CPU):
        return torch.randn(n, 2)


def test_each_optimizer_has_its_own_schedule():
    """With 5 minibatches in each of 2 epochs, the last step is taken at a progress of 0.9."""
    schedule = {"generator": lambda progress: 1.0 - progress, "discriminator": "constant"}
    last = (
        small(generator_lr=1e-2).fit(points(), epochs=2, batch_size=8, lr=3e-3, schedule=schedule, seed=0).history[-1]
    )
    assert last["generator_lr"] == pytest.approx(1e-2 * 0.1)
    assert last["discriminator_lr"] == pytest.approx(3e-3)
    assert "lr" not in last


def test_optimizer_without_a_schedule_has_the_default():
    named = small().fit(points(), epochs=2, batch_size=8, seed=0, schedule={"generator": "cosine"})
    default = small().fit(points(), epochs=2, batch_size=8, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), default.parameters(), strict=True))


def test_each_network_has_its_own_optimizer():
    built = {}

    def build(name: str, groups: list[dict[str, object]], lr: float) -> torch.optim.Optimizer:
        built[name] = sum(p.numel() for group in groups for p in group["params"])
        return torch.optim.SGD(groups, lr=lr)

    model = small()
    optimizer = {name: partial(build, name) for name in ("generator", "discriminator")}
    model.fit(points(), epochs=1, batch_size=8, seed=0, optimizer=optimizer)
    assert built == {name: sum(p.numel() for p in getattr(model, name).parameters()) for name in built}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": {"critic": "constant"}}, "unknown optimizer in schedule 'critic'"),
        ({"schedule": {"generator": "cosin"}}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"schedule": {"generator": lambda progress: None}}, "schedule must return a number of at least 0"),
        ({"optimizer": {"generatr": torch.optim.SGD}}, "did you mean 'generator'"),
        ({"optimizer": {"generator": "SGD"}}, "optimizer must be a callable"),
    ],
)
def test_bad_optimizers_and_schedules_raise(options, message):
    model = small()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match=message):
        model.fit(points(), epochs=1, batch_size=8, **options)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_learning_rates_can_be_given_by_name():
    rates = {"generator": 1e-2, "discriminator": 1e-3}
    last = small().fit(points(), epochs=1, batch_size=40, lr=rates, schedule="constant", seed=0).history[-1]
    assert last["generator_lr"] == pytest.approx(1e-2)
    assert last["discriminator_lr"] == pytest.approx(1e-3)


def test_each_network_has_its_own_learning_rate():
    def moved(**options: object) -> dict[str, float]:
        """The distance that plain gradient descent moves each network in one step."""
        model = small(**options)
        before = copy.deepcopy(model)
        model.fit(points(8), epochs=1, batch_size=8, seed=0, optimizer=torch.optim.SGD, schedule="constant")
        return {
            name: math.sqrt(
                sum(
                    (a - b).square().sum().item()
                    for a, b in zip(getattr(model, name).parameters(), getattr(before, name).parameters(), strict=True)
                )
            )
            for name in ("generator", "discriminator")
        }

    plain, slow = moved(), moved(discriminator_lr=1e-4)  # fit's is 1e-3
    assert slow["discriminator"] == pytest.approx(0.1 * plain["discriminator"], rel=1e-3)
    assert moved(generator_lr=1e-4)["generator"] == pytest.approx(0.1 * plain["generator"], rel=1e-3)


def test_betas_reach_both_optimizers():
    groups = small(betas=(0.3, 0.9))._training_task().parameter_groups(0.1)
    assert list(groups) == ["discriminator", "generator"]
    assert all(group[0]["betas"] == (0.3, 0.9) and group[0]["weight_decay"] == 0.1 for group in groups.values())
