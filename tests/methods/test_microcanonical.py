"""The parts of microcanonical Langevin dynamics against what is known of them: the force, energies, and adaptation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.diagnostics import standard_error
from credo.errors import InputError, UnsupportedError
from credo.methods._flat_stack import Evaluation
from credo.methods._microcanonical import Particles, StepSize, autocorrelation_time, kick, sample
from credo.methods._sampling import Plan, SamplingReport

PRECISION = torch.logspace(-1, 1, 6, dtype=torch.float64)


def quadratic(position: Tensor) -> Evaluation:
    return Evaluation(-0.5 * (position.square() * PRECISION).sum(1), -position * PRECISION)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_kick_solves_the_equation_of_the_direction() -> None:
    """u̇ = (I − u·uᵀ)·g/(d − 1) by 8,000 small steps of Heun's method, to 1e-7; ΔK = ∫ u·g dt in the same way."""
    u, gradient = normal(3, 5), normal(3, 5, seed=1)
    u = u / u.norm(dim=1, keepdim=True)
    found, kinetic = kick(u, gradient, torch.full((3, 1), 2.0, dtype=torch.float64))
    steps = 8_000
    work, dt = torch.zeros(3, dtype=torch.float64), 2.0 / steps

    def slope(v: Tensor) -> Tensor:
        return (gradient - v * (v * gradient).sum(1, keepdim=True)) / 4.0

    for _ in range(steps):
        first = slope(u)
        new = u + 0.5 * dt * (first + slope(u + dt * first))
        work += 0.5 * dt * ((u * gradient).sum(1) + (new * gradient).sum(1))
        u = new
    torch.testing.assert_close(found, u, rtol=0, atol=1e-7)
    torch.testing.assert_close(kinetic, work, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_the_energy_error_of_a_step_is_of_third_order() -> None:
    """Half the step has an eighth of the error."""
    scale, length = torch.ones(50, 6, dtype=torch.float64), torch.full((50,), 1e9, dtype=torch.float64)
    errors = []
    for size in (0.02, 0.01):
        particles = Particles(quadratic, normal(50, 6), seed=3)
        errors.append(particles.step(torch.full((50,), size, dtype=torch.float64), scale, length))
    assert float((errors[0] / errors[1]).median()) == pytest.approx(8.0, rel=0.05)


def test_without_refreshment_energy_is_conserved_along_the_path() -> None:
    """The sum of the errors of 500 steps stays of the size of a few of them."""
    particles = Particles(quadratic, normal(4, 6), seed=0)
    size, scale = torch.full((4,), 0.02, dtype=torch.float64), torch.ones(4, 6, dtype=torch.float64)
    errors = torch.stack([particles.step(size, scale, torch.full_like(size, 1e12)) for _ in range(500)])
    assert float(errors.sum(0).abs().max()) < 20 * float(errors.abs().max())


def test_moments_of_a_gaussian_and_the_energy_error_it_was_tuned_to() -> None:
    """Means and variances within 4 standard errors; so is the logarithm of the energy error, over the chains."""
    run = sample(quadratic, normal(8, 6), Plan.build(1500, 400, 10), seed=0, energy_error=1e-6)
    squares = run.draws.square()
    assert torch.all(run.draws.mean((0, 1)).abs() < 4.0 * standard_error(run.draws))
    assert torch.all((squares.mean((0, 1)) - 1.0 / PRECISION).abs() < 4.0 * standard_error(squares))
    ratio = (run.energy_error / 1e-6).log()
    assert ratio.mean().abs() < 4.0 * ratio.std() / math.sqrt(8)
    assert not run.divergences.any()


@pytest.mark.slow
def test_the_bias_falls_with_the_energy_error() -> None:
    """E[Σ a·w²] is 6; at a large error it is above it by more than 4 standard errors, at a small one it is not."""
    excess = []
    for error in (1e-2, 1e-6):
        run = sample(quadratic, normal(8, 6), Plan.build(1000, 300, 8), seed=1, energy_error=error)
        energy = (run.draws.square() * PRECISION).sum(2)
        excess.append(float((energy.mean() - 6.0) / standard_error(energy)))
    assert excess[0] > 4.0
    assert abs(excess[1]) < 4.0


def test_the_step_size_approaches_the_one_that_has_the_wanted_error() -> None:
    """For errors ΔE = c·ε³·z the step is (d·target/c²)^(1/6); a step that failed is not tried again."""
    source = torch.Generator().manual_seed(0)
    tuner = StepSize(torch.zeros(3, 10), 1e-3)
    for _ in range(1500):
        tuner.update(0.2 * tuner.current.pow(3) * torch.randn(3, generator=source, dtype=torch.float64))
    assert tuner.current.tolist() == pytest.approx([(1e-2 / 0.04) ** (1 / 6)] * 3, rel=0.1)
    before = tuner.current.clone()
    tuner.update(torch.full((3,), math.nan, dtype=torch.float64))
    assert torch.all(tuner.current <= 0.8 * before)


def test_one_unstable_step_does_not_set_the_step_size() -> None:
    """An error of 10⁵ in place of about 0.1 at most halves ε; it was 20 times too small for hundreds of steps."""
    source = torch.Generator().manual_seed(0)
    tuner = StepSize(torch.zeros(3, 10), 1e-3)
    for i in range(1000):
        error = 0.2 * tuner.current.pow(3) * torch.randn(3, generator=source, dtype=torch.float64)
        tuner.update(error if i != 600 else torch.full_like(error, 1e5))
        if i >= 600:
            assert torch.all(tuner.current > 0.4 * (1e-2 / 0.04) ** (1 / 6))
    assert tuner.current.tolist() == pytest.approx([(1e-2 / 0.04) ** (1 / 6)] * 3, rel=0.1)


def test_moments_of_an_ill_conditioned_gaussian_after_a_short_warm_up() -> None:
    """Variances from 10⁻⁴ to 10⁴: the first steps are unstable, and the scales are unknown.

    Means and variances of 40 dimensions within 4.5 standard errors, which one of 80 normal numbers exceeds with a
    probability of 5e-4. The energy error is within a factor of 2 of the one asked for: an average of 3,000 squares
    of heavy tails, at a step size that follows it.
    """
    precision = torch.logspace(-4, 4, 40, dtype=torch.float64)

    def target(position: Tensor) -> Evaluation:
        return Evaluation(-0.5 * (position.square() * precision).sum(1), -position * precision)

    run = sample(target, normal(8, 40), Plan.build(1000, 300, 10), seed=0, energy_error=1e-4)
    squares = run.draws.square()
    assert torch.all(run.draws.mean((0, 1)).abs() < 4.5 * standard_error(run.draws))
    assert torch.all((squares.mean((0, 1)) - 1.0 / precision).abs() < 4.5 * standard_error(squares))
    assert torch.all((run.energy_error / 1e-4).log().abs() < math.log(2.0))


def test_a_step_that_raises_the_energy_far_is_not_made() -> None:
    start = normal(4, 6)
    particles = Particles(quadratic, start, seed=0, largest_error=0.5)
    size, scale = torch.full((4,), 5.0, dtype=torch.float64), torch.ones(4, 6, dtype=torch.float64)
    before = particles.direction
    error = particles.step(size, scale, size)
    assert torch.equal(particles.made, error <= 0.5)
    assert not particles.made.all()
    assert torch.equal(particles.position[~particles.made], start[~particles.made])
    assert not torch.isclose(particles.direction, before).any()


def test_the_autocorrelation_time_of_an_autoregression() -> None:
    """(1 + ρ)/(1 − ρ) = 19 for ρ = 0.9, within 30 % for 5,000 steps of 20 parameters."""
    noise, value, path = normal(5000, 2, 20), torch.zeros(2, 20, dtype=torch.float64), []
    for z in noise:
        value = 0.9 * value + z
        path.append(value)
    assert autocorrelation_time(torch.stack(path, 1)).tolist() == pytest.approx([19.0, 19.0], rel=0.3)


def test_a_step_that_is_not_finite_is_not_made() -> None:
    def walled(position: Tensor) -> Evaluation:
        value = quadratic(position)
        return Evaluation(torch.where(position[:, 0] < 1.0, value.log_density, math.nan), value.gradient)

    particles = Particles(walled, torch.full((2, 6), 0.99, dtype=torch.float64), seed=0)
    size, scale = torch.full((2,), 0.3, dtype=torch.float64), torch.ones(2, 6, dtype=torch.float64)
    errors = torch.stack([particles.step(size, scale, size) for _ in range(30)])
    assert errors.isnan().any()
    assert particles.position[:, 0].max() < 1.0


@pytest.mark.parametrize(("steps", "sentence"), [(200, "200 transitions diverged"), (4000, "all 4,000 transitions")])
def test_divergences_are_counted_in_steps_not_in_draws(steps: int, sentence: str) -> None:
    """Two chains of 100 draws, 20 steps each, make 4,000 steps; 200 that are not made are not all of them."""
    made, half = Plan.build(0, 100, 20), steps // 2
    report = SamplingReport(2, 100, {}, [half, half], made.draws * made.thinning, {}, {})
    assert report.notices()[0].startswith(sentence)
    run = sample(quadratic, normal(2, 6), Plan.build(4, 4), seed=0)
    assert not run.divergences.is_floating_point()


def test_what_is_refused() -> None:
    one = nn.Linear(1, 1, bias=False)
    with pytest.raises(UnsupportedError, match="two or more dimensions"):
        credo.MCLMC(one, credo.Gaussian(0.1), init="prior", warmup=2, draws=4).fit((torch.ones(3, 1), torch.ones(3, 1)))
    for name, value in {"energy_error": 0.0, "thinning": 0}.items():
        with pytest.raises(InputError, match=name):
            credo.MCLMC(one, **{name: value})  # type: ignore[arg-type]
