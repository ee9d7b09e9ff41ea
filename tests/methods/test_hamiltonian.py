"""The parts of Hamiltonian Monte Carlo against what is known of them: invariance, order, and adaptation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from credo.diagnostics import effective_sample_size, r_hat, standard_error
from credo.methods._flat_stack import Evaluation
from credo.methods._hamiltonian import (
    Chains,
    DualAveraging,
    energy,
    leapfrog,
    sample,
    van_der_corput,
    windows,
)
from credo.methods._log_joint import maximize
from credo.methods._scales import RunningScale, RunningVariance, curvature_scale

MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
FACTOR = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.5, 0.0], [-0.02, 0.01, 0.03]], dtype=torch.float64)
COVARIANCE = FACTOR @ FACTOR.T
PRECISION = torch.linalg.inv(COVARIANCE)


def gaussian(position: Tensor) -> Evaluation:
    offset = position - MEAN.to(position.dtype)
    gradient = -offset @ PRECISION.to(position.dtype)
    return Evaluation(0.5 * (offset * gradient).sum(1).double(), gradient)


def quartic(position: Tensor) -> Evaluation:
    """p ∝ exp(−q⁴/4): q⁴/4 ~ Gamma(1/4), so E q⁴ = 1 and E q² = 2·Γ(3/4)/Γ(1/4)."""
    return Evaluation(-0.25 * position.pow(4).sum(1), -position.pow(3))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_leapfrog_is_reversible() -> None:
    start, momentum = normal(5, 2), normal(5, 2, seed=1)
    step_size, scale = torch.linspace(0.05, 0.3, 5, dtype=torch.float64), normal(5, 2, seed=2).exp()
    end, state, turned = leapfrog(quartic, start, quartic(start), momentum, step_size, scale, 20)
    back, _, again = leapfrog(quartic, end, state, -turned, step_size, scale, 20)
    torch.testing.assert_close(back, start, rtol=0, atol=1e-9)
    torch.testing.assert_close(-again, momentum, rtol=0, atol=1e-9)
    assert float((end - start).abs().min()) > 0.01


def test_leapfrog_is_of_second_order() -> None:
    """Half the step makes a quarter of the energy error, up to terms of higher order."""
    start, momentum, scale = normal(50, 2), normal(50, 2, seed=1), torch.ones(50, 2, dtype=torch.float64)
    before = energy(quartic(start), momentum)
    errors = []
    for steps in (20, 40, 80):
        step_size = torch.full((50,), 1.0 / steps, dtype=torch.float64)
        _, state, ended = leapfrog(quartic, start, quartic(start), momentum, step_size, scale, steps)
        errors.append(float((energy(state, ended) - before).abs().mean()))
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(("steps", "size"), [(1, 1.6), (4, 1.1)])
def test_transitions_leave_the_distribution_as_it_is(steps: int, size: float) -> None:
    """4,000 chains start at independent draws of exp(−q⁴/4), with steps so large that many proposals are rejected.
    After 5 transitions the moments are within 4 standard errors, with Var q^k from the exact moments; those of the
    proposals are not."""
    count, source = 4000, torch.Generator().manual_seed(0)
    gamma = torch._standard_gamma(torch.full((count, 1), 0.25, dtype=torch.float64), generator=source)
    start = (4 * gamma).pow(0.25) * (2.0 * (torch.rand(count, 1, generator=source) < 0.5) - 1.0)
    step_size, scale = torch.full((count,), size, dtype=torch.float64), torch.ones(count, 1, dtype=torch.float64)

    def moment(k: int) -> float:
        return 0.0 if k % 2 else 4 ** (k / 4) * math.gamma((k + 1) / 4) / math.gamma(1 / 4)

    def deviation(position: Tensor) -> float:
        errors = {k: math.sqrt((moment(2 * k) - moment(k) ** 2) / count) for k in (1, 2, 3, 4)}
        return max(abs(float(position.pow(k).mean()) - moment(k)) / error for k, error in errors.items())

    chains = Chains(quartic, start, seed=1)
    moves = [chains.transition(step_size, scale, steps) for _ in range(5)]
    assert 0.3 < float(moves[0].acceptance.mean()) < 0.9
    assert deviation(moves[0].proposal) > 10
    assert deviation(start) < 4
    assert deviation(chains.position) < 4


def test_successive_conditional_draws_keep_the_prior() -> None:
    """Geweke's joint distribution test: with w ~ p(w) and y ~ p(y | w), alternating transitions of w given y with new
    draws of y given w leaves p(w, y) as it is. Nonlinear regression with unknown noise; 2,000 chains, 6 rounds, first
    and second moments of 3 parameters within 4 standard errors."""
    count, source = 2000, torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 6, dtype=torch.float64)

    def simulate(weights: Tensor) -> Tensor:
        noise = torch.randn(count, len(x), dtype=torch.float64, generator=source)
        return torch.tanh(weights[:, :1] * x + weights[:, 1:2]) + weights[:, 2:].exp() * noise

    def posterior(weights: Tensor) -> Evaluation:
        leaf = weights.detach().requires_grad_()
        residual = (y - torch.tanh(leaf[:, :1] * x + leaf[:, 1:2])) / leaf[:, 2:].exp()
        value = -0.5 * residual.square().sum(1) - len(x) * leaf[:, 2] - 0.5 * leaf.square().sum(1)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return Evaluation(value.detach(), gradient)

    weights = torch.randn(count, 3, dtype=torch.float64, generator=source)
    step_size, scale = torch.full((count,), 0.25, dtype=torch.float64), torch.ones(count, 3, dtype=torch.float64)
    moved = torch.zeros(count, 1, dtype=torch.bool)
    for round_number in range(6):
        y = simulate(weights)
        chains = Chains(posterior, weights, seed=round_number)
        chains.transition(step_size, scale, 3)
        moved |= (chains.position != weights).any(1, keepdim=True)
        weights = chains.position
    assert float(moved.double().mean()) > 0.9
    for power in (1, 2):
        moments = weights.pow(power)
        z = (moments.mean(0) - (power - 1)) / (moments.std(0) / math.sqrt(count))
        assert float(z.abs().max()) < 4


@pytest.mark.parametrize(("copies", "steps"), [(1, None), (4, None), (4, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_of_a_correlated_gaussian(copies: int, steps: int | None, dtype: torch.dtype) -> None:
    """Standard deviations differ by a factor of 30. Means and second moments within 4 standard errors."""
    run = sample(gaussian, normal(copies, 3).to(dtype), warmup=300, draws=1500 // copies, seed=0, steps=steps)
    draws = run.draws.double()
    offset = draws - MEAN
    squares = offset.unsqueeze(-1) * offset.unsqueeze(-2)
    assert (((draws.mean((0, 1)) - MEAN) / standard_error(draws)).abs() < 4).all()
    assert (((squares.mean((0, 1)) - COVARIANCE) / standard_error(squares)).abs() < 4).all()
    assert float(effective_sample_size(draws).min()) > 150
    assert float(r_hat(draws).max()) < 1.05
    assert int(run.divergences.sum()) == 0
    torch.testing.assert_close(run.log_density, gaussian(run.draws.flatten(0, 1)).log_density.view_as(run.log_density))


def test_a_chain_does_not_depend_on_the_number_of_chains() -> None:
    """Up to rounding, which depends on the place of a number in a vector register: 1e-14 after 60 transitions."""
    start = normal(5, 3)
    few, many = (sample(quartic, start[:k], warmup=49, draws=11, seed=3, steps=5) for k in (2, 5))
    torch.testing.assert_close(few.draws, many.draws[:2], rtol=0, atol=1e-10)
    assert not torch.equal(few.draws[0], few.draws[1])
    again = sample(quartic, start[:2], warmup=49, draws=11, seed=3, steps=5)
    other = sample(quartic, start[:2], warmup=49, draws=11, seed=4, steps=5)
    assert torch.equal(again.draws, few.draws)
    assert not torch.equal(other.draws, few.draws)


def test_divergent_transitions_are_rejected_and_counted() -> None:
    """Where the density is NaN outside an interval, no chain leaves it."""

    def bounded(position: Tensor) -> Evaluation:
        inside = (position.abs() < 1.0).all(1)
        value = torch.where(inside, 0.0, math.nan).double()
        return Evaluation(value, torch.where(inside.unsqueeze(1), 0.0, math.nan).expand_as(position).to(position.dtype))

    run = sample(bounded, torch.zeros(3, 2), warmup=0, draws=200, seed=0, steps=50)
    assert bool(run.draws.isfinite().all())
    assert float(run.draws.abs().max()) < 1.0
    assert int(run.divergences.min()) > 0
    rejected = (run.draws.diff(dim=1) == 0).all(2).sum(1)
    assert (run.divergences[:, None] >= 1).all()
    assert (rejected >= run.divergences - 1).all()


def test_dual_averaging_finds_the_step_size_of_an_acceptance_rate() -> None:
    """If the acceptance rate at ε is e^−ε, a rate of 0.8 is at ε = −log 0.8; each chain has its own."""
    tuner = DualAveraging(torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64), 0.8)
    for _ in range(3000):
        tuner.update((-tuner.current * torch.tensor([1.0, 10.0, 0.1])).exp())
    expected = -math.log(0.8) / torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(tuner.averaged(), expected, rtol=0.02, atol=0)


def test_running_variances_have_a_floor() -> None:
    """(n·var + 5·10⁻³·v)/(n + 5), v the geometric mean of the variances of a chain."""
    draws = 3.0 + normal(40, 2, 5) * torch.logspace(-3, 1, 5, dtype=torch.float64)
    running = RunningVariance(draws[0])
    for position in draws:
        running.update(position)
    variance = draws.var(0)
    typical = variance.log().mean(1, keepdim=True).exp()
    torch.testing.assert_close(running.variance(), (40 * variance + 5e-3 * typical) / 45)
    constant = RunningVariance(draws[0])
    constant.update(draws[0])
    assert bool((constant.variance() > 0).all())


def test_scales_of_a_gaussian_lie_between_marginal_and_conditional() -> None:
    """s⁴ = Var[q]/Var[∇log p] = Σ_ii/(Σ⁻¹)_ii; of 4,000 independent draws, relative standard error about √(1/4000)."""
    draws = MEAN + normal(4000, 1, 3) @ FACTOR.T
    running = RunningScale(draws[0])
    for position in draws:
        running.update(position, gaussian(position).gradient)
    expected = (COVARIANCE.diagonal() / PRECISION.diagonal()).pow(0.25)
    torch.testing.assert_close(running.scale()[0], expected, rtol=4 * math.sqrt(1 / 4000), atol=0)


def test_curvature_scales_of_independent_gaussians_are_their_standard_deviations() -> None:
    """Exact for a diagonal Hessian, up to the floor of a thousandth of the geometric mean."""
    std = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)

    def target(position: Tensor) -> Evaluation:
        return Evaluation(-0.5 * (position / std).square().sum(1), -position / std**2)

    typical = std.log().mean().mul(-2).exp()
    expected = (std**-2 + 1e-3 * typical).rsqrt().expand(2, 3)
    torch.testing.assert_close(curvature_scale(target, normal(2, 3), seed=0), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("warmup", [0, 1, 49, 50, 100, 149, 150, 151, 500, 1000, 3333])
def test_windows_fill_the_warm_up(warmup: int) -> None:
    first, ends = windows(warmup)
    assert bool(ends) == (warmup >= 50)
    assert 0 <= first <= min(ends, default=warmup)
    assert ends == sorted(set(ends))
    assert max(ends, default=warmup) <= warmup
    if warmup >= 150:
        assert ends[-1] == warmup - 50
    assert windows(500) == (75, [100, 150, 250, 450])


def test_a_short_warm_up_keeps_the_scales() -> None:
    """Below 50 transitions the step size alone is adapted, for the scales that were given.

    Here they are exact, from 0.001 to 1. Were they replaced by 1 after the warm-up, the step size would be
    1,000 times too large for the smallest, and every transition would be rejected.
    """
    std = torch.tensor([1e-3, 1e-1, 1.0], dtype=torch.float64)

    def target(position: Tensor) -> Evaluation:
        scaled = position / std
        return Evaluation(-0.5 * scaled.square().sum(1), -scaled / std)

    start = normal(4, 3) * std
    run = sample(target, start, warmup=30, draws=50, seed=0, scale=std.expand(4, 3), steps=5)
    assert int(run.divergences.sum()) == 0
    assert float(run.acceptance.min()) > 0.5


def test_the_quasi_random_sequence() -> None:
    assert [van_der_corput(i) for i in range(1, 8)] == [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]


def test_maximize_finds_the_mode() -> None:
    def round_gaussian(position: Tensor) -> Evaluation:
        offset = position - MEAN
        return Evaluation(-0.5 * offset.square().sum(1), -offset)

    mode = maximize(round_gaussian, normal(3, 3), 300, 0.1)
    torch.testing.assert_close(mode, MEAN.expand(3, 3), rtol=0, atol=1e-3)
