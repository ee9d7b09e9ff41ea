"""Thompson sampling chooses arms with the probability that they are best, and learns from rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import credo
from credo.decisions import ThompsonBandit
from credo.decisions._models import draw_functions
from credo.errors import InputError, UnsupportedError
from credo.linear import BayesianLinearRegression


def linear(scale: float = 0.3) -> credo.BayesByBackprop:
    """A linear model of three inputs, one context feature and two arms, whose weights are N((0, 0.1, 0), scale²)."""
    net = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0.1, 0.0]]))
    return credo.BayesByBackprop(net, credo.Gaussian(noise=0.1), initial_scale=scale)


def dense(inputs: int = 4) -> credo.BayesByBackprop:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(inputs, 20), nn.ReLU(), nn.Linear(20, 1))
        return credo.BayesByBackprop(net, credo.Gaussian(noise=0.3))


def test_arms_are_chosen_with_the_probability_that_they_are_best() -> None:
    """w_0 − w_1 ~ N(0.1, 2·0.3²), so arm 0 has probability Φ(0.1/(0.3√2)); 4 standard errors of 800 decisions."""
    bandit = ThompsonBandit(linear(), arms=2, seed=0)
    n = 800
    arms = bandit.select(torch.ones(n, 1))
    expected = 0.5 * (1 + math.erf(0.1 / (0.3 * math.sqrt(2)) / math.sqrt(2)))
    error = math.sqrt(expected * (1 - expected) / n)
    assert abs(float((arms == 0).double().mean()) - expected) < 4 * error


def test_decisions_of_a_batch_have_draws_of_their_own() -> None:
    """Neighbors in a batch of 800 equal decisions agree as often as independent ones, p² + (1 − p)²."""
    arms = ThompsonBandit(linear(), arms=2, seed=1).select(torch.ones(800, 1))
    rate = float((arms == 0).double().mean())
    agree = rate**2 + (1 - rate) ** 2
    found = float((arms[1:] == arms[:-1]).double().mean())
    assert abs(found - agree) < 4 * math.sqrt(agree * (1 - agree) / 800)


def test_many_draws_and_point_estimates_are_greedy() -> None:
    assert (ThompsonBandit(linear(0.01), arms=2, draws=200, seed=0).select(torch.ones(50, 1)) == 0).all()
    point = credo.MAP(linear().net, credo.Gaussian(noise=0.1))
    assert (ThompsonBandit(point, arms=2, seed=0).select(torch.ones(50, 1)) == 0).all()


def test_first_decisions_are_made_in_turn_and_later_ones_are_as_without_them() -> None:
    """Two per arm, also across calls; an arm that looks worst is tried all the same."""
    with_turns, without = (ThompsonBandit(linear(0.01), arms=2, initial_pulls=n, seed=0) for n in (2, 0))
    found = [with_turns.select(torch.ones(3, 1)), with_turns.select(torch.ones(4, 1))]
    expected = [without.select(torch.ones(3, 1)), without.select(torch.ones(4, 1))]
    assert torch.cat(found)[:4].tolist() == [0, 1, 0, 1]
    assert torch.equal(torch.cat(found)[4:], torch.cat(expected)[4:])
    assert int(with_turns.select(torch.ones(1))) == 0
    with pytest.raises(InputError, match="initial_pulls"):
        ThompsonBandit(linear(), arms=2, initial_pulls=-1)


@pytest.mark.parametrize(
    "build",
    [
        lambda net: credo.HMC(net, credo.Gaussian(0.1)),
        lambda net: credo.SGLD(net, credo.Gaussian(0.1)),
        lambda net: credo.Laplace(net, credo.Gaussian(0.1)),
        lambda net: credo.SWAG(net, credo.Gaussian(0.1)),
        lambda net: credo.DeepEnsemble(net, members=2, base=credo.SWAG, likelihood=credo.Gaussian(0.1)),
    ],
    ids=["hmc", "sgld", "laplace", "swag", "multi-swag"],
)
def test_methods_that_find_their_posterior_in_fit_need_refit_every(build: Any) -> None:
    """Gradient steps on their loss would move a point estimate, and leave no posterior to draw from."""
    with pytest.raises(InputError, match="refit_every"):
        ThompsonBandit(build(nn.Linear(3, 1)), arms=2)
    assert ThompsonBandit(build(nn.Linear(3, 1)), arms=2, refit_every=10, seed=0).select(torch.ones(4, 1)).shape == (4,)


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="arms must hold numbers"):
        ThompsonBandit(linear(), arms="two")  # type: ignore[arg-type]
    bandit = ThompsonBandit(linear(), arms=2, seed=0)
    with pytest.raises(InputError, match="4 features of a context followed by 2 of an arm"):
        bandit.select(torch.ones(4))
    with pytest.raises(InputError, match="reward must hold numbers"):
        bandit.update(torch.ones(1), 0, "much")


@pytest.mark.parametrize("options", [{}, {"refit_every": 2}])
def test_a_model_with_several_outputs_learns_no_reward(options: Any) -> None:
    bandit = ThompsonBandit(credo.MAP(nn.Linear(3, 2), credo.Gaussian(1.0)), arms=2, seed=0, **options)
    with pytest.raises(InputError, match=r"must output one number per row, got shape \[2\]"):
        bandit.update(torch.ones(1), 0, 1.0)
    assert bandit.n_rewards == 0


def test_what_a_model_says_of_its_network_is_not_blamed_on_the_context() -> None:
    net = nn.Sequential(nn.Linear(3, 1), nn.Tanh())
    bandit = ThompsonBandit(credo.VariationalLastLayer(net, credo.Gaussian(1.0)), arms=2, seed=0)
    for call in (lambda: bandit.select(torch.ones(1)), lambda: bandit.update(torch.ones(1), 0, 1.0)):
        with pytest.raises(UnsupportedError, match=r"^the network's output is not that of its layer"):
            call()


def test_an_ensemble_draws_a_member() -> None:
    """Two of three members prefer arm 0; a decision follows one member, so arm 0 has probability 2/3."""
    nets = [nn.Linear(3, 1, bias=False) for _ in range(3)]
    with torch.no_grad():
        for net, w in zip(nets, (1.0, 1.0, -1.0), strict=True):
            net.weight.copy_(torch.tensor([[0.0, w, 0.0]]))
    model = credo.DeepEnsemble(nets, base=credo.MAP, likelihood=credo.Gaussian(noise=0.1))
    bandit = ThompsonBandit(model, arms=2, seed=0)
    arms = torch.stack([bandit.select(torch.ones(1)) for _ in range(300)])
    assert abs(float((arms == 0).double().mean()) - 2 / 3) < 4 * math.sqrt(2 / 9 / 300)


@pytest.mark.parametrize("options", [{}, {"refit_every": 2}])
def test_a_first_context_of_the_wrong_width_is_not_kept(options: Any) -> None:
    """Otherwise all later ones would have to have its width, with which the network cannot be called."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    bandit = ThompsonBandit(credo.BayesByBackprop(net, credo.Gaussian(0.3)), arms=2, seed=0, **options)
    with pytest.raises(InputError, match="7 features of a context followed by 2 of an arm"):
        bandit.update(torch.ones(7), 0, 1.0)
    assert bandit.n_rewards == 0
    assert bandit.update(torch.ones(2), 0, 1.0).n_rewards == 1


@pytest.mark.parametrize("contexts", [2, 3, 7])
def test_an_ensemble_with_unequal_weights_draws_a_member_by_its_weight_for_every_context(contexts: int) -> None:
    """The member that prefers arm 1 has weight 0.1; decision b of a batch has that probability for every b."""
    nets = [nn.Linear(3, 1, bias=False) for _ in range(3)]
    with torch.no_grad():
        for net, w in zip(nets, (1.0, -1.0, 1.0), strict=True):
            net.weight.copy_(torch.tensor([[0.0, w, 0.0]]))
    model = credo.DeepEnsemble(nets, base=credo.MAP, likelihood=credo.Gaussian(noise=0.1))
    model.set_weights([0.9, 0.1, 0.0])
    bandit = ThompsonBandit(model, arms=2, seed=0)
    arms = torch.stack([bandit.select(torch.ones(contexts, 1)) for _ in range(300)])
    frequency = (arms == 1).double().mean(0)
    assert float((frequency - 0.1).abs().max()) < 5 * math.sqrt(0.09 / 300)


def play(bandit: ThompsonBandit, steps: int, block: int) -> float:
    """The fraction of right decisions in the last half, where arm 1 is right if the first feature is positive."""
    stream = torch.Generator().manual_seed(0)
    right = []
    for _ in range(0, steps, block):
        x = torch.randn(block, 2, generator=stream)
        best = (x[:, 0] > 0).long()
        arms = bandit.select(x)
        bandit.update(x, arms, (arms == best).double() + 0.1 * torch.randn(block, generator=stream))
        right.append((arms == best).double().mean())
    return float(torch.stack(right[len(right) // 2 :]).mean())


def test_gradient_steps_learn_the_best_arm_and_keep_the_random_state() -> None:
    state = torch.get_rng_state()
    bandit = ThompsonBandit(dense(), arms=2, lr=1e-2, seed=0)
    assert play(bandit, 400, 8) > 0.8
    assert bandit.n_rewards == 400
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", [credo.MCDropout, credo.DeepEnsemble])
def test_other_methods_train_by_gradient_steps(kind: type[credo.Method]) -> None:
    net = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1))
    options: dict[str, Any] = {"members": 2} if kind is credo.DeepEnsemble else {"p": 0.1}
    model: credo.Method = kind(net, likelihood=credo.Gaussian(noise=0.3), **options)  # type: ignore[call-arg]
    before = [parameter.clone() for parameter in model.parameters()]
    assert 0 <= play(ThompsonBandit(model, arms=2, lr=1e-2, seed=0), 40, 8) <= 1
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("n_data", [None, 50])
def test_the_prior_weighs_one_over_n_data_per_row(n_data: int | None) -> None:
    """A step of gradient descent on one reward r: w − lr·((w·x − r)·x/σ² + w/n), with the prior N(0, 1)."""
    model = credo.MAP(linear().net, credo.Gaussian(noise=0.1), credo.Normal(0.0, 1.0))
    bandit = ThompsonBandit(model, arms=2, lr=1e-3, n_data=n_data, optimizer=torch.optim.SGD, seed=0)
    x, w = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 0.1, 0.0])
    bandit.update(torch.tensor([2.0]), 0, 1.0)
    expected = w - 1e-3 * ((w @ x - 1.0) * x / 0.1**2 + w / (n_data or 1))
    torch.testing.assert_close(model.net.weight.detach()[0], expected)


def test_estimators_are_refitted() -> None:
    """A linear model on the features (x, arm, x · arm) given as the context of each arm."""
    bandit = ThompsonBandit(BayesianLinearRegression(), torch.tensor([[-1.0], [1.0]]), refit_every=20, seed=0)
    stream = torch.Generator().manual_seed(0)
    arms = bandit.select(torch.randn(19, 1, generator=stream))
    assert set(arms.tolist()) == {0, 1}  # random before the first fit
    for _ in range(60):
        x = torch.randn(1, generator=stream)
        arm = bandit.select(x)
        bandit.update(x, arm, float(arm) + 0.1 * float(torch.randn((), generator=stream)))
    assert (bandit.select(torch.randn(50, 1, generator=stream)) == 1).all()
    method = ThompsonBandit(dense(inputs=3), arms=2, refit_every=10, fit_options={"epochs": 1}, seed=0)
    method.update(torch.zeros(10, 1), torch.zeros(10, dtype=torch.long), torch.zeros(10))
    assert method.model.n_data == 10


def test_the_buffer_keeps_the_last_rewards() -> None:
    bandit = ThompsonBandit(linear(), arms=2, buffer_size=5, seed=0)
    for start in (0, 3, 6):
        bandit.update(torch.arange(start, start + 3.0)[:, None], [0, 1, 0], torch.arange(start, start + 3.0))
    x, y = bandit._buffer()
    assert sorted(y.flatten().tolist()) == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert torch.equal(x[:, 0], y.flatten())
    bandit.update(torch.arange(20.0)[:, None], torch.zeros(20, dtype=torch.long), torch.arange(20.0))
    assert sorted(bandit._buffer()[1].flatten().tolist()) == [15.0, 16.0, 17.0, 18.0, 19.0]


def test_seeds_arrays_and_single_contexts() -> None:
    runs = []
    for context in (torch.ones(1), np.ones(1), [1.0]):
        bandit = ThompsonBandit(linear(), arms=2, seed=3)
        arms = []
        for t in range(8):
            arms.append(int(bandit.select(context)))
            bandit.update(context, arms[-1], 0.1 * t)
        runs.append((arms, bandit.model.net.weight.detach().clone()))
    assert runs[0][0] == runs[1][0] == runs[2][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert bandit.select(torch.ones(1)).shape == ()
    assert bandit.select(torch.ones(0, 1)).shape == (0,)
    assert bandit.n_arms == 2


def test_drawn_functions_have_the_moments_of_the_posterior() -> None:
    """Functions drawn from a linear model at x = 1: mean and variance within 4 standard errors of 2,000 draws."""
    x = np.linspace(-1, 1, 20)[:, None]
    model = BayesianLinearRegression().fit(x, 2 * x[:, 0] + 0.3 * np.sin(9 * x[:, 0]))
    p = model.predict_dist(np.ones((1, 1)))
    draws = draw_functions(model, np.ones((1, 1)), 2000, seed=0)[:, 0]
    error = math.sqrt(float(p.epistemic) / 2000)
    assert abs(float(draws.mean() - p.mean)) < 4 * error
    assert abs(float(draws.var() / p.epistemic) - 1) < 4 * math.sqrt(2 / 2000)


def wrong_updates() -> list[tuple[Tensor, Any, Any, str]]:
    return [
        (torch.ones(1), 2, 0.0, "between 0 and 1, got 2"),
        (torch.ones(1), 0.5, 0.0, "between 0 and 1, got 0.5"),
        (torch.ones(1), 0, math.nan, "reward must be finite"),
        (torch.ones(2, 1), [0], [1.0, 2.0], "same number of rows, got 2, 1 and 2"),
        (torch.ones(1, 1, 1), 0, 0.0, "shape \\[D\\] or \\[B, D\\]"),
    ]


def test_wrong_arguments_are_sentences() -> None:
    bandit = ThompsonBandit(linear(), arms=2, seed=0)
    for context, arm, reward, message in wrong_updates():
        with pytest.raises(InputError, match=message):
            bandit.update(context, arm, reward)
    assert bandit.n_rewards == 0
    bandit.update(torch.ones(1), 0, 0.0)
    with pytest.raises(InputError, match="must have 1 features, as before, got 2"):
        bandit.select(torch.ones(2))
    with pytest.raises(InputError, match="pass refit_every"):
        ThompsonBandit(BayesianLinearRegression(), arms=2)
    for arms in (1, 2.0, True):
        with pytest.raises(InputError, match="arms must be an integer of at least 2"):
            ThompsonBandit(linear(), arms=arms)
    for arm in (True, "left", 0.0, None):
        with pytest.raises(InputError, match="arm must be an integer between 0 and"):
            bandit.update(torch.ones(1), arm, 1.0)
    assert bandit.update(torch.ones(0, 1), [], []).n_rewards == 1
    with pytest.raises(InputError, match="fit_options are for refit_every"):
        ThompsonBandit(linear(), arms=2, fit_options={"epochs": 1})
    two = credo.MAP(nn.Linear(3, 2), credo.Gaussian(noise=1.0))
    with pytest.raises(InputError, match="must output one number"):
        ThompsonBandit(two, arms=2, seed=0).select(torch.ones(1))


def test_a_bandit_without_features_of_contexts() -> None:
    """Arm 1 is best with probability Φ((μ₁ − μ₀)/√(σ₀² + σ₁²)); 4,000 decisions, within 4 standard errors."""
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.2, 0.5]]))
    bandit = ThompsonBandit(credo.BayesByBackprop(net, credo.Gaussian(1.0), initial_scale=0.5), arms=2, seed=0)
    exact = float(torch.special.ndtr(torch.tensor(0.3 / 0.5**0.5)))
    share = float(bandit.select(torch.zeros(4000, 0)).double().mean())
    assert abs(share - exact) < 4 * (exact * (1 - exact) / 4000) ** 0.5
    arm = bandit.select(torch.zeros(0))
    assert arm.shape == ()
    assert bandit.update(torch.zeros(0), int(arm), 1.0).n_rewards == 1
    assert bandit.update(torch.zeros(3, 0), [0, 1, 1], [0.0, 1.0, 1.0]).n_rewards == 4


def test_functions_drawn_from_an_ensemble_of_laplace_are_spread_as_its_posterior() -> None:
    """Not only from member to member, which for a linear model agree. Within 5 standard errors, σ²·√(2/S)."""
    generator, draws = torch.Generator().manual_seed(0), 4000
    x = torch.randn(30, 2, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(30, 1, generator=generator)
    torch.manual_seed(0)
    model = credo.DeepEnsemble(nn.Linear(2, 1), 4, credo.Laplace, likelihood=credo.Gaussian(1.0), structure="full")
    model.fit((x, y), epochs=300, lr=0.05, batch_size=30, seed=0)
    values = draw_functions(model, x[:3], draws, seed=0)[..., 0].double()
    variance = model.predict(x[:3]).epistemic[:, 0].double()
    assert bool(((values.var(0) - variance).abs() < 5 * variance * (2 / draws) ** 0.5).all())
    model.set_weights([0, 0, 1, 0])
    assert draw_functions(model, x[:3], 1, seed=0).shape == (1, 3, 1)


@pytest.mark.parametrize("likelihood", [credo.Gaussian(1.0), credo.Categorical()], ids=["quantity", "classes"])
def test_functions_drawn_from_a_linearized_laplace_are_spread_as_its_posterior(likelihood):
    """Draws at two rows differ between draws, and each is one function: a linear one here.

    The mean and variance of 4,000 draws of a Gaussian are within 4 standard errors of its own: 4·σ/√S for the mean,
    4·σ²·√(2/S) for the variance.
    """
    generator, draws = torch.Generator().manual_seed(0), 4000
    x = torch.randn(30, 2, generator=generator)
    real = isinstance(likelihood, credo.Gaussian)
    y = (x.sum(1, keepdim=True) + torch.randn(30, 1, generator=generator)) if real else (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = credo.Laplace(nn.Linear(2, 1 if real else 2), likelihood, structure="full")
    model.fit((x, y), epochs=20, seed=0)
    rows = torch.stack([x[0], 2 * x[0], torch.zeros(2)])
    found = draw_functions(model, rows, draws, seed=0)
    assert found.shape == (draws, 3, 1 if real else 2)
    if not real:
        assert bool((found.std(0) > 0).all())
        return
    values = found[..., 0].double()
    torch.testing.assert_close(values[:, 1] - values[:, 2], 2 * (values[:, 0] - values[:, 2]), rtol=0, atol=1e-4)
    p = model.predict(rows)
    mean, variance = p.mean[:, 0].double(), p.epistemic[:, 0].double()
    assert bool(((values.mean(0) - mean).abs() < 4 * (variance / draws).sqrt()).all())
    assert bool(((values.var(0) - variance).abs() < 4 * variance * (2 / draws) ** 0.5).all())
