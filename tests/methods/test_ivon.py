"""IVON: its posterior on a quadratic, its update against the equations of the paper, and what ``fit`` does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.methods.ivon import _NewtonTask
from credo.training.optimizers import OptimizerSet
from credo.training.options import FitOptions

N, WIDTH = 10, 4000


class Coordinates(nn.Module):
    """One weight per output: the negative log likelihood is a quadratic with curvature 1/noise² in every weight."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def quadratic_data(width: int = WIDTH) -> tuple[Tensor, Tensor]:
    y = 0.3 + 0.5 * torch.randn(N, width, generator=torch.Generator().manual_seed(0))
    return torch.ones(N, 1), y


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_variance_on_a_quadratic_is_that_of_the_exact_posterior(temperature: float) -> None:
    r"""With curvature h = 1/(T·noise²) per row the variance is 1/(N·(h + δ)), with δ = 1/(N·s²), and the mean is exact.

    At the mean, ĥ = h·ε², of variance 2h². The average over steps has the variance (1 − β₂)/2·2h², so that four
    standard errors of its mean over 4,000 weights are 4·√(1 − β₂)/√4000 = 0.63 % of h; the term in (h − ĥ)² adds at
    most ½·(1 − β₂)·2h = 1 % of h. What h was at first has a weight of 0.99^800 = 3e-4. A mean moves by at most α·σ·ε
    at random per step and returns at the rate α, which for a constant α leaves it at a distance from the exact one
    whose square is α·σ²/2 = 0.05·σ² on average, and less as α falls: four standard errors are 4·√(0.05/4000) = 0.014·σ.
    """
    noise, prior = 0.5, credo.Normal(0.2, 0.4)
    x, y = quadratic_data()
    model = credo.IVON(
        Coordinates(), credo.Gaussian(noise), prior, initial_scale=0.1, betas=(0.9, 0.99), temperature=temperature
    )
    model.fit((x, y), epochs=800, batch_size=N, lr=0.1, seed=0, progress=False)
    h, delta = 1.0 / (temperature * noise**2), 1.0 / (N * 0.4**2)
    precision = model.posterior.scale()["weight"].detach().double().pow(-2)
    assert float(precision.mean()) == pytest.approx(N * (h + delta), rel=0.016)
    exact = (h * y.mean(0) + delta * 0.2) / (h + delta)
    error = (model.posterior.mean()["weight"] - exact) * precision.mean().sqrt()
    assert abs(float(error.mean())) < 0.0142
    assert float(error.square().mean()) < 0.05


def newton_step(model: credo.IVON, lr: float) -> Any:
    """The optimizer that ``fit`` would build."""
    task = _NewtonTask(model)
    options = FitOptions(lr=lr, schedule="constant")
    return task, OptimizerSet(task.parameter_groups(0.0), options, task.default_optimizer).by_name["model"]


@pytest.mark.parametrize(("clip_radius", "trust_radius"), [(None, None), (0.05, None), (None, 0.7)])
def test_three_steps_are_those_of_the_paper(clip_radius: float | None, trust_radius: float | None) -> None:
    """The equations of Shen et al. (2024), Algorithm 1, in terms of h, written out step by step in float64.

    With a trust region, those of the docstring. β₂ = 0.7 is below 1 − 1/(t + 10).
    """
    width, lr, beta1, beta2, s, m0 = 7, 0.2, 0.8, 0.7, 0.6, 0.1
    x, y = (part.double() for part in quadratic_data(width))
    model = credo.IVON(
        Coordinates(width).double(),
        credo.Gaussian(0.5),
        credo.Normal(m0, s),
        initial_scale=0.2,
        betas=(beta1, beta2),
        trust_radius=trust_radius,
        clip_radius=clip_radius,
    )
    model.n_data = N
    task, optimizer = newton_step(model, lr)
    delta = 1.0 / (N * s**2)
    m, g, h = torch.zeros(width).double(), torch.zeros(width).double(), 1.0 / (N * 0.2**2) - delta
    v = torch.zeros(()).double()
    for t in range(1, 4):
        batch = credo.data.Batch(x, y, None)
        torch.manual_seed(t)
        loss = task.training_step(model, batch, N, {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.manual_seed(t)
        sigma = 1.0 / torch.as_tensor(N * (h + delta)).sqrt()
        theta = m + sigma * torch.randn(width, dtype=torch.float64)
        gradient = (theta - y).mean(0) / 0.5**2
        estimate = gradient * (theta - m) / sigma**2
        g = beta1 * g + (1 - beta1) * gradient
        h = beta2 * h + (1 - beta2) * estimate + 0.5 * (1 - beta2) ** 2 * (h - estimate) ** 2 / (h + delta)
        change = (g / (1 - beta1**t) + delta * (m - m0)) / (h + delta)
        v = beta1 * v + (1 - beta1) * (N * sigma * gradient).square().mean()
        change = change if clip_radius is None else change.clamp(-clip_radius, clip_radius)
        if trust_radius is not None:
            assert (v / (1 - beta1**t)).sqrt() > trust_radius  # the limit acts
            change = change * trust_radius / (v / (1 - beta1**t)).sqrt()
        m = m - lr * change
        torch.testing.assert_close(model.posterior.mean()["weight"], m)
        torch.testing.assert_close(model.posterior.scale()["weight"].detach(), (N * (h + delta)).rsqrt())


def small_table() -> tuple[Tensor, Tensor]:
    """A standardized table like those of the UCI benchmark: 13 correlated columns, and a target with outliers."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(400, 4, generator=source) @ torch.randn(4, 13, generator=source)
    x = x + 0.3 * torch.randn(400, 13, generator=source)
    y = x[:, 0].abs() + x[:, 1] * x[:, 2] / 3 + x[:, 3] + 0.1 * torch.randn(400, generator=source) ** 3
    return (x - x.mean(0)) / x.std(0), ((y - y.mean()) / y.std())[:, None]


@pytest.mark.parametrize("options", [{}, {"lr": 1.0}])
def test_a_wide_network_on_a_small_table_converges(options: dict[str, float]) -> None:
    """The network has 3,000 weights for 400 rows, and fits them better than a linear model does.

    Most weights have the scale of the prior, so that gradients are mostly noise: without a trust region, and with
    α = 0.1 or more, the means diverged, and the RMSE was above 1,000 standard deviations of the target.
    """
    x, y = small_table()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    model = credo.IVON(net, credo.Gaussian("learned"))
    model.fit((x, y), epochs=400, seed=0, progress=False, **options)
    linear = (y - x @ torch.linalg.lstsq(x, y).solution).square().mean().sqrt()
    assert credo.metrics.rmse(model.predict(x, samples=100, seed=0), y) < linear


def test_steps_stay_inside_the_trust_region() -> None:
    """The root mean square of a step is at most α·r·σ: here gradients are huge, and the prior is flat."""
    model = credo.IVON(Coordinates(50), credo.Gaussian(1e-4), credo.Normal(0.0, 1e6), trust_radius=0.5)
    model.n_data = N
    task, optimizer = newton_step(model, lr := 0.2)
    batch = credo.data.Batch(*quadratic_data(50), None)
    for step in range(20):
        torch.manual_seed(step)
        before = model.posterior.mean()["weight"].clone()
        optimizer.zero_grad()
        task.training_step(model, batch, N, {}).backward()
        optimizer.step()
        moved = (model.posterior.mean()["weight"] - before) / model.posterior.scale()["weight"].detach()
        assert 0.0 < moved.square().mean().sqrt() <= 1.001 * lr * 0.5


def test_a_second_fit_keeps_the_hessian_of_the_first() -> None:
    """In the first fit the estimates of the first steps count for much; later ones have the weight 1 − β₂ = 0.01.

    At the optimum a step changes h by (1 − β₂)·(ĥ − h), so its logarithm by 0.01·√2 in the root mean square, and σ by
    half of it.
    """
    x, y = quadratic_data()
    model = credo.IVON(Coordinates(), credo.Gaussian(0.5)).fit((x, y), epochs=600, batch_size=N, seed=0, progress=False)
    first = model.posterior.scale()["weight"].detach().clone()
    model.fit((x, y), epochs=1, batch_size=N, seed=1, progress=False)
    change = (model.posterior.scale()["weight"].detach() / first).log()
    assert float(change.square().mean().sqrt()) == pytest.approx(0.01 / 2**0.5, rel=0.2)


def test_the_loss_is_the_free_energy_with_all_of_its_gradients() -> None:
    """The gradients of the KL in closed form: (m − m₀)/s² and σ/s² − 1/σ, divided by N."""
    model = credo.IVON(Coordinates(5).double(), credo.Gaussian(1.0), credo.Normal(0.2, 0.5), initial_scale=0.3)
    x, y = (part.double() for part in quadratic_data(5))
    torch.manual_seed(0)
    model.nll(x, y).backward()
    mean, rho = model.net.weight, next(model.posterior.rho.parameters())
    expected = (mean.grad + (mean.detach() - 0.2) / 0.25 / N, rho.grad + (0.3 / 0.25 - 1 / 0.3) * rho.sigmoid() / N)
    model.zero_grad()
    torch.manual_seed(0)
    model.loss(x, y, n_data=N).backward()
    torch.testing.assert_close((mean.grad, rho.grad), tuple(part.detach() for part in expected))


def test_other_parameters_are_trained_and_a_second_fit_continues() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(40, 3)
    y = x.sum(1, keepdim=True)
    model = credo.IVON(net, credo.Gaussian("learned"))
    model.fit((x, y), epochs=60, seed=0, progress=False)
    scale, noise = model.posterior.scale()["0.weight"].clone(), next(model.likelihood.parameters()).clone()
    assert net[1].weight.ne(1).all()
    first = model.history[-1]["elbo"]
    assert first > model.history[0]["elbo"]
    model.fit((x, y), epochs=60, seed=1, progress=False)
    assert model.history[-1]["elbo"] > first
    assert not torch.equal(noise, next(model.likelihood.parameters()))
    assert not torch.equal(scale, model.posterior.scale()["0.weight"])
    torch.testing.assert_close(model.history[-1]["kl"], float(model.kl().detach()))


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    x, y = quadratic_data(6)

    def fit(**options: Any) -> credo.IVON:
        model = credo.IVON(Coordinates(6), credo.Gaussian("learned"))
        return model.fit((x, y), batch_size=10, seed=3, progress=False, schedule="constant", **options)

    whole = fit(epochs=4)
    fit(epochs=2, checkpoint=tmp_path / "run")
    resumed = fit(epochs=4, checkpoint=tmp_path / "run", resume=True)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_scales_have_at_least_32_bits(dtype: torch.dtype) -> None:
    x, y = (part.to(dtype) for part in quadratic_data(6))
    model = credo.IVON(Coordinates(6).to(dtype), credo.Gaussian(1.0))
    model.fit((x, y), epochs=3, seed=0, progress=False)
    assert model.net.weight.dtype == dtype
    assert model.posterior.scale()["weight"].dtype == torch.promote_types(dtype, torch.float32)
    assert model.posterior.scale()["weight"].isfinite().all()


def test_what_does_not_apply_is_refused() -> None:
    data = quadratic_data(3)
    with pytest.raises(credo.errors.InputError, match="optimizer of its own"):
        credo.IVON(Coordinates(3)).fit(data, optimizer=torch.optim.SGD)
    with pytest.raises(credo.errors.InputError, match="weight decay"):
        credo.IVON(Coordinates(3)).fit(data, weight_decay=0.1)
    with pytest.raises(credo.errors.InputError, match="one process"):
        credo.IVON(Coordinates(3)).fit(data, devices=2)
    with pytest.raises(credo.errors.UnsupportedError, match="Gaussian"):
        credo.IVON(Coordinates(3), prior=credo.LaplacePrior())
    with pytest.raises(credo.errors.UnsupportedError, match="one scale"):
        credo.IVON(Coordinates(3), prior=torch.distributions.Normal(torch.zeros(3), torch.ones(3)))
    for betas in [(0.9,), (0.9, 1.0), 0.9]:
        with pytest.raises(credo.errors.InputError, match="betas"):
            credo.IVON(Coordinates(3), betas=betas)  # type: ignore[arg-type]
