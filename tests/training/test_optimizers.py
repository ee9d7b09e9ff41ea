"""Adam in the posterior's units, against its formula and against what it is for."""

from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.training import NaturalAdam
from credo.training.optimizers import Adam

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def _parameters(scale: float) -> tuple[nn.Parameter, nn.Parameter]:
    mean = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    rho = nn.Parameter(torch.full((3,), math.log(math.expm1(scale))))
    return mean, rho


def _descend(optimizer: torch.optim.Optimizer, mean: Tensor, rho: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        ((mean - 3.0).square() * torch.tensor([1.0, 10.0, 0.1])).sum().add(F.softplus(rho).log().sum()).backward()
        optimizer.step()


def test_adam_is_that_of_torch_also_after_loading_and_without_some_gradients() -> None:
    """To the bit: the first step, the following ones, one on part of the parameters, and those after a reload."""

    def run(build: type[torch.optim.Optimizer], **options: bool) -> list[Tensor]:
        first, second = (nn.Parameter(torch.linspace(-1.0, 1.0, 5) * k) for k in (1, 2))
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": [second], "lr": 0.3}]
        optimizer = build(groups, lr=0.01, **options)
        seen = []
        for step in range(8):
            if step == 5:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.zero_grad()
            (first.sin().sum() + (0.0 if step == 3 else second.exp().sum())).backward()
            optimizer.step()
            seen += [first.detach().clone(), second.detach().clone()]
        return seen

    for found, expected in zip(run(Adam), run(torch.optim.Adam, fused=True), strict=True):
        assert torch.equal(found, expected)


def test_large_tensors_are_stretched_in_blocks() -> None:
    """Two blocks and a rest, beside the same numbers in small tensors."""
    size = 2 * 2**16 + 3
    values = torch.linspace(-2.0, 2.0, size)

    def run(pieces: int) -> Tensor:
        means = [nn.Parameter(part.clone()) for part in values.tensor_split(pieces)]
        rhos = [nn.Parameter(part.cos()) for part in values.tensor_split(pieces)]
        optimizer = NaturalAdam([{"params": [*means, *rhos]}], dict(zip(means, rhos, strict=True)), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            sum((m.square().sum() + r.square().sum()) for m, r in zip(means, rhos, strict=True)).backward()
            optimizer.step()
        return torch.cat([mean.detach() for mean in means])

    torch.testing.assert_close(run(1), run(7), rtol=1e-6, atol=1e-7)


def test_small_scales_are_left_to_adam() -> None:
    """r·σ below the learning rate: the means move as under Adam, the scales as under Adam with rate r."""
    (mean, rho), (mean_, rho_) = _parameters(1e-3), _parameters(1e-3)
    _descend(NaturalAdam([{"params": [mean, rho]}], {mean: rho}, lr=1e-3), mean, rho, 5)
    _descend(torch.optim.Adam([{"params": [mean_]}, {"params": [rho_], "lr": 0.1}], lr=1e-3), mean_, rho_, 5)
    torch.testing.assert_close(mean, mean_)
    torch.testing.assert_close(rho, rho_)


def test_wide_posteriors_move_by_a_share_of_their_scale() -> None:
    """The first step of Adam is the sign of the gradient: Δμ = −r·σ·sign, with the σ that the step leaves."""
    mean, rho = _parameters(2.0)
    before = mean.detach().clone()
    _descend(NaturalAdam([{"params": [mean, rho]}], {mean: rho}, lr=1e-3, relative_step=0.05), mean, rho, 1)
    sigma = F.softplus(rho.detach())
    torch.testing.assert_close(mean.detach() - before, 0.05 * sigma * torch.tensor([1.0, 1.0, 1.0]), rtol=1e-4, atol=0)


def test_factors_of_a_low_rank_covariance_take_relative_steps() -> None:
    model = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian("learned"), rank=2)
    assert isinstance(model.posterior, credo.posteriors.LowRankGaussian)
    optimizer = model._training_task().default_optimizer(model.parameter_groups(), lr=1e-3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in model.posterior.parameters()} == {0.1}
    assert {rates[id(p)] for p in model.net.parameters()} == {1e-3}


def test_the_schedule_scales_every_step() -> None:
    mean, rho = _parameters(2.0)
    optimizer = NaturalAdam([{"params": [mean, rho]}], {mean: rho}, lr=1e-3)
    for group in optimizer.param_groups:
        group["lr"] *= 0.0
    before = (mean.detach().clone(), rho.detach().clone())
    _descend(optimizer, mean, rho, 2)
    assert torch.equal(mean.detach(), before[0])
    assert torch.equal(rho.detach(), before[1])


def test_weight_decay_and_other_parameters_keep_their_groups() -> None:
    model = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian("learned"))
    optimizer = model._training_task().default_optimizer(model.parameter_groups(weight_decay=0.1), lr=1e-2)
    scales = {id(p) for p in model.posterior.rho.parameters()}
    seen: dict[int, tuple[float, float]] = {}
    for group in optimizer.param_groups:
        seen.update({id(p): (group["lr"], group["weight_decay"]) for p in group["params"]})
    assert len(seen) == len(list(model.parameters()))
    for parameter in model.parameters():
        lr = 0.1 if id(parameter) in scales else 1e-2
        decay = 0.1 if any(parameter is p for p in model.net.parameters()) else 0.0
        assert seen[id(parameter)] == (lr, decay)


def test_the_kl_comes_in_over_the_first_half_of_the_first_fit() -> None:
    model = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian(0.5))
    assert float(model._kl_factor()) == 1.0  # in a loop of one's own there is none
    model = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian(0.5))
    model.fit((X, Y), epochs=10, batch_size=16)  # 40 steps
    assert int(model._warmup.length) == 20
    assert int(model._warmup.steps) == 40
    model.fit((X, Y), epochs=100, batch_size=16)
    assert int(model._warmup.length) == 20, "a posterior that has arrived needs no second warm-up"
    for given in (0, 7):
        model = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian(0.5), kl_warmup=given)
        model.fit((X, Y), epochs=2, batch_size=16)
        assert int(model._warmup.length) == given


def test_a_posterior_is_given_two_thousand_steps_by_default() -> None:
    bayes = credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian(0.5)).fit((X, Y), batch_size=16)
    assert len(bayes.history) == 500  # of 4 minibatches
    assert len(credo.MAP(nn.Linear(3, 1), credo.Gaussian(0.5)).fit((X, Y), batch_size=16).history) == 20
    assert credo.BayesByBackprop(nn.Linear(3, 1))._training_task().default_epochs(469) == 20


def _notes(caplog: pytest.LogCaptureFixture, **options: object) -> str:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="credo"):
        credo.BayesByBackprop(net, credo.Gaussian(0.5)).fit((X, Y), seed=0, **options)
    return caplog.text


@pytest.mark.slow
def test_a_fit_says_where_the_posterior_has_not_arrived(caplog: pytest.LogCaptureFixture) -> None:
    unmoved = _notes(caplog, epochs=20, optimizer=torch.optim.Adam, lr=1e-4)
    assert "hardly moved from its start: the median σ is 0.01, initial_scale 0.01" in unmoved
    assert "epochs=2000" in unmoved  # of one minibatch
    assert "the ELBO was still rising at the end of training" in _notes(caplog, epochs=100)
    assert _notes(caplog, epochs=2000) == ""  # what the first note advises


@pytest.mark.slow
def test_the_posterior_around_a_trained_network_arrives() -> None:
    """Defaults against plain Adam for as many steps: scales leave 0.01 for the prior's, and the ELBO rises by nats."""
    torch.manual_seed(0)
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 2))
    credo.MAP(net, credo.Categorical()).fit((x, y), epochs=300, lr=1e-2, seed=0)
    elbos, scales = [], []
    for optimizer in (torch.optim.Adam, None):
        model = credo.BayesByBackprop(copy.deepcopy(net), credo.Categorical())
        model.fit((x, y), epochs=250, optimizer=optimizer, seed=0)
        elbos.append(model.elbo((x, y), samples=20, seed=0) / len(x))
        scales.append(float(torch.cat([s.detach().flatten() for s in model.posterior.scale().values()]).median()))
    assert scales[0] < 0.03
    assert scales[1] > 0.5
    assert elbos[1] > elbos[0] + 5
