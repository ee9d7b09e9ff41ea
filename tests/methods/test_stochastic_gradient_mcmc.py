"""Minibatch samplers: the stationary distribution of their discretized chains, in closed form, and their schedules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.data import Batch
from credo.diagnostics import standard_error
from credo.errors import DivergenceError, InputError
from credo.methods._flat_stack import Evaluation
from credo.methods._sampling import Plan
from credo.methods._stochastic_gradient import Dynamics, Settings, minibatches, sample
from credo.methods.stochastic_gradient_mcmc import _check_has_not_diverged

PRECISION = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
STEP = 0.3
CHAINS, DRAWS = 100, 400


def quadratic(position: Tensor, batch: Batch | None = None) -> Evaluation:
    """log p = −½·Σ a_i·w_i²."""
    return Evaluation(-0.5 * (position.square() * PRECISION).sum(1), -position * PRECISION)


def draw(settings: Settings, plan: Plan, seed: int = 0) -> Tensor:
    start = torch.zeros(CHAINS, 3, dtype=torch.float64)
    data = Batch(torch.zeros(1, 1), torch.zeros(1), None)
    return sample(quadratic, start, data, settings, plan, seed, lambda step, metrics: None)


@pytest.mark.parametrize("friction", [1.0, 0.3])
def test_the_stationary_covariance_is_that_of_the_discretized_chain(friction: float) -> None:
    """The chain (w, v) is linear, s ← M·s + noise of covariance Q, so its covariance Σ = M Σ Mᵀ + Q is known.

    For α = 1 it is 1/(a·(1 − ε·a/2)). The mean of w² over all draws is within 4 standard errors of it, which come from
    the effective number of draws of w²; at 0.06 the bias of the discretization is up to 50 of them.
    """
    plan = Plan.build(100, DRAWS, thinning=4)
    draws = draw(Settings(STEP, friction, None, preconditioned=False), plan)
    for i, a in enumerate(PRECISION.tolist()):
        step = torch.tensor([[1.0 - STEP * a, 1.0 - friction], [-STEP * a, 1.0 - friction]], dtype=torch.float64)
        noise = 2.0 * friction * STEP * torch.ones(2, 2, dtype=torch.float64)
        identity = torch.eye(4, dtype=torch.float64)
        stationary = torch.linalg.solve(identity - torch.kron(step, step), noise.flatten()).view(2, 2)[0, 0]
        if friction == 1.0:
            assert float(stationary) == pytest.approx(1.0 / (a * (1.0 - STEP * a / 2.0)))
        squares = draws[:, :, i].square()
        error = float(standard_error(squares))
        assert abs(float(squares.mean()) - float(stationary)) < 4.0 * error
        assert abs(float(draws[:, :, i].mean())) < 4.0 * float(standard_error(draws[:, :, i]))


def test_a_preconditioner_leaves_the_stationary_distribution_as_it_is() -> None:
    """With ε·G·a small the variance is 1/a to first order: G changes the pace, not the target.

    The variance is 1/(a·(1 − ε·G·a/2)) for the G that the warm-up has found, and G ∝ 1/√E[g²] differs by dimension.
    """
    settings = Settings(0.05, 1.0, None, preconditioned=True)
    dynamics = Dynamics(torch.zeros(CHAINS, 3, dtype=torch.float64), 1, settings, 0)
    kept = []
    for i in range(2500):
        gradient = quadratic(dynamics.position).gradient
        dynamics.step(gradient, 1.0, is_exploring=i < 1000, has_noise=True)
        if i >= 1000 and i % 10 == 0:
            kept.append(dynamics.position.clone())
    squares = torch.stack(kept, 1).square()
    pace = 0.05 * dynamics._preconditioner * PRECISION
    expected = (1.0 / (PRECISION * (1.0 - pace / 2.0))).mean(0)
    assert torch.all((squares.mean((0, 1)) - expected).abs() < 4.0 * standard_error(squares))
    typical = dynamics._preconditioner.mean(0)
    assert typical[0] > typical[1] > typical[2]


@pytest.mark.parametrize("friction", [1.0, 0.3])
def test_minibatches_at_most_double_the_variance(friction: float) -> None:
    """Gradients with noise of variance τ²: the chain is linear, and its variance and ρ follow from the step h = ε·G.

    Σ = M Σ Mᵀ + (2·α·h + h²·τ²)·1. The draws have that variance, to 4 standard errors, and a·Σ is 1 + ρ, or less with
    momentum. ρ is 1 but for errors of V, a mean of about 200 squares: 10 % of a chain. Without a limit it is 8 or more.
    """
    lr, noise, n_data = 4.0 * friction, 4.0, 4
    dynamics = Dynamics(torch.zeros(CHAINS, 3, dtype=torch.float64), n_data, Settings(lr, friction, None, True), 0)
    source = torch.Generator().manual_seed(0)
    kept = []
    for i in range(2500):
        drawn = torch.randn(CHAINS, 3, generator=source, dtype=torch.float64)
        gradient = quadratic(dynamics.position).gradient + noise * drawn
        dynamics.step(gradient, 1.0, is_exploring=i < 500, has_noise=True)
        if i >= 600 and i % 10 == 0:
            kept.append(dynamics.position.clone())
    assert float(dynamics.limited) == 1.0
    squares = torch.stack(kept, 1).square()
    h = lr / n_data * dynamics._preconditioner
    keep = (1.0 - friction) * torch.ones_like(h)
    step = torch.stack([1.0 - h * PRECISION, keep, -h * PRECISION, keep], -1).unflatten(-1, (2, 2))
    kron = torch.einsum("kpab,kpcd->kpacbd", step, step).flatten(2, 3).flatten(3)
    added = (2.0 * friction * h + (h * noise).square()).unsqueeze(-1).expand(-1, -1, 4)
    variance = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - kron, added)[..., 0]
    assert torch.all((squares.mean((0, 1)) - variance.mean(0)).abs() < 4.0 * standard_error(squares))
    rho = h * (noise**2 + PRECISION.square() * variance) / (2.0 * friction)
    if friction == 1.0:
        torch.testing.assert_close(PRECISION * variance, 1.0 + rho)
    assert torch.all(PRECISION * variance < (1.0 + 1e-9) * (1.0 + rho))
    assert torch.all((rho.mean(0) - 1.0).abs() < 0.1)


def test_falling_steps_are_not_limited() -> None:
    settings = Settings(4.0, 1.0, None, preconditioned=True)
    dynamics = Dynamics(torch.zeros(2, 3), 4, settings, 0, is_cyclical=True)
    for _ in range(300):
        dynamics.step(torch.full((2, 3), 100.0), 1.0, is_exploring=True, has_noise=False)
    assert float(dynamics.limited) == 0.0
    weight = 0.99**300
    expected = 1.0 / (math.sqrt(weight + (1.0 - weight) * 25.0**2) + 1e-5)
    torch.testing.assert_close(dynamics._preconditioner, torch.full((2, 3), expected))


def test_the_preconditioner_remembers_half_of_the_warmup() -> None:
    """Gradients of 1 for m steps and of 0 until step n: V = Π(1 − 2/i) = m·(m − 1)/(n·(n − 1)), not 0.99^(n − m)."""
    dynamics = Dynamics(torch.zeros(1, 1, dtype=torch.float64), 1, Settings(0.01, 1.0, None, preconditioned=True), 0)
    for i in range(2000):
        gradient = torch.full((1, 1), 1.0 if i < 1500 else 0.0, dtype=torch.float64)
        dynamics.step(gradient, 1.0, is_exploring=True, has_noise=False)
    expected = 1.0 / (math.sqrt(1500 * 1499 / (2000 * 1999)) + 1e-5)
    assert float(dynamics._preconditioner) == pytest.approx(expected)


@pytest.mark.parametrize("is_exploring", [True, False])
def test_a_gradient_after_none_moves_a_weight_by_ten_steps_at_most(is_exploring: bool) -> None:
    """A unit that was inactive in the warm-up of a cycle has a G of 1/√(0.99^1500) ≈ 1,800, and becomes active."""
    settings = Settings(0.01, 1.0, None, preconditioned=True)
    dynamics = Dynamics(torch.zeros(1, 2, dtype=torch.float64), 50, settings, 0, is_cyclical=True)
    nothing = torch.zeros(1, 2, dtype=torch.float64)
    for _ in range(1500):
        dynamics.step(nothing, 1.0, is_exploring=True, has_noise=False)
    small = torch.tensor([[0.01, 1e5]], dtype=torch.float64)
    dynamics.step(small, 1.0, is_exploring=is_exploring, has_noise=False)
    assert float(dynamics.position[0, 1]) == pytest.approx(0.1, rel=1e-3 if is_exploring else 1e-9)
    if not is_exploring:
        typical = 0.99**750 + 1e-5
        assert float(dynamics.position[0, 0]) == pytest.approx(0.01 * 0.01 / 50 / typical)


@pytest.mark.parametrize("method", [credo.SGLD, credo.SGHMC])
def test_minibatch_draws_have_the_moments_of_a_linear_posterior(method: Any) -> None:
    """Bayesian linear regression in closed form; full batch, small steps.

    The bias of the variance is of order ε·a/2 ≤ 2 %, to which come 4 standard errors.
    """
    source = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=source, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.5 * torch.randn(40, 1, generator=source).double()
    precision = x.T @ x / 0.25 + torch.eye(2, dtype=torch.float64)
    covariance = torch.linalg.inv(precision)
    mean = (covariance @ x.T @ y / 0.25)[:, 0]
    lr = 0.01 if method is credo.SGLD else 0.002
    model = method(
        nn.Linear(2, 1, bias=False).double(),
        credo.Gaussian(0.5),
        chains=30,
        warmup=500,
        draws=200,
        thinning=10,
        lr=lr,
        batch_size=None,
        preconditioned=False,
        init="prior",
    )
    draws = model.fit((x, y), seed=0).posterior.by_chain()["weight"][:, :, 0]
    assert torch.all((draws.mean((0, 1)) - mean).abs() < 4.0 * standard_error(draws))
    squares = (draws - mean).square()
    allowed = 4.0 * standard_error(squares) + 0.02 * covariance.diagonal()
    assert torch.all((squares.mean((0, 1)) - covariance.diagonal()).abs() < allowed)


def test_the_estimate_from_minibatches_is_unbiased() -> None:
    """The mean over all minibatches of one pass is the log joint density, to rounding."""
    model = credo.SGLD(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double(), credo.Gaussian(0.5))
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(12, size, generator=source, dtype=torch.float64) for size in (2, 1))
    data = Batch(x, y, torch.rand(12, generator=source, dtype=torch.float64))
    target = model._log_joint([data.map(lambda t: t[:5]), data.map(lambda t: t[5:])])
    position = torch.randn(4, 13, generator=source, dtype=torch.float64)
    batches = minibatches(data, 4, seed=1)
    parts = [target.estimate(position, next(batches)) for _ in range(3)]
    whole = target(position)
    torch.testing.assert_close(torch.stack([part.log_density for part in parts]).mean(0), whole.log_density)
    torch.testing.assert_close(torch.stack([part.gradient for part in parts]).mean(0), whole.gradient)


def test_a_cycle_explores_then_samples_with_falling_steps() -> None:
    plan = Plan.build(warmup=8, draws=6, thinning=3, cycles=2)
    assert (plan.length, plan.steps) == (13, 26)
    assert [step for step in range(26) if plan.is_draw(step)] == [6, 9, 12, 19, 22, 25]
    assert [step for step in range(26) if plan.is_exploring(step)] == [0, 1, 2, 3, 13, 14, 15, 16]
    assert plan.factor(0) == plan.factor(13) == 1.0
    assert plan.factor(12) == pytest.approx(0.5 * (1.0 + math.cos(math.pi * 12 / 13)))
    assert Plan.build(warmup=8, draws=6).factor(9) == 1.0


def test_exploring_steps_of_a_cycle_have_no_noise() -> None:
    """All chains start at one place and are still together when sampling begins."""
    settings = Settings(STEP, 1.0, None, preconditioned=False)
    start = torch.ones(3, 3, dtype=torch.float64)
    data = Batch(torch.zeros(1, 1), torch.zeros(1), None)
    seen = []

    def estimate(position: Tensor, batch: Batch) -> Evaluation:
        seen.append(position.clone())
        return quadratic(position)

    sample(estimate, start, data, settings, Plan.build(5, 2, 1, cycles=1), 0, lambda step, metrics: None)
    spread = [float(position.std(0).sum()) for position in seen]
    assert spread[:6] == [0.0] * 6
    assert spread[6] > 0.0


def test_minibatches_are_passes_in_new_orders() -> None:
    data = Batch(torch.arange(10.0)[:, None], torch.arange(10.0), None)
    source = minibatches(data, 5, seed=0)
    passes = [torch.cat([next(source).y, next(source).y]) for _ in range(3)]
    assert all(torch.equal(order.sort().values, data.y) for order in passes)
    assert not torch.equal(passes[0], passes[1])
    assert next(minibatches(data, None, seed=0)) is data


def test_arguments_are_checked() -> None:
    net = nn.Linear(2, 1)
    wrong: dict[str, Any] = {"lr": 0.0, "batch_size": 0, "thinning": 0, "cycles": 0, "preconditioned": 1}
    for name, value in wrong.items():
        with pytest.raises(InputError, match=name):
            credo.SGLD(net, **{name: value})
    with pytest.raises(InputError, match="draws must be a multiple of cycles=3, got 100"):
        credo.SGLD(net, cycles=3)
    with pytest.raises(InputError, match="friction"):
        credo.SGHMC(net, friction=1.5)
    with pytest.raises(InputError, match="noise_prior must be a torch Distribution"):
        credo.SGLD(net, noise_prior=0.5)  # type: ignore[arg-type]


def test_a_step_that_is_too_large_leaves_the_model_as_it_was() -> None:
    model = credo.SGLD(nn.Linear(2, 1), credo.Gaussian(0.1), preconditioned=False, lr=1e3, init="prior", warmup=300)
    before = model.net.weight.clone()
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DivergenceError, match="smaller step size"):
        model.fit((x, x.sum(1, keepdim=True)), seed=0)
    assert torch.equal(model.net.weight, before)
    assert "not sampled yet" in model.summary()


def test_chains_that_diverge_leave_the_draws_and_the_history_of_an_earlier_fit() -> None:
    model = credo.SGLD(nn.Linear(2, 1), credo.Gaussian(0.1), preconditioned=False, lr=1e-2, chains=2, warmup=50)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model.fit((x, x.sum(1, keepdim=True)), seed=0)
    history, draws, rows = list(model.history), model.posterior.by_chain()["weight"].clone(), model.n_data
    with pytest.raises(DivergenceError):
        model.fit((1e3 * torch.cat([x, x]), torch.ones(40, 1)), seed=0)
    assert (model.history, model.n_data) == (history, rows)
    assert torch.equal(model.posterior.by_chain()["weight"], draws)


def test_chains_that_diverge_with_finite_weights_raise() -> None:
    """A learned noise grows with the errors, so that a step that is too large stops before weights are infinite.

    The log likelihood falls from -104 to thousands; ½·100·P is 200 for 3 weights and the noise.
    """
    model = credo.SGLD(
        nn.Linear(2, 1),
        credo.Gaussian("learned"),
        init="prior",
        preconditioned=False,
        lr=3.0,
        chains=2,
        warmup=50,
        draws=20,
    )
    before = model.net.weight.clone()
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DivergenceError, match=r"2 of 2 chains diverged, the log likelihood fell .* lr=0\.3, or scale"):
        model.fit((x, x.sum(1, keepdim=True)), seed=0)
    assert torch.equal(model.net.weight, before)
    assert "not sampled yet" in model.summary()


def test_draws_as_wide_as_the_posterior_have_not_diverged() -> None:
    """Draws of a normal posterior are ½·P below the mode, of 100 times the variance 50·P: 500 for 10 weights."""
    before, settings = torch.zeros(2, dtype=torch.float64), Settings(0.1, 1.0, None, preconditioned=True)
    _check_has_not_diverged(before, torch.tensor([-5.0, -499.0]).double(), 10, settings)
    for far in (-501.0, -math.inf):
        with pytest.raises(DivergenceError, match="1 of 2 chains diverged"):
            _check_has_not_diverged(before, torch.tensor([-5.0, far]).double(), 10, settings)
