"""Private copies of networks, and draws as one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.functional import Replica, describe_modules, stack_draws


def test_adjacent_draws_are_stacked_without_a_copy() -> None:
    memory = torch.arange(24.0).view(3, 8)
    draws = [{"a": row[:4].view(2, 2), "b": row[4:7]} for row in memory]
    stacked = stack_draws(draws)
    for name, value in stacked.items():
        assert torch.equal(value, torch.stack([draw[name] for draw in draws]))
        assert value.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def test_draws_elsewhere_are_copied() -> None:
    memory = torch.arange(12.0).view(3, 4)
    for draws in ([memory[0], memory[2], memory[1]], [memory[1], memory[1]], [memory[0], memory[1].clone()]):
        assert torch.equal(stack_draws([{"w": draw} for draw in draws])["w"], torch.stack(draws))


class Twice(nn.Module):
    """A module of its own, with a layer that is used under two names, a buffer and a plain setting."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = self.first
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.again(self.first(x))) * self.scale


def test_a_replica_shares_parameters_and_nothing_else() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Twice(), nn.Conv1d(1, 2, 1), nn.Flatten(), nn.LSTM(6, 4), nn.Dropout(0.3))
    replica = Replica(net, None, own_buffers=True).net
    for own, theirs in zip(replica.modules(), net.modules(), strict=True):
        assert own is not theirs
        assert type(own) is type(theirs)
        assert set(vars(own)) == set(vars(theirs))
        assert own.extra_repr() == theirs.extra_repr()
        assert own._forward_hooks is not theirs._forward_hooks
    assert replica[0].first is replica[0].again
    assert all(a is b for a, b in zip(replica.parameters(), net.parameters(), strict=True))
    for own, theirs in zip(replica.buffers(), net.buffers(), strict=True):
        assert torch.equal(own, theirs)
        assert own is not theirs
    shared = Replica(net, None, own_buffers=False).net
    assert all(a is b for a, b in zip(shared.buffers(), net.buffers(), strict=True))


def test_hooks_come_along() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda module, args, output: output + 1.0)
    x = torch.randn(3, 2)
    assert torch.equal(Replica(net, None, own_buffers=True)({}, x), net(x))


def test_settings_are_part_of_a_description() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3))
    before = describe_modules(net)
    assert describe_modules(net) == before
    net[1].p = 0.2
    assert describe_modules(net) != before


def test_a_call_leaves_nothing_of_the_draw_in_a_recurrent_layer() -> None:
    """nn.LSTM lists its weights a second time; a draw left in the list would keep its graph alive."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0]

    net = Last()
    replica = Replica(net, None, own_buffers=True)
    drawn = {name: parameter * 2.0 for name, parameter in net.named_parameters()}
    once = replica(drawn, torch.ones(4, 1, 2))
    listed = replica.net.layer._flat_weights
    assert all(weight is own for weight, own in zip(listed, net.parameters(), strict=True))
    assert torch.equal(replica(drawn, torch.ones(4, 1, 2)), once), "the same tensors again"


def test_a_replica_made_in_inference_mode_sees_what_changes_its_buffers() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with torch.inference_mode():
        replica = Replica(net, None, own_buffers=True)
        replica.net.eval()
        replica({}, torch.randn(4, 3))
        assert not replica.is_stateful()
        replica.net.train()
        replica({}, torch.randn(4, 3))
        assert replica.is_stateful()


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_running_statistics_take_one_step_whatever_the_number_of_draws(momentum: float | None) -> None:
    """The statistics b are the same for all draws of a later layer, so that r ← (1 − m)r + mb, or the mean of all b."""
    torch.manual_seed(0)
    x = torch.randn(16, 3)
    found = []
    for samples in (1, 4):
        torch.manual_seed(0)
        net = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum), nn.Linear(3, 1))
        model = credo.BayesByBackprop(net, credo.Gaussian(0.5), samples=samples, bayesian="1.*")
        for rows in (x, 2 * x - 1):
            model.loss(rows, rows[:, :1], n_data=16)
        assert net[0].momentum == momentum
        found.append(torch.stack([net[0].running_mean, net[0].running_var]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


class OwnEmbedding(nn.Embedding):
    """A class of the user."""


class OwnNorm(nn.BatchNorm1d):
    """A class of the user."""


def test_settings_of_the_network_stay() -> None:
    net = nn.Sequential(OwnEmbedding(5, 3, sparse=True, scale_grad_by_freq=True), OwnNorm(3), nn.Linear(3, 1))
    replica = Replica(net, None, own_buffers=False, passes=2)
    for _ in range(3):
        replica.sync_from_network()
        replica({}, torch.arange(5))
        assert not replica.net[0].sparse
        replica.sync_to_network()
    assert net[0].sparse
    assert net[0].scale_grad_by_freq
    assert net[1].momentum == 0.1
