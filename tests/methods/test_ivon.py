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
from scenarios import LinearGaussian

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


class TwoTensors(nn.Module):
    """Two tensors of one weight per output, each with a row of its own: two quadratics with the same curvature."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * self.a, x * self.b], 1)


ADAPTIVE = credo.HierarchicalNormal(shape=2.0, rate=0.5)
PRIORS: dict[str, Any] = {
    "by name": {"a": credo.Normal(0.2, 0.1), "*": credo.Normal(0.0, 2.0)},
    "by weight": {"a": torch.distributions.Normal(0.2, torch.full((WIDTH,), 0.1)), "*": credo.Normal(0.0, 2.0)},
    "learned": {"a": ADAPTIVE, "*": credo.AdaptiveNormal(shape=1.0, rate=200.0)},
}


@pytest.mark.parametrize("kind", PRIORS)
def test_every_tensor_has_the_precision_of_its_own_prior(kind: str) -> None:
    r"""The variance is 1/(N·(h + δ)) with δ = 1/(N·s²) of the tensor's prior, or of the best s for the posterior.

    Bounds as for one tensor: 1.63 % of N·h, here 40, for the precision, and 0.0142·σ for the mean. The best s² is a
    function of the posterior, compared at the posterior that was found; each follows the other, which takes more steps.
    """
    noise, prior = 0.5, PRIORS[kind]
    x, y = quadratic_data(2 * WIDTH)
    model = credo.IVON(TwoTensors(), credo.Gaussian(noise), prior, initial_scale=0.1)
    model.fit((x, y), epochs=2000 if kind == "learned" else 800, batch_size=N, lr=0.1, seed=0, progress=False)
    h = 1.0 / noise**2
    means, scales = model.posterior.mean(), {name: s.detach() for name, s in model.posterior.scale().items()}
    for name, own, target in zip("ab", (prior["a"], prior["*"]), y.split(WIDTH, 1), strict=True):
        learned = not isinstance(own, torch.distributions.Normal)
        s = own.best_scale(means[name], scales[name]) if learned else own.scale
        center = 0.0 if learned else own.loc
        precision = scales[name].double().pow(-2).mean()
        prior_precision = float(torch.as_tensor(s).double().pow(-2).mean())
        assert float(precision) == pytest.approx(N * h + prior_precision, abs=0.0163 * N * h)
        exact = (N * h * target.mean(0) + prior_precision * center) / (N * h + prior_precision)
        error = (means[name] - exact) * precision.sqrt()
        assert abs(float(error.mean())) < 0.0142


@pytest.mark.parametrize("estimator", ["auto", "local", "flipout", "weight"])
def test_linear_layers_reach_the_best_factorized_gaussian(estimator: str) -> None:
    r"""The mean is exact, and the precision the diagonal of the exact one, however the noise enters.

    500 outputs are 500 runs for the four weights of a linear model, from near the optimum. With u of variance v ≤ 2 for
    these inputs, ĥ has a relative variance of at most 2 + v. Four standard errors of its average over steps and outputs
    are 4·√(0.01/2·4/500) = 2.5 %; the term in (h − ĥ)² adds at most ½·0.01·4 = 2 %. Means are at a distance of at most
    √(α/2·v) = 0.3·σ.
    """
    outputs, source = 500, torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=source) * torch.tensor([1.0, 0.5, 2.0])
    y = x.sum(1, keepdim=True) + 0.4 * torch.randn(60, outputs, generator=source)
    net = nn.Linear(3, outputs)
    nn.init.ones_(net.weight)
    model = credo.IVON(
        net, credo.Gaussian(0.4), credo.Normal(0.0, 0.7), estimator=estimator, initial_scale=0.1, kl_warmup=0
    )
    model.fit((x, y), epochs=800, batch_size=60, lr=0.1, seed=0, progress=False)
    first = LinearGaussian(x, y[:, :1], noise=0.4, prior_scale=0.7)
    exact = torch.stack([LinearGaussian(x, column[:, None], 0.4, 0.7).mean() for column in y.T])
    scales = model.posterior.scale()
    precision = torch.cat([scales["weight"], scales["bias"][:, None]], 1).detach().double().pow(-2).mean(0)
    torch.testing.assert_close(precision, first.precision().diagonal(), rtol=0.045, atol=0)
    mean = torch.cat([net.weight, net.bias[:, None]], 1).detach().double()
    error = (mean - exact) / first.mean_field_std()
    assert error.square().mean().sqrt() < 0.3
    assert error.mean(0).abs().max() < 4 * 0.3 / outputs**0.5


def test_auto_draws_the_weights_of_large_layers() -> None:
    net = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 2))
    model = credo.IVON(net, credo.Categorical())
    model.loss(torch.randn(4, 300), torch.tensor([0, 1, 1, 0]), n_data=4)
    lines = model.summary().splitlines()
    assert "Bayesian (weight, prior" in lines[0]
    assert "Bayesian (local on [B, D], else flipout, prior" in lines[2]


def newton_step(model: credo.IVON, lr: float) -> Any:
    """The optimizer that ``fit`` would build."""
    task = _NewtonTask(model)
    options = FitOptions(lr=lr, schedule="constant")
    return task, OptimizerSet(task.parameter_groups(0.0), options, task.default_optimizer).by_name["model"]


@pytest.mark.parametrize(
    ("clip_radius", "trust_radius", "kl_warmup"),
    [(None, None, 0), (0.05, None, 0), (None, 0.7, 0), (None, None, 2), (None, 0.7, 3)],
)
def test_three_steps_are_those_of_the_paper(
    clip_radius: float | None, trust_radius: float | None, kl_warmup: int
) -> None:
    """The equations of Shen et al. (2024), Algorithm 1, in terms of h, written out step by step in float64.

    With a trust region or warm-up, those of the docstring: while c rises, h stays as it is, and σ² = c/(N·(h + c·δ)).
    β₂ = 0.7 is below 1 − 1/(t + 10).
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
        kl_warmup=kl_warmup,
    )
    model.n_data = N
    task, optimizer = newton_step(model, lr)
    delta = 1.0 / (N * s**2)
    c = [min(1.0, t / kl_warmup) if kl_warmup else 1.0 for t in range(5)]
    m, g, h = torch.zeros(width).double(), torch.zeros(width).double(), c[1] / (N * 0.2**2) - c[1] * delta
    v = torch.zeros(()).double()
    for t in range(1, 4):
        batch = credo.data.Batch(x, y, None)
        torch.manual_seed(t)
        loss = task.training_step(model, batch, N, {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.manual_seed(t)
        sigma = (c[t] / torch.as_tensor(N * (h + c[t] * delta))).sqrt()
        theta = m + sigma * torch.randn(width, dtype=torch.float64)
        gradient = (theta - y).mean(0) / 0.5**2
        estimate = gradient * (theta - m) / sigma**2
        g = beta1 * g + (1 - beta1) * gradient
        correction = 0.5 * (1 - beta2) ** 2 * (h - estimate) ** 2 / (h + c[t] * delta)
        h = beta2 * h + (1 - beta2) * estimate + correction
        change = (g / (1 - beta1**t) + c[t + 1] * delta * (m - m0)) / (h + c[t + 1] * delta)
        v = beta1 * v + (1 - beta1) * (N / c[t] * sigma * gradient).square().mean()
        change = change if clip_radius is None else change.clamp(-clip_radius, clip_radius)
        if trust_radius is not None:
            assert (v / (1 - beta1**t)).sqrt() > trust_radius  # the limit acts
            change = change * trust_radius / (v / (1 - beta1**t)).sqrt()
        m = m - lr * change
        torch.testing.assert_close(model.posterior.mean()["weight"], m)
        expected = (c[t + 1] / (N * (h + c[t + 1] * delta))).sqrt()
        torch.testing.assert_close(model.posterior.scale()["weight"].detach(), expected)


def small_table() -> tuple[Tensor, Tensor]:
    """A standardized table like those of the UCI benchmark: 13 correlated columns, and a target with outliers."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(400, 4, generator=source) @ torch.randn(4, 13, generator=source)
    x = x + 0.3 * torch.randn(400, 13, generator=source)
    y = x[:, 0].abs() + x[:, 1] * x[:, 2] / 3 + x[:, 3] + 0.1 * torch.randn(400, generator=source) ** 3
    return (x - x.mean(0)) / x.std(0), ((y - y.mean()) / y.std())[:, None]


@pytest.mark.parametrize(("options", "part"), [({}, 0.5), ({"lr": 1.0}, 1.0)])
def test_a_wide_network_on_a_small_table_converges(options: dict[str, float], part: float) -> None:
    """The network has 3,000 weights for 400 rows, and leaves less than half of the error of a linear model.

    Most weights have the scale of the prior, so that gradients are mostly noise: without a trust region, and with
    α = 0.1 or more, the means diverged, and the RMSE was above 1,000 standard deviations of the target. Without warm-up
    and with one draw per minibatch, the second layer was given up, and the RMSE was 0.8 times that of a linear model.
    """
    x, y = small_table()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    model = credo.IVON(net, credo.Gaussian("learned"))
    model.fit((x, y), epochs=400, seed=0, progress=False, **options)
    linear = (y - x @ torch.linalg.lstsq(x, y).solution).square().mean().sqrt()
    assert credo.metrics.rmse(model.predict(x, samples=100, seed=0), y) < part * linear


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


def test_the_noise_of_small_minibatches_stays_below_the_posterior() -> None:
    """With N/B = 400 and a constant α the means, in units of σ, and log σ² scatter with a variance of at most ½.

    From the optimum on, four standard errors over 300 weights are 4·½·√(2/300) = 0.16. With α = 0.3 and β₂ = 0.99 the
    variances would be α·√(N/B)/2 = 3 and, to first order, 0.01/2·N/B = 2.
    """
    rows, width, noise, s = 400, 300, 0.5, 1.0
    y = 0.3 + noise * torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    precision = rows / noise**2 + 1.0 / s**2
    net, exact = Coordinates(width), y.sum(0) / noise**2 / precision
    with torch.no_grad():
        net.weight.copy_(exact)
    prior, scale = credo.Normal(0.0, s), precision**-0.5
    model = credo.IVON(net, credo.Gaussian(noise), prior, initial_scale=scale, kl_warmup=0)
    model.fit((torch.ones(rows, 1), y), epochs=3, batch_size=1, seed=0, progress=False, schedule="constant")
    assert float(((net.weight.detach() - exact) / scale).square().mean()) < 0.66
    assert float(model.posterior.scale()["weight"].detach().square().log().var()) < 0.66


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
        model = credo.IVON(Coordinates(6), credo.Gaussian("learned"), kl_warmup=3)
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
    with pytest.raises(credo.errors.InputError, match="estimator"):
        credo.IVON(Coordinates(3), estimator="antithetic")
    with pytest.raises(credo.errors.InputError, match="kl_warmup"):
        credo.IVON(Coordinates(3), kl_warmup=-1)
    for betas in [(0.9,), (0.9, 1.0), 0.9, ("0.9", "0.99")]:
        with pytest.raises(credo.errors.InputError, match="betas"):
            credo.IVON(Coordinates(3), betas=betas)  # type: ignore[arg-type]
