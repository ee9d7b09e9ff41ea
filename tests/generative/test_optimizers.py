"""Each player of a game may have its own optimizer and schedule."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from credo.architectures import MLP
from credo.errors import InputError
from credo.generative import GAN
from credo.seeding import seeded

CPU = torch.device("cpu")


def game(**options: object) -> GAN:
    with seeded(0, CPU):
        return GAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3, **options)


def points() -> Tensor:
    with seeded(0, CPU):
        return torch.randn(40, 2)


def test_schedules_are_each_player_s_own():
    """With 5 minibatches in each of 2 epochs, the last step is taken at a progress of 0.9."""
    schedule = {"generator": lambda progress: 1.0 - progress, "discriminator": "constant"}
    last = game(generator_lr=1e-2).fit(points(), epochs=2, batch_size=8, lr=3e-3, schedule=schedule, seed=0).history[-1]
    assert last["generator_lr"] == pytest.approx(1e-2 * 0.1)
    assert last["discriminator_lr"] == pytest.approx(3e-3)
    assert "lr" not in last


def test_player_left_out_keeps_the_default_schedule():
    named = game().fit(points(), epochs=2, batch_size=8, seed=0, schedule={"generator": "cosine"})
    default = game().fit(points(), epochs=2, batch_size=8, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), default.parameters(), strict=True))


def test_optimizers_are_each_player_s_own():
    built = {}

    def build(name: str, groups: list[dict[str, object]], lr: float) -> torch.optim.Optimizer:
        built[name] = sum(p.numel() for group in groups for p in group["params"])
        return torch.optim.SGD(groups, lr=lr)

    model = game()
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
def test_wrong_players_and_schedules_are_named(options, message):
    model = game()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match=message):
        model.fit(points(), epochs=1, batch_size=8, **options)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_learning_rates_may_be_given_by_player():
    rates = {"generator": 1e-2, "discriminator": 1e-3}
    last = game().fit(points(), epochs=1, batch_size=40, lr=rates, schedule="constant", seed=0).history[-1]
    assert last["generator_lr"] == pytest.approx(1e-2)
    assert last["discriminator_lr"] == pytest.approx(1e-3)
